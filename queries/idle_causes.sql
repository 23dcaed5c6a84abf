-- Why a device was idle: its idle time, divided by what the CPU and the device did in it.
--
-- A gap ends with the next work of the device. Work is queued from the start of its call on. While nothing is queued, the
-- device waits for the thread that makes that call, and the time is divided by what this thread is in; while the thread
-- is in nothing recorded and another one started the work before the gap, by what that one is in. The time before the
-- first and after the last work of the device, as long as anything is recorded, is divided alike. Reports say what is in
-- quotes.
--
-- cpu_masks ("CPU in masks"): nothing is queued, and the thread fills, copies, applies or advances masks of constrained
-- decoding, or compiles a grammar or waits for one: it is in a phase mask_... or grammar_... of molprof.phase_marks. What
-- it does there, also a host sync, counts as nothing else.
--
-- cpu_waited ("CPU in a host sync"): nothing is queued, and the thread is in a host sync.
--
-- cpu_calls ("CPU in other GPU calls"): nothing is queued, and the thread is in any other call of runtime or driver.
--
-- cpu_operators ("CPU in operators"): nothing is queued, and the thread is in an operator, but in no call.
--
-- cpu_outside ("CPU outside operators"): nothing is queued, and the thread is in no operator: in Python, or in what is not
-- recorded.
--
-- launching ("launch under way"): from the start of the call on, until the work starts.
--
-- short ("pauses below 5 µs"): work was queued when the gap began, or its call is not recorded, and the gap is below
-- 5000 ns: the device's time between two pieces of work.
--
-- not_recorded ("call not recorded"): the call of the work that ends the gap is not recorded, so the queue is not known.
--
-- other_stream ("waiting for another stream"): work was queued, but waited for another stream, on which the last work
-- before the gap ran.
--
-- other ("queued work not started"): work was queued on the same stream, and the device did not start it: it waited for
-- another device, an event or host memory, or started up a graph. Of the time after a call, if its work starts later than
-- 100000 ns after its end, and later than the gap had lasted by then.
--
-- Example:
--   SELECT device, position, cause, count, time_ns, idle_ratio, longest_ns
--   FROM molprof_idle_cause
--   ORDER BY device, position, time_ns DESC, cause;

INCLUDE PERFETTO MODULE intervals.intersect;
INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.devices;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.host_syncs;
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.process_ranks;

-- The engine searches for what ended when a gap began.
CREATE PERFETTO INDEX _molprof_work_end ON _molprof_work(ts_end);

CREATE PERFETTO VIEW _molprof_recorded_slice AS
SELECT
  ts,
  dur,
  track_id
FROM slice
WHERE category IN ('cpu_op', 'user_annotation', 'cuda_runtime', 'cuda_driver', 'kernel', 'gpu_memcpy', 'gpu_memset');

-- The first and last recorded moment of each rank; of the whole trace, where it is not of several.
CREATE PERFETTO TABLE _molprof_recorded AS
WITH
  -- The engine finds the ends of one column without reading all rows.
  bound AS (
    SELECT
      (SELECT ts FROM _molprof_recorded_slice ORDER BY ts LIMIT 1) AS ts,
      (SELECT ts FROM _molprof_recorded_slice ORDER BY ts DESC LIMIT 1) AS last_ts,
      (SELECT dur FROM _molprof_recorded_slice ORDER BY dur DESC LIMIT 1) AS longest_ns,
      -- Functions that mark phases may be around all of it.
      (SELECT MIN(ts) FROM molprof_phase) AS phase_ts,
      (SELECT MAX(ts + dur) FROM molprof_phase) AS phase_end
  )
SELECT
  NULL AS rank,
  MIN(bound.ts, IFNULL(bound.phase_ts, bound.ts)) AS ts,
  MAX(MAX(slice.ts + slice.dur), IFNULL(bound.phase_end, bound.ts)) AS ts_end
FROM bound
CROSS JOIN _molprof_recorded_slice AS slice
WHERE slice.ts >= bound.last_ts - bound.longest_ns AND (SELECT COUNT() FROM molprof_track_rank) = 0
GROUP BY bound.ts
UNION ALL
SELECT
  place.rank,
  MIN(slice.ts),
  MAX(slice.ts + slice.dur)
