-- Why a device was idle: each gap between its first and last work has one cause.
--
-- In a gap nothing runs on the device; the next work ends it. Work is queued from the start of its call. The first
-- cause that applies counts; the first two need the call of the work that ends the gap. Reports say what is in quotes.
--
-- cpu_waited ("CPU in a host sync"): nothing was queued when the gap began, and the CPU was in a host sync.
--
-- cpu_busy ("CPU queued nothing"): nothing was queued when the gap began, so the device waited for the CPU.
--
-- If the work that ends the gap starts late after its call returned (by more than 100000 ns, and by more than the gap
-- had lasted by then), the gap counts as one with work queued.
--
-- short ("pauses below 5 µs"): work was queued, or its call is not recorded, and the gap is below 5000 ns: the device's
-- time between two pieces of work.
--
-- not_recorded ("call not recorded"): the call of the work that ends the gap is not recorded, so the queue is not known.
--
-- other_stream ("waiting for another stream"): work was queued, but waited for another stream, on which the last work
-- before the gap ran.
--
-- other ("queued work not started"): work was queued on the same stream, and the device did not start it: it waited for
-- another device, an event or host memory, or started up a graph.
--
-- Example:
--   SELECT device, cause, count, time_ns, idle_ratio, longest_ns
--   FROM molprof_idle_cause
--   ORDER BY device, time_ns DESC, cause;

INCLUDE PERFETTO MODULE molprof.devices;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.host_syncs;

-- Gaps in which nothing was queued, in order of start: the engine searches in them for those inside a host sync.
CREATE PERFETTO TABLE _molprof_empty_gap AS
SELECT
  ts,
  next_id
FROM _molprof_device_gap
WHERE queue = 2
ORDER BY ts, next_id;

-- Of these, the gaps inside a host sync.
CREATE PERFETTO TABLE _molprof_waited_gap AS
SELECT DISTINCT gap.next_id
FROM molprof_host_sync AS wait
JOIN _molprof_call AS waiting ON waiting.id = wait.id
CROSS JOIN _molprof_empty_gap AS gap
CROSS JOIN molprof_gpu_work AS next
WHERE
  gap.ts >= wait.ts
  AND gap.ts < wait.ts + wait.dur
  AND next.id = gap.next_id
  AND IFNULL(next.rank, -1) = IFNULL(waiting.rank, -1)
ORDER BY gap.next_id;

-- The engine searches for what ended when a gap began.
CREATE PERFETTO INDEX _molprof_work_end ON _molprof_work(ts_end);

-- Gaps with queued work after which work of another stream begins: none of the same stream ended when they began.
CREATE PERFETTO TABLE _molprof_other_stream_gap AS
SELECT gap.next_id
FROM _molprof_device_gap AS gap
CROSS JOIN _molprof_work AS next
CROSS JOIN _molprof_work AS last
WHERE
  gap.queue = 1
  AND gap.dur >= 5000
  AND next.id = gap.next_id
  AND last.ts_end = gap.ts
  AND last.device IS next.device
GROUP BY gap.next_id
HAVING NOT MAX(next.stream IS NULL OR last.stream IS NULL OR last.stream = next.stream)
ORDER BY gap.next_id;

-- Whether a table of gaps holds a gap.
CREATE PERFETTO MACRO _molprof_among(gaps TableOrSubquery, gap ColumnName)
RETURNS Expr AS (
  -- Where there are none, none is looked for.
  (SELECT COUNT() FROM $gaps) > 0
  AND EXISTS(
    SELECT 1
    FROM $gaps AS one
    WHERE one.next_id = $gap.next_id
  )
);

-- Gaps of one cause.
CREATE PERFETTO MACRO _molprof_cause(cause Expr, condition Expr)
RETURNS TableOrSubquery AS (
  SELECT
    gap.device,
    gap.ts,
    gap.dur,
    $cause AS cause,
    gap.next_id
  FROM _molprof_device_gap AS gap
  WHERE $condition
);

CREATE PERFETTO VIEW _molprof_short_gap AS
SELECT * FROM _molprof_cause!('short', gap.queue < 2 AND gap.dur < 5000);

