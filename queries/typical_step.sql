-- The recorded step of median duration in detail: its phases, calls, operators and GPU work.
--
-- The median is over decode steps if any are recorded, else over all; of an even number, the shorter of the middle two.
--
-- Example:
--   SELECT kind, device_stream, class, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_step_interval
--   GROUP BY kind, device_stream, class
--   ORDER BY kind, device_stream, time_ns DESC, class;

INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.kernel_classes;
INCLUDE PERFETTO MODULE molprof.marked_phases;
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.step_placement;
INCLUDE PERFETTO MODULE molprof.steps;

-- The step; no row without recorded steps.
CREATE PERFETTO TABLE molprof_typical_step(
  -- The annotation's slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host, profiler's cost included, ns.
  dur DURATION,
  -- The annotation, as recorded.
  name STRING,
  -- molprof, vllm, sglang or profiler.
  source STRING,
  -- prefill, decode, mixed or another kind of molprof.steps; null for profiler.
  kind STRING,
  -- Steps over which it is the median.
  steps LONG
) AS
WITH
  chosen AS (
    SELECT *
    FROM molprof_any_step
    WHERE kind IS 'decode' OR NOT EXISTS(SELECT 1 FROM molprof_any_step WHERE kind = 'decode')
  )
SELECT
  id,
  ts,
  dur,
  name,
  source,
  kind,
  (SELECT COUNT() FROM chosen) AS steps
FROM chosen
ORDER BY dur, ts, id
LIMIT 1 OFFSET (SELECT (COUNT() - 1) / 2 FROM chosen);

-- The outermost operators of the step; only where no GPU calls are recorded.
CREATE PERFETTO TABLE _molprof_outermost_operator AS
SELECT DISTINCT
  top.id,
  top.ts,
  top.dur,
  top.name
FROM _molprof_fact_operator_step AS leaf
JOIN molprof_typical_step AS step ON step.id = leaf.step_id
JOIN slice AS top ON top.id = leaf.top_id;

-- Phases, calls and work of the step, in order of start.
CREATE PERFETTO TABLE molprof_step_interval(
  -- The slice.
  id JOINID(slice.id),
  -- phase; launch (also of graphs); wait (a host sync); operator (outermost ones, where no GPU calls are recorded); gpu
  -- (work that the step's calls started, whenever it ran, and other work that ran during the step).
  kind STRING,
  -- device/stream of GPU work; null for any other.
  device_stream STRING,
  -- Phase, or name of the call, operator or work.
  name STRING,
  -- Class of GPU work, name of an operator; null for any other.
  class STRING,
  -- From the start of the step to its own start, ns; below 0 for work of an earlier step that still ran.
  start_ns LONG,
  -- Duration, ns.
  dur DURATION,
  -- False for GPU work of another step, or whose call is not recorded.
  own BOOL
) AS
WITH
  placed AS (
    SELECT place.id
    FROM molprof_call_step AS place
    JOIN molprof_typical_step AS step ON step.id = place.step_id
  ),
  -- From the start of the step, or of work that it started, to the end of both.
  span AS (
    SELECT
      MIN(step.ts, IFNULL(MIN(work.ts), step.ts)) AS ts,
      MAX(step.ts + step.dur, IFNULL(MAX(work.ts_end), step.ts)) AS ts_end
    FROM molprof_typical_step AS step
    LEFT JOIN placed
    LEFT JOIN _molprof_work AS work ON work.call_id = placed.id
  ),
  item AS (
    SELECT phase.id, 'phase' AS kind, NULL AS device_stream, phase.phase AS name, NULL AS class, phase.ts, phase.dur, 1 AS own
    FROM molprof_phase AS phase
    JOIN molprof_step AS own ON own.batch = phase.batch AND own.step = phase.step
    JOIN molprof_typical_step AS step ON step.id = own.id
    UNION ALL
    -- Of an engine or of transformers, whole ones of the step's thread; they may contain each other.
    SELECT phase.id, 'phase', NULL, phase.phase, NULL, phase.ts, phase.dur, 1
    FROM molprof_typical_step AS step
    JOIN molprof_any_step AS place USING (id)
    JOIN molprof_phase AS phase
      ON phase.upid = place.upid
      AND phase.tid = place.tid
      AND phase.ts >= step.ts
      AND phase.ts + phase.dur <= step.ts + step.dur
    WHERE step.source != 'molprof' AND phase.program != 'molprof' AND phase.dur > 0
    UNION ALL
    SELECT call.id, 'launch', NULL, call.name, NULL, call.ts, call.dur, 1
    FROM molprof_gpu_call AS call
    JOIN placed USING (id)
    WHERE call.kind IS NOT NULL
    UNION ALL
    SELECT wait.id, 'wait', NULL, wait.name, NULL, wait.ts, wait.dur, 1
    FROM _molprof_fact_host_sync AS sync
    JOIN placed USING (id)
    JOIN slice AS wait USING (id)
    UNION ALL
    SELECT id, 'operator', NULL, name, name, ts, dur, 1
    FROM _molprof_outermost_operator
    UNION ALL
    SELECT
      work.id,
      'gpu',
      work.device || '/' || IFNULL(work.stream, '-'),
      class.name,
      class.class,
      work.ts,
      work.dur,
      IFNULL(work.call_id IN (SELECT id FROM placed), 0)
    -- In this order, the engine searches the work of that time.
    FROM span
    CROSS JOIN molprof_typical_step AS step
    CROSS JOIN _molprof_work AS work
      ON work.ts <= span.ts_end
      AND work.ts_end >= span.ts
      AND (
        (work.ts < step.ts + step.dur AND work.ts_end > step.ts)
        OR work.call_id IN (SELECT id FROM placed)
      )
    CROSS JOIN slice AS named ON named.id = work.id
    JOIN molprof_work_class AS class
      ON class.category = work.category AND class.name = IFNULL(named.name, '(no name)')
  )
SELECT
  item.id,
  item.kind,
  item.device_stream,
  item.name,
  item.class,
  item.ts - step.ts AS start_ns,
  item.dur,
  item.own
FROM item
CROSS JOIN molprof_typical_step AS step
ORDER BY item.ts, item.id;