FROM _molprof_recorded_slice AS slice
JOIN molprof_track_rank AS place USING (track_id)
GROUP BY place.rank;

-- The first work of each device, and the one that ends last.
CREATE PERFETTO TABLE _molprof_device_edge AS
SELECT
  device,
  (
    SELECT work.id
    FROM _molprof_work AS work
    WHERE work.device IS edge.device
    ORDER BY work.ts, work.id
    LIMIT 1
  ) AS first_id,
  (
    SELECT work.id
    FROM _molprof_work AS work
    WHERE work.device IS edge.device
    ORDER BY work.ts_end DESC, work.id DESC
    LIMIT 1
  ) AS last_id
FROM molprof_device AS edge
ORDER BY device;

-- All idle time: gaps, and the time before the first and after the last work. The thread that made the call of `call_id`
-- is what the device waits for until `host_end`; before_id: the call of the work before a gap. is_long: findings tell
-- gaps of more than 1 ms, and the ends, apart from the others.
CREATE PERFETTO TABLE _molprof_idle AS
SELECT
  gap.device,
  'between' AS position,
  gap.ts,
  gap.ts_end,
  gap.next_id,
  gap.queue,
  gap.dur > 1000000 AS is_long,
  IIF(gap.queue > 1, MIN(gap.call_ts, gap.ts_end), gap.ts) AS host_end,
  next.call_id,
  IIF(
    gap.queue > 1,
    (
      SELECT last.call_id
      FROM _molprof_work AS last
      WHERE last.ts_end = gap.ts AND last.device IS next.device
      LIMIT 1
    ),
    NULL
  ) AS before_id
FROM _molprof_device_gap AS gap
CROSS JOIN _molprof_work AS next
WHERE next.id = gap.next_id
UNION ALL
SELECT
  first.device,
  'before',
  recorded.ts,
  first.ts,
  first.id,
  CASE
    WHEN first.call_id IS NULL THEN 0
    ELSE 2 + (
      SELECT first.ts - call.ts - call.dur > MAX(100000, call.ts + call.dur - recorded.ts)
      FROM _molprof_call AS call
      WHERE call.id = first.call_id
    )
  END,
  TRUE,
  IIF(first.call_id IS NULL, recorded.ts, MAX(recorded.ts, MIN(first.call_ts, first.ts))),
  first.call_id,
  NULL
FROM _molprof_device_edge AS edge
CROSS JOIN _molprof_work AS first
CROSS JOIN _molprof_recorded AS recorded
WHERE first.id = edge.first_id AND recorded.rank IS _molprof_work_rank!(first.id) AND recorded.ts < first.ts
UNION ALL
SELECT
  last.device,
  'after',
  last.ts_end,
  recorded.ts_end,
  NULL,
  IIF(last.call_id IS NULL, 0, 2),
  TRUE,
  IIF(last.call_id IS NULL, last.ts_end, recorded.ts_end),
  last.call_id,
  NULL
FROM _molprof_device_edge AS edge
CROSS JOIN _molprof_work AS last
CROSS JOIN _molprof_recorded AS recorded
WHERE last.id = edge.last_id AND recorded.rank IS _molprof_work_rank!(last.id) AND recorded.ts_end > last.ts_end;

-- Each track of a thread, and the one that holds its slices, which is no lane.
CREATE PERFETTO TABLE _molprof_own_track AS
SELECT
  track.id,
  (
    SELECT thread_track.id
    FROM thread_track
    JOIN thread USING (utid)
    WHERE thread.upid = track.upid AND thread.tid = track.tid
    ORDER BY thread_track.id
    LIMIT 1
  ) AS track_id
FROM _molprof_thread_track AS track
ORDER BY track.id;

-- What operators and calls may lie in that is neither: nothing, annotations, Python. The engine numbers the names around
-- slices; 0 is none.
CREATE PERFETTO TABLE _molprof_outside_stack AS
SELECT 0 AS stack_id
UNION
SELECT stack_id
FROM slice
WHERE category IS NULL
UNION
SELECT stack_id
FROM slice
-- The engine compares these without reading texts, unlike those of NOT IN.
WHERE
  category != 'cpu_op'
  AND category != 'cuda_runtime'
  AND category != 'cuda_driver'
  AND category != 'kernel'
  AND category != 'gpu_memcpy'
  AND category != 'gpu_memset';

