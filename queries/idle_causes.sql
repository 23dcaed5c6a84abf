-- Why a device was idle: each gap between its first and its last work, with one cause.
--
-- A gap is a stretch in which nothing runs on the device; it ends when the next work starts. Work counts as queued
-- from the start of its call on. The first two causes need the call of the work that ends the gap to be recorded. The
-- causes, the first that applies:
--
-- cpu_waited: nothing was queued when the gap began, and the CPU was inside a call that waits for the GPU then.
--
-- cpu_busy: nothing was queued when the gap began, so the device waited for the CPU.
--
-- short: work was queued, or its call is not recorded, and the gap is below 5000 ns: the device's own time from one
-- piece of work to the next.
--
-- not_recorded: the call of the work that ends the gap is not recorded, so that the queue is not known.
--
-- other_stream: work was queued, and the last to end before the gap ran on other streams than the next, which
-- waited for one of them.
--
-- other: work was queued on the same stream, and the device did not start it: waits for another device, for an event
-- or for the host's memory, and the start-up of a graph.
--
-- Example:
--   SELECT device, cause, count, time_ns, idle_ratio, longest_ns
--   FROM molprof_idle_cause
--   ORDER BY device, time_ns DESC, cause;

INCLUDE PERFETTO MODULE molprof.gpu_calls;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.host_syncs;

INCLUDE PERFETTO MODULE molprof.launches;

-- GPU work with the time of its call, the latest end before it, and the earliest call of what starts no earlier.
CREATE PERFETTO TABLE _molprof_queued_work AS
SELECT
  work.id,
  work.device,
  work.stream,
  work.ts,
  call.ts AS call_ts,
  MAX(work.ts + work.dur) OVER (
    PARTITION BY work.device
    ORDER BY work.ts, work.id
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS busy_until,
  MIN(call.ts) OVER (
    PARTITION BY work.device
    ORDER BY work.ts DESC, work.id DESC
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  ) AS queued_from
FROM molprof_gpu_work AS work
LEFT JOIN molprof_gpu_work_call AS link
  ON link.work_id = work.id
LEFT JOIN molprof_gpu_call AS call
  ON call.id = link.call_id
ORDER BY
  work.id;

-- Gaps, and the latest end of any waiting call that had begun by the start of each.
CREATE PERFETTO TABLE _molprof_gap AS
WITH
  moment AS (
    SELECT
      id,
      busy_until AS ts,
      NULL AS wait_end
    FROM _molprof_queued_work
    WHERE
      ts > busy_until
    UNION ALL
    SELECT
      NULL AS id,
      ts,
      ts + dur AS wait_end
    FROM molprof_host_sync
  ),
  waited AS (
    SELECT
      id,
      MAX(wait_end) OVER (
        ORDER BY ts, id IS NOT NULL, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
      ) AS wait_end
    FROM moment
  )
SELECT
  next.id AS next_id,
  next.device,
  next.stream,
  next.busy_until AS ts,
  next.ts - next.busy_until AS dur,
  next.call_ts,
  next.queued_from > next.busy_until AS was_empty,
  IFNULL(waited.wait_end > next.busy_until, FALSE) AS cpu_waited
FROM waited
CROSS JOIN _molprof_queued_work AS next
  ON next.id = waited.id;

-- One row per gap, in order of device and start.
CREATE PERFETTO TABLE molprof_idle_gap(
  -- Device number as text.
  device STRING,
  -- Start of the gap, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Length of the gap, ns.
  dur DURATION,
  -- cpu_waited, cpu_busy, short, not_recorded, other_stream or other.
  cause STRING,
  -- The kernel, copy or set that ended it.
  next_id JOINID(slice.id)
)
AS
WITH
  -- Streams of the work that ended when the gap began.
  last_stream AS (
    SELECT
      device,
      ts + dur AS ts_end,
      stream
    FROM molprof_gpu_work
  )
SELECT
  gap.device,
  gap.ts,
  gap.dur,
  CASE
    WHEN gap.call_ts IS NOT NULL AND gap.was_empty AND gap.cpu_waited THEN 'cpu_waited'
    WHEN gap.call_ts IS NOT NULL AND gap.was_empty THEN 'cpu_busy'
    WHEN gap.dur < 5000 THEN 'short'
    WHEN gap.call_ts IS NULL THEN 'not_recorded'
    WHEN gap.stream IS NULL OR SUM(last.stream IS NULL OR last.stream = gap.stream) > 0 THEN 'other'
    ELSE 'other_stream'
  END AS cause,
  gap.next_id
FROM _molprof_gap AS gap
JOIN last_stream AS last
  ON last.device = gap.device AND last.ts_end = gap.ts
GROUP BY
  gap.next_id
ORDER BY
  gap.device,
  gap.ts;

-- Gaps by device and cause, longest total time first; the rows of a device add up to its idle time.
CREATE PERFETTO VIEW molprof_idle_cause(
  -- Device number as text.
  device STRING,
  -- Cause of the gaps.
  cause STRING,
  -- Gaps.
  count LONG,
  -- Sum of their lengths, ns.
  time_ns DURATION,
  -- Share of the device's idle time, 0 to 1.
  idle_ratio DOUBLE,
  -- Longest gap, ns.
  longest_ns DURATION
)
AS
SELECT
  device,
  cause,
  COUNT() AS count,
  SUM(dur) AS time_ns,
  1.0 * SUM(dur) / SUM(SUM(dur)) OVER (PARTITION BY device) AS idle_ratio,
  MAX(dur) AS longest_ns
FROM molprof_idle_gap
GROUP BY
  device,
  cause
ORDER BY
  device,
  time_ns DESC,
  cause;
