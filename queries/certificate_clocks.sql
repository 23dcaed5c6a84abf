-- Times of a trace that contradict each other: of the host and the GPU, and of the host alone.
--
-- GPU work cannot begin before its call, nor end after a device sync that waited for it. Correlation numbers rise with
-- time in each thread, so a call with a higher number that begins earlier shows a clock that went back.
--
-- Example:
--   SELECT early_work, earliest_ns, late_work, latest_ns, backward_calls, backward_ns
--   FROM molprof_clock
--   ORDER BY early_work;

INCLUDE PERFETTO MODULE molprof.gpu_calls;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.work_calls;

-- GPU work that a device sync waited for. Only of processes whose work is on one device: a device sync waits for the
-- current one, whose number is not recorded.
CREATE PERFETTO TABLE molprof_waited_work(
  -- The kernel, copy or set.
  id JOINID(slice.id),
  -- From its end to the end of the sync, ns; below 0 where the clocks disagree.
  slack DURATION
)
AS
WITH
  sync AS (
    SELECT
      call.ts,
      call.ts + call.dur AS ts_end,
      thread.upid
    FROM molprof_gpu_call AS call
    JOIN slice
      USING (id)
    JOIN thread_track
      ON thread_track.id = slice.track_id
    JOIN thread
      USING (utid)
    WHERE
      call.name GLOB '*DeviceSynchronize'
  ),
  submitted AS (
    SELECT
      work.id,
      work.device,
      work.ts + work.dur AS work_end,
      call.ts + call.dur AS call_end,
      thread.upid
    FROM molprof_gpu_work_call AS link
    JOIN molprof_gpu_work AS work
      ON work.id = link.work_id
    JOIN slice AS call
      ON call.id = link.call_id
    JOIN thread_track
      ON thread_track.id = call.track_id
    JOIN thread
      USING (utid)
  ),
  -- The first sync that began after the call; window over both in order of time.
  ordered AS (
    SELECT
      upid,
      id,
      work_end,
      call_end AS at,
      NULL AS sync_end
    FROM submitted
    WHERE
      upid IN (SELECT upid FROM submitted GROUP BY upid HAVING COUNT(DISTINCT device) = 1)
    UNION ALL
    SELECT
      upid,
      NULL,
      NULL,
      ts,
      ts_end
    FROM sync
  ),
  waited AS (
    SELECT
      id,
      work_end,
      MIN(sync_end) OVER (
        PARTITION BY upid
        ORDER BY at
        RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
      ) AS sync_end
    FROM ordered
  )
SELECT
  id,
  sync_end - work_end AS slack
FROM waited
WHERE
  id IS NOT NULL AND sync_end IS NOT NULL
ORDER BY
  id;

-- Contradictions, one row.
CREATE PERFETTO VIEW molprof_clock(
  -- GPU work that begins before its call does.
  early_work LONG,
  -- The largest time by which it does, ns; 0 where none does.
  earliest_ns DURATION,
  -- GPU work that ends after a device sync that waited for it.
  late_work LONG,
  -- The largest time by which it does, ns; 0 where none does.
  latest_ns DURATION,
  -- Runtime and driver calls that begin before one of their thread with a lower correlation number.
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
)
AS
WITH
  call AS (
    SELECT
      gpu_call.ts,
      MAX(gpu_call.ts) OVER (
        PARTITION BY COALESCE(EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid'), thread.tid), thread.upid
        ORDER BY gpu_call.correlation
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS latest_ts
    FROM molprof_gpu_call AS gpu_call
    JOIN slice
      USING (id)
    JOIN thread_track
      ON thread_track.id = slice.track_id
    JOIN thread
      USING (utid)
    WHERE
      TYPEOF(gpu_call.correlation) = 'integer'
  ),
  early AS (
    SELECT
      COUNT() AS count,
      IFNULL(MAX(-delay), 0) AS most_ns
    FROM molprof_gpu_work_call
    WHERE
      delay < 0
  ),
  late AS (
    SELECT
      COUNT() AS count,
      IFNULL(MAX(-slack), 0) AS most_ns
    FROM molprof_waited_work
    WHERE
      slack < 0
  ),
  room AS (
    SELECT
      (SELECT MIN(delay) FROM molprof_gpu_work_call) AS least_delay_ns,
      (SELECT AVG(delay) FROM molprof_gpu_work_call) AS mean_delay_ns,
      (SELECT MIN(slack) FROM molprof_waited_work) AS least_slack_ns
  ),
  backward AS (
    SELECT
      COUNT() AS count,
      IFNULL(MAX(latest_ts - ts), 0) AS most_ns
    FROM call
    WHERE
      latest_ts > ts
  )
SELECT
  early.count AS early_work,
  early.most_ns AS earliest_ns,
  late.count AS late_work,
  late.most_ns AS latest_ns,
  backward.count AS backward_calls,
  backward.most_ns AS backward_ns,
  room.least_delay_ns,
  room.least_slack_ns,
  room.mean_delay_ns
FROM early
CROSS JOIN late
CROSS JOIN backward
CROSS JOIN room;
