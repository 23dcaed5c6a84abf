-- Times of a trace that contradict each other: of the host and the GPU, and of the host alone.
--
-- GPU work cannot begin before its call, nor end after a device sync that waited for it. Correlation numbers rise with
-- time in each thread, so a launch with a higher number that begins earlier shows a clock that went back.
--
-- Example:
--   SELECT early_work, earliest_ns, late_syncs, latest_ns, backward_calls, backward_ns
--   FROM molprof_clock
--   ORDER BY early_work;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.certificate_calls;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;

-- A figure of the GPU work that a device sync waited for, of one kind of calls. The engine searches the calls between
-- two syncs, and chooses tracks faster than it joins them.
CREATE PERFETTO MACRO _molprof_awaited_by(calls TableOrSubquery, figure Expr, sync ColumnName)
RETURNS TableOrSubquery AS (
  SELECT $figure AS figure
  FROM $calls AS call
  CROSS JOIN _molprof_work AS work
  WHERE
    call.ts >= $sync.last_ts
    AND call.ts < $sync.ts
    AND call.ts + call.dur <= $sync.ts
    AND call.track_id IN (SELECT track.id FROM _molprof_thread_track AS track WHERE track.upid = $sync.upid)
    AND work.call_id = call.id
);

-- The same of launches and graph launches together. most: how their two figures become one, such as MAX(figure).
CREATE PERFETTO MACRO _molprof_awaited(most Expr, figure Expr, sync ColumnName)
RETURNS Expr AS (
  SELECT $most
  FROM (
    SELECT * FROM _molprof_awaited_by!(_molprof_launch_call, $figure, $sync)
    UNION ALL
    SELECT * FROM _molprof_awaited_by!(_molprof_graph_call, $figure, $sync)
  )
);

-- Device syncs with the last GPU work that they waited for: of launches that ended between the sync before and this one.
-- Only of processes whose work is on one device: a device sync waits for the current one, whose number is not recorded.
CREATE PERFETTO TABLE molprof_device_sync(
  -- The call's slice.
  id JOINID(slice.id),
  -- From the end of that work to the end of the sync, ns; below 0 where the clocks disagree.
  slack DURATION
) AS
WITH
  sync AS (
    SELECT
      call.id,
      call.ts,
      call.ts_end,
      track.upid,
      LAG(call.ts, 1, -1) OVER (PARTITION BY track.upid ORDER BY call.ts, call.id) AS last_ts
    FROM _molprof_marking_call AS call
    JOIN _molprof_thread_track AS track ON track.id = call.track_id
    WHERE call.role = 'device_sync'
  ),
  -- It is read twice below, and made once.
  last AS MATERIALIZED (
    SELECT
      id,
      upid,
      ts_end,
      _molprof_awaited!(MAX(figure), MAX(work.ts_end), sync) AS work_end,
      IIF(one.device, NULL, _molprof_awaited!(MIN(figure), MIN(work.device), sync)) AS first_device,
      IIF(one.device, NULL, _molprof_awaited!(MAX(figure), MAX(work.device), sync)) AS last_device
    FROM sync
    CROSS JOIN (SELECT COUNT() AS device FROM _molprof_only_device) AS one
  ),
  process AS (
    SELECT upid
    FROM last
    WHERE work_end IS NOT NULL
    GROUP BY upid
    HAVING (SELECT COUNT() FROM _molprof_only_device) > 0 OR MIN(first_device) = MAX(last_device)
  )
SELECT
  last.id,
  last.ts_end - last.work_end AS slack
FROM last
JOIN process USING (upid)
WHERE last.work_end IS NOT NULL
ORDER BY last.id;

-- Lanes: the further tracks of a thread that has several.
CREATE PERFETTO TABLE _molprof_lane_track AS
SELECT id
FROM (
  SELECT
    id,
    MIN(id) OVER (PARTITION BY upid, tid) AS own_id
  FROM _molprof_thread_track
  WHERE upid IS NOT NULL AND tid IS NOT NULL
)
WHERE id > own_id
ORDER BY id;