CREATE PERFETTO VIEW _molprof_not_recorded_gap AS
SELECT * FROM _molprof_cause!('not_recorded', gap.queue = 0 AND gap.dur >= 5000);

CREATE PERFETTO VIEW _molprof_cpu_waited_gap AS
SELECT * FROM _molprof_cause!('cpu_waited', gap.queue = 2 AND _molprof_among!(_molprof_waited_gap, gap));

CREATE PERFETTO VIEW _molprof_cpu_busy_gap AS
SELECT * FROM _molprof_cause!('cpu_busy', gap.queue = 2 AND NOT _molprof_among!(_molprof_waited_gap, gap));

CREATE PERFETTO VIEW _molprof_stream_gap AS
SELECT *
FROM _molprof_cause!(
  'other_stream',
  gap.queue = 1 AND gap.dur >= 5000 AND _molprof_among!(_molprof_other_stream_gap, gap)
);

CREATE PERFETTO VIEW _molprof_other_gap AS
SELECT *
FROM _molprof_cause!(
  'other',
  gap.queue = 1 AND gap.dur >= 5000 AND NOT _molprof_among!(_molprof_other_stream_gap, gap)
);

-- All gaps.
CREATE PERFETTO VIEW _molprof_caused_gap AS
SELECT * FROM _molprof_short_gap
UNION ALL
SELECT * FROM _molprof_not_recorded_gap
UNION ALL
SELECT * FROM _molprof_cpu_waited_gap
UNION ALL
SELECT * FROM _molprof_cpu_busy_gap
UNION ALL
SELECT * FROM _molprof_stream_gap
UNION ALL
SELECT * FROM _molprof_other_gap;

-- One row per gap, in order of device and start.
CREATE PERFETTO VIEW molprof_idle_gap(
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
) AS
SELECT
  IFNULL(device, (SELECT device FROM _molprof_only_device)) AS device,
  ts,
  dur,
  cause,
  next_id
FROM _molprof_caused_gap
ORDER BY device, ts;

-- The sums of one cause by device: the engine groups by one text faster than by two. Gaps without a device are those of
-- the only one, and need no groups.
CREATE PERFETTO MACRO _molprof_cause_sum(cause Expr, gaps TableOrSubquery)
RETURNS TableOrSubquery AS (
  SELECT
    gap.device,
    $cause AS cause,
    COUNT() AS count,
    SUM(gap.dur) AS time_ns,
    MAX(gap.dur) AS longest_ns
  FROM $gaps AS gap
  WHERE gap.device IS NOT NULL
  GROUP BY gap.device
  UNION ALL
  SELECT
    (SELECT device FROM _molprof_only_device),
    $cause,
    (SELECT COUNT() FROM $gaps WHERE device IS NULL),
    (SELECT SUM(dur) FROM $gaps WHERE device IS NULL),
    (SELECT MAX(dur) FROM $gaps WHERE device IS NULL)
  WHERE EXISTS(SELECT 1 FROM $gaps WHERE device IS NULL)
);

-- Gaps by device and cause, longest total time first; the rows of a device add up to its idle time.
CREATE PERFETTO VIEW molprof_idle_cause(
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
) AS
WITH
  found AS (
    SELECT * FROM _molprof_cause_sum!('short', _molprof_short_gap)
    UNION ALL
    SELECT * FROM _molprof_cause_sum!('not_recorded', _molprof_not_recorded_gap)
    UNION ALL
    SELECT * FROM _molprof_cause_sum!('cpu_waited', _molprof_cpu_waited_gap)
    UNION ALL
    SELECT * FROM _molprof_cause_sum!('cpu_busy', _molprof_cpu_busy_gap)
    UNION ALL
    SELECT * FROM _molprof_cause_sum!('other_stream', _molprof_stream_gap)
    UNION ALL
    SELECT * FROM _molprof_cause_sum!('other', _molprof_other_gap)
  )
SELECT
  device,
  cause,
  count,
  time_ns,
  1.0 * time_ns / SUM(time_ns) OVER (PARTITION BY device) AS idle_ratio,
  longest_ns
FROM found
ORDER BY device, time_ns DESC, cause;