-- Calls and operators that lie in no other.
CREATE PERFETTO TABLE _molprof_outermost AS
SELECT
  id,
  ts,
  dur,
  track_id
FROM slice
WHERE
  category IN ('cpu_op', 'cuda_runtime', 'cuda_driver')
  AND dur > 0
  -- The sign makes SQLite look the number up in a tree: the engine compares it with each of the others.
  AND +parent_stack_id IN (SELECT stack_id FROM _molprof_outside_stack)
  AND EXISTS(SELECT 1 FROM _molprof_idle WHERE host_end > ts)
ORDER BY id;

-- Where threads are in masks of constrained decoding.
CREATE PERFETTO TABLE _molprof_masking AS
SELECT DISTINCT
  lane.id,
  lane.ts,
  lane.ts_end - lane.ts AS dur,
  own.track_id
FROM molprof_phase AS phase
JOIN _molprof_phase_lane AS lane USING (id)
JOIN _molprof_thread_track AS track ON track.upid = lane.upid AND track.tid = lane.tid
JOIN _molprof_own_track AS own ON own.id = track.id
WHERE phase.phase GLOB 'mask_*' OR phase.phase GLOB 'grammar_*'
ORDER BY lane.ts, lane.id;

-- Slices (id, ts, dur, track_id) and masks.
CREATE PERFETTO MACRO _molprof_or_masking(slices TableOrSubquery)
RETURNS TableOrSubquery AS (
  SELECT id, ts, dur, track_id FROM $slices
  UNION ALL
  SELECT id, ts, dur, track_id FROM _molprof_masking
);

-- Time in which nothing is queued, by the thread that is waited for.
CREATE PERFETTO TABLE _molprof_host_idle AS
SELECT
  idle._auto_id AS id,
  idle.ts,
  idle.host_end - idle.ts AS dur,
  own.track_id
FROM _molprof_idle AS idle
CROSS JOIN _molprof_call AS call
CROSS JOIN _molprof_own_track AS own
WHERE idle.host_end > idle.ts AND call.id = idle.call_id AND own.id = call.track_id
ORDER BY idle.ts, idle._auto_id;

