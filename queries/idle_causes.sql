-- Why a device was idle: each gap between its first and last work has one cause.
--
-- In a gap nothing runs on the device; the next work ends it. Work is queued from the start of its call. The first
-- cause that applies counts; the first two need the call of the work that ends the gap.
--
-- cpu_waited: nothing was queued when the gap began, and the CPU was in a host sync.
--
-- cpu_busy: nothing was queued when the gap began, so the device waited for the CPU.
--
-- If the work that ends the gap starts late after its call returned (by more than 100000 ns, and by more than the gap
-- had lasted by then), the gap counts as one with work queued.
--
-- short: work was queued, or its call is not recorded, and the gap is below 5000 ns: the device's time between two
-- pieces of work.
--
-- not_recorded: the call of the work that ends the gap is not recorded, so the queue is not known.
--
-- other_stream: work was queued, but waited for another stream, on which the last work before the gap ran.
--
-- other: work was queued on the same stream, and the device did not start it: it waited for another device, an event or
-- host memory, or started up a graph.
--
-- Example:
--   SELECT device, cause, count, time_ns, idle_ratio, longest_ns
--   FROM molprof_idle_cause
--   ORDER BY device, time_ns DESC, cause;

INCLUDE PERFETTO MODULE molprof.devices;

INCLUDE PERFETTO MODULE molprof.gpu_calls;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.host_syncs;

-- When the work of each device was queued, in order. Nothing was queued in a gap if as much work was queued by then as
-- had begun: if the time in the row of the work that ends the gap is later than the gap's start.
CREATE PERFETTO TABLE _molprof_device_queue AS
SELECT
  queued_ts AS ts
FROM _molprof_device_start
ORDER BY
  device,
  queued_ts;

-- Gaps in order of device and start, with what was queued: 0: the call of the work that ends it is not recorded; 1: work;
-- 2: nothing.
CREATE PERFETTO TABLE _molprof_gap AS
SELECT
  gap.next_id,
  gap.ts,
  gap.dur,
  IIF(
    gap.call_end IS NULL,
    0,
    1 + (queue.ts > gap.ts AND gap.ts + gap.dur - gap.call_end <= MAX(100000, gap.call_end - gap.ts))
  ) AS queue
FROM _molprof_device_gap AS gap
CROSS JOIN _molprof_device_queue AS queue
WHERE
  queue._auto_id = gap.place;

-- Gaps in which nothing was queued, in order of start: the engine searches in them for those inside a host sync.
CREATE PERFETTO TABLE _molprof_empty_gap AS
SELECT
  ts,
  next_id
FROM _molprof_gap
WHERE
  queue = 2
ORDER BY
  ts,
  next_id;

-- Of these, the gaps inside a host sync.
CREATE PERFETTO TABLE _molprof_waited_gap AS
SELECT DISTINCT
  gap.next_id
FROM molprof_host_sync AS wait
JOIN _molprof_call AS waiting
  ON waiting.id = wait.id
CROSS JOIN _molprof_empty_gap AS gap
CROSS JOIN _molprof_work AS next
WHERE
  gap.ts >= wait.ts
  AND gap.ts < wait.ts + wait.dur
  AND next.id = gap.next_id
  AND IFNULL(next.rank, -1) = IFNULL(waiting.rank, -1)
ORDER BY
  gap.next_id;

-- GPU work in order of its end: the engine searches in it for what ended when a gap began.
CREATE PERFETTO TABLE _molprof_work_end AS
SELECT
  ts_end,
  id
FROM _molprof_work
ORDER BY
  ts_end,
  id;

-- Gaps with queued work after which work of another stream begins: none of the same stream ended when they began.
CREATE PERFETTO TABLE _molprof_other_stream_gap AS
SELECT
  gap.next_id
FROM _molprof_gap AS gap
CROSS JOIN _molprof_work AS next
CROSS JOIN _molprof_work_end AS ended
CROSS JOIN _molprof_work AS last
WHERE
  gap.queue = 1
  AND gap.dur >= 5000
  AND next.id = gap.next_id
  AND ended.ts_end = gap.ts
  AND last.id = ended.id
  AND last.device IS next.device
GROUP BY
  gap.next_id
HAVING
  NOT MAX(next.stream IS NULL OR last.stream IS NULL OR last.stream = next.stream)
ORDER BY
  gap.next_id;

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
SELECT
  gap.device,
  gap.ts,
  gap.dur,
  CASE
    WHEN found.queue = 2 AND waited.next_id IS NOT NULL THEN 'cpu_waited'
    WHEN found.queue = 2 THEN 'cpu_busy'
    WHEN gap.dur < 5000 THEN 'short'
    WHEN found.queue = 0 THEN 'not_recorded'
    WHEN other.next_id IS NULL THEN 'other'
    ELSE 'other_stream'
  END AS cause,
  gap.next_id
FROM _molprof_device_gap AS gap
CROSS JOIN _molprof_gap AS found
  ON found._auto_id = gap._auto_id
LEFT JOIN _molprof_waited_gap AS waited
  ON found.queue = 2 AND waited.next_id = gap.next_id
LEFT JOIN _molprof_other_stream_gap AS other
  ON found.queue = 1 AND gap.dur >= 5000 AND other.next_id = gap.next_id;

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