-- Launches of each thread, where some are on lanes.
CREATE PERFETTO TABLE _molprof_thread_launch AS
SELECT
  track.upid,
  track.tid,
  call.correlation,
  call.ts
FROM _molprof_call AS call
CROSS JOIN _molprof_thread_track AS track
WHERE
  call.kind IS NOT NULL
  AND call.correlation IS NOT NULL
  AND track.id = call.track_id
LIMIT IIF((SELECT COUNT() FROM _molprof_call WHERE track_id IN (SELECT id FROM _molprof_lane_track)) > 0, -1, 0);

-- Launches of each thread in order of number; of each track where none is on a lane. No rows where numbers rise.
CREATE PERFETTO TABLE _molprof_launch_order AS
SELECT *
FROM _molprof_thread_launch
UNION ALL
SELECT
  0 AS upid,
  track_id AS tid,
  correlation,
  ts
FROM _molprof_call
WHERE
  (SELECT COUNT() FROM _molprof_call WHERE track_id IN (SELECT id FROM _molprof_lane_track)) = 0
  AND kind IS NOT NULL
  AND correlation IS NOT NULL
ORDER BY 1, 2, 3
LIMIT IIF((SELECT COUNT() FROM _molprof_rising_number) > 0, 0, -1);

-- Contradictions, one row.
CREATE PERFETTO VIEW molprof_clock(
  -- GPU work that begins before its call does.
  early_work LONG,
  -- The largest time by which it does, ns; 0 where none does.
  earliest_ns DURATION,
  -- Device syncs that end before GPU work that they waited for.
  late_syncs LONG,
  -- The largest time by which they do, ns; 0 where none does.
  latest_ns DURATION,
  -- Launches that begin before one of their thread with a lower correlation number.
  backward_calls LONG,
  -- The largest time by which they do, ns; 0 where none does.
  backward_ns DURATION,
  -- Shortest time from a call's start to its work's start, ns: the GPU's clock is ahead by no more; null without calls.
  least_delay_ns DURATION,
  -- Shortest time from the end of work to the end of a device sync that waited for it, ns: the GPU's clock is behind by
  -- no more; null without such a sync.
  least_slack_ns DURATION,
  -- Mean time from a call's start to its work's start, ns; null without calls.
  mean_delay_ns DOUBLE
) AS
WITH
  call AS (
    SELECT
      ts,
      MAX(ts) OVER (
        PARTITION BY upid, tid
        ORDER BY correlation
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS latest_ts
    FROM _molprof_launch_order
    WHERE
      -- Where no launch begins before the one with the number below, none is looked at.
      EXISTS(
        SELECT 1
        FROM _molprof_launch_order AS next
        CROSS JOIN _molprof_launch_order AS last
        WHERE
          last._auto_id = next._auto_id - 1 AND last.ts > next.ts AND last.upid = next.upid AND last.tid = next.tid
      )
  ),
  delay AS (
    SELECT
      -- Where none is early, none is looked at again.
      IIF(MIN(ts - call_ts) < 0, (SELECT COUNT() FROM _molprof_work WHERE ts < call_ts), 0) AS early,
      MIN(ts - call_ts) AS least_ns,
      AVG(ts - call_ts) AS mean_ns
    FROM _molprof_work
    WHERE call_id IS NOT NULL
  ),
  sync AS (
    SELECT
      COUNT() FILTER (WHERE slack < 0) AS late,
      MIN(slack) AS least_ns
    FROM molprof_device_sync
  ),
  backward AS (
    SELECT
      COUNT() AS count,
      IFNULL(MAX(latest_ts - ts), 0) AS most_ns
    FROM call
    WHERE latest_ts > ts
  )
SELECT
  delay.early AS early_work,
  MAX(0, IFNULL(-delay.least_ns, 0)) AS earliest_ns,
  sync.late AS late_syncs,
  MAX(0, IFNULL(-sync.least_ns, 0)) AS latest_ns,
  backward.count AS backward_calls,
  backward.most_ns AS backward_ns,
  delay.least_ns AS least_delay_ns,
  sync.least_ns AS least_slack_ns,
  delay.mean_ns AS mean_delay_ns
FROM delay
CROSS JOIN sync
CROSS JOIN backward;