-- Without GPU work: each start of an operator, and the end of the recording, with the last end of any operator before it.
CREATE PERFETTO TABLE _molprof_operator_edge AS
SELECT
  id,
  ts,
  MAX(ts_end) OVER (
    ORDER BY ts, id
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS known_end
FROM (
  SELECT -1 AS id, ts, ts AS ts_end FROM _molprof_recorded WHERE rank IS NULL
  UNION ALL
  SELECT id, ts, ts + dur FROM slice WHERE category = 'cpu_op'
  UNION ALL
  SELECT (SELECT MAX(id) + 1 FROM slice), ts_end, ts_end FROM _molprof_recorded WHERE rank IS NULL
)
WHERE NOT EXISTS(SELECT 1 FROM _molprof_device_edge)
ORDER BY ts, id;

-- The part of gaps longer than 1 ms, and of the ends, in which nothing is queued; without GPU work the time in which no
-- thread is in an operator, on the one with most time in them.
CREATE PERFETTO TABLE _molprof_long_host_idle AS
SELECT host.*
FROM _molprof_host_idle AS host
CROSS JOIN _molprof_idle AS idle
WHERE idle._auto_id = host.id AND idle.is_long
UNION ALL
SELECT
  edge.id,
  edge.known_end,
  edge.ts - edge.known_end,
  (
    SELECT track_id
    FROM slice
    WHERE category = 'cpu_op'
    GROUP BY track_id
    ORDER BY SUM(dur) DESC, track_id
    LIMIT 1
  )
FROM _molprof_operator_edge AS edge
WHERE edge.ts > edge.known_end AND EXISTS(SELECT 1 FROM slice WHERE category = 'cpu_op')
ORDER BY 2, 1;

-- Where slices of a thread lie in stretches of it.
CREATE PERFETTO MACRO _molprof_common(stretches TableOrSubquery, slices TableOrSubquery)
RETURNS TableOrSubquery AS (
  SELECT
    id_0 AS id,
    id_1 AS slice_id,
    ts,
    ts + dur AS ts_end
  FROM _interval_intersect!(($stretches, $slices), (track_id))
);

-- By gap, what each thread that is waited for does when. Up to its first call or operator a thread does nothing: meanwhile
-- the one is waited for that started the last work.
CREATE PERFETTO TABLE _molprof_waited_for AS
SELECT *
FROM _molprof_host_idle
UNION ALL
SELECT
  host.id,
  host.ts,
  IFNULL(MIN(common.ts), host.ts + host.dur) - host.ts AS dur,
  own.track_id
FROM _molprof_host_idle AS host
CROSS JOIN _molprof_idle AS idle
CROSS JOIN _molprof_call AS before
CROSS JOIN _molprof_own_track AS own
LEFT JOIN _molprof_common!(_molprof_host_idle, _molprof_or_masking!(_molprof_outermost)) AS common
  ON common.id = host.id
WHERE
  idle._auto_id = host.id
  AND before.id = idle.before_id
  AND own.id = before.track_id
  AND own.track_id != host.track_id
GROUP BY host.id;

-- Time of each stretch in any of the slices: what two of them share counts once.
CREATE PERFETTO MACRO _molprof_time_in(stretches TableOrSubquery, slices TableOrSubquery)
RETURNS TableOrSubquery AS (
  SELECT
    id,
    SUM(added_ns) AS time_ns
  FROM (
    SELECT
      id,
      _molprof_added!(ts, ts_end, earlier) AS added_ns
    FROM _molprof_common!($stretches, $slices)
    WINDOW
      earlier AS (
        PARTITION BY id
        ORDER BY ts, slice_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      )
  )
  GROUP BY id
);

CREATE PERFETTO TABLE _molprof_idle_waited AS
SELECT
  call.id,
  call.ts,
  call.dur,
  call.track_id
FROM molprof_host_sync AS wait
CROSS JOIN _molprof_call AS call
WHERE call.id = wait.id AND call.dur > 0
ORDER BY call.ts, call.id;

CREATE PERFETTO VIEW _molprof_idle_called AS
SELECT
  id,
  ts,
  dur,
  track_id
FROM _molprof_call
WHERE dur > 0;

-- Of each gap: time in operators, calls or masks, of it in calls or masks, of it in host syncs or masks, of it in masks.
CREATE PERFETTO TABLE _molprof_idle_in AS
SELECT
  id,
  SUM(any_ns) AS any_ns,
  SUM(call_ns) AS call_ns,
  SUM(sync_ns) AS sync_ns,
  SUM(mask_ns) AS mask_ns
FROM (
  SELECT id, time_ns AS any_ns, 0 AS call_ns, 0 AS sync_ns, 0 AS mask_ns
  FROM _molprof_time_in!(_molprof_waited_for, _molprof_or_masking!(_molprof_outermost))
  UNION ALL
  SELECT id, 0, time_ns, 0, 0
  FROM _molprof_time_in!(_molprof_waited_for, _molprof_or_masking!(_molprof_idle_called))
  UNION ALL
  SELECT id, 0, 0, time_ns, 0
  FROM _molprof_time_in!(_molprof_waited_for, _molprof_or_masking!(_molprof_idle_waited))
  UNION ALL
  SELECT id, 0, 0, 0, time_ns
  FROM _molprof_time_in!(_molprof_waited_for, _molprof_masking)
)
GROUP BY id
ORDER BY id;

-- Gaps with queued work after which work of another stream begins: none of the same stream ended when they began.
CREATE PERFETTO TABLE _molprof_other_stream_gap AS
SELECT idle._auto_id AS id
FROM _molprof_idle AS idle
CROSS JOIN _molprof_work AS next
CROSS JOIN _molprof_work AS last
WHERE
  idle.queue IN (1, 3)
  AND idle.ts_end - idle.ts >= 5000
  AND next.id = idle.next_id
  AND last.ts_end = idle.ts
  AND last.device IS next.device
GROUP BY idle._auto_id
HAVING NOT MAX(next.stream IS NULL OR last.stream IS NULL OR last.stream = next.stream)
ORDER BY idle._auto_id;

-- Idle time by cause, a row for each of a gap.
CREATE PERFETTO TABLE _molprof_idle_part AS
WITH
  host AS (
    SELECT host.id, 'cpu_outside' AS cause, host.dur - IFNULL(inside.any_ns, 0) AS time_ns
    FROM _molprof_host_idle AS host
    LEFT JOIN _molprof_idle_in AS inside USING (id)
    UNION ALL
    SELECT id, 'cpu_operators', any_ns - call_ns
    FROM _molprof_idle_in
    UNION ALL
    SELECT id, 'cpu_calls', call_ns - sync_ns
    FROM _molprof_idle_in
    UNION ALL
    SELECT id, 'cpu_waited', sync_ns - mask_ns
    FROM _molprof_idle_in
    UNION ALL
    SELECT id, 'cpu_masks', mask_ns
    FROM _molprof_idle_in
  )
SELECT
  _auto_id AS id,
  device,
  position,
  is_long,
  CASE
    WHEN queue = 2 THEN 'launching'
    WHEN queue < 3 AND ts_end - ts < 5000 THEN 'short'
    WHEN queue = 0 THEN 'not_recorded'
    WHEN EXISTS(SELECT 1 FROM _molprof_other_stream_gap AS other WHERE other.id = idle._auto_id) THEN 'other_stream'
    ELSE 'other'
  END AS cause,
  ts_end - host_end AS time_ns
FROM _molprof_idle AS idle
WHERE ts_end != host_end
UNION ALL
SELECT
  host.id,
  idle.device,
  idle.position,
  idle.is_long,
  host.cause,
  host.time_ns
FROM host
CROSS JOIN _molprof_idle AS idle
WHERE host.time_ns != 0 AND idle._auto_id = host.id;

-- The engine searches for the parts of a gap.
CREATE PERFETTO INDEX _molprof_idle_part_id ON _molprof_idle_part(id);

-- The same added up: the rows of one table are grouped several times as fast as those of a join.
CREATE PERFETTO TABLE _molprof_idle_sum AS
SELECT
  device,
  position,
  is_long,
  cause,
  COUNT() AS count,
  SUM(time_ns) AS time_ns,
  MAX(time_ns) AS longest_ns
FROM _molprof_idle_part
GROUP BY device, position, is_long, cause;

-- One row per gap, in order of device and start.
CREATE PERFETTO VIEW molprof_idle_gap(
  -- Device number as text.
  device STRING,
  -- Start of the gap, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Length of the gap, ns.
  dur DURATION,
  -- The cause that takes most of it.
  cause STRING,
  -- The kernel, copy or set that ended it; null after the last one.
  next_id JOINID(slice.id),
  -- between: after one piece of work and before another; before the first, or after the last of the device.
  position STRING
) AS
SELECT
  IFNULL(idle.device, (SELECT device FROM _molprof_only_device)) AS device,
  idle.ts,
  idle.ts_end - idle.ts AS dur,
  (
    SELECT part.cause
    FROM _molprof_idle_part AS part
    WHERE part.id = idle._auto_id
    ORDER BY part.time_ns DESC, part.cause
    LIMIT 1
  ) AS cause,
  idle.next_id,
  idle.position
FROM _molprof_idle AS idle
ORDER BY device, idle.ts;

-- Idle time by device, position and cause, longest first. Those between the first and last work add up to the idle time
-- of molprof.devices.
CREATE PERFETTO TABLE molprof_idle_cause(
  -- Device number as text.
  device STRING,
  -- between the first and last work of the device, before the first, or after the last.
  position STRING,
  -- What the time went to.
  cause STRING,
  -- Gaps in which it took any time.
  count LONG,
  -- Sum of that time, ns.
  time_ns DURATION,
  -- Share of the device's idle time in that position, 0 to 1.
  idle_ratio DOUBLE,
  -- Most in a single gap, ns.
  longest_ns DURATION
) AS
SELECT
  IFNULL(device, (SELECT device FROM _molprof_only_device)) AS device,
  position,
  cause,
  SUM(count) AS count,
  SUM(time_ns) AS time_ns,
  1.0 * SUM(time_ns) / SUM(SUM(time_ns)) OVER (PARTITION BY device, position) AS idle_ratio,
  MAX(longest_ns) AS longest_ns
FROM _molprof_idle_sum
GROUP BY device, position, cause
ORDER BY device, position, time_ns DESC, cause;
