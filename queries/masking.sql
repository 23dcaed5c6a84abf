-- Masking: the processor phase, and the operations that write masks.
--
-- Example:
--   SELECT kind, name, count, time_ns
--   FROM molprof_masking_candidate
--   ORDER BY kind, time_ns DESC, name;

INCLUDE PERFETTO MODULE molprof.call_phases;
INCLUDE PERFETTO MODULE molprof.kernel_kinds;
INCLUDE PERFETTO MODULE molprof.operation_totals;
INCLUDE PERFETTO MODULE molprof.phase_work;
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.placement;

-- The processor phase of each recorded step, in order of batch and step. Empty for foreign traces.
CREATE PERFETTO VIEW molprof_masking_step(
  -- Batch, from 0.
  batch LONG,
  -- Step of the batch.
  step LONG,
  -- Time of the phase on the host, profiler's cost included, ns.
  host_ns DURATION,
  -- Time of the GPU work that it started, ns.
  gpu_ns DURATION,
  -- Calls that start a kernel.
  launches LONG,
  -- Kernels that they started.
  kernels LONG,
  -- Host syncs.
  syncs LONG,
  -- Leaf operators: those that call no other.
  leaf_operators LONG
) AS
SELECT
  batch,
  step,
  host_ns,
  gpu_ns,
  launches,
  kernels,
  syncs,
  leaf_operators
FROM molprof_phase_work
WHERE phase = 'processor'
ORDER BY batch, step;

-- Kernels and operators that can write a mask, kind masking of molprof.kernel_kinds, by name, longest total time first:
-- of the processor phase in molprof's traces, of the whole trace in foreign ones. Do not add up rows of kind operator:
-- their times include the operators that they call.
CREATE PERFETTO VIEW molprof_masking_candidate(
  -- kernel or operator.
  kind STRING,
  -- Name as recorded.
  name STRING,
  -- Kernels or calls.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
) AS
WITH
  -- Few names match, and the engine finds slices by name without looking at all.
  matching AS MATERIALIZED (
    SELECT DISTINCT
      work.category,
      work.name
    FROM molprof_operation_total AS work
    JOIN molprof_kind_pattern AS pattern
      ON LOWER(work.name) GLOB pattern.pattern AND NOT LOWER(work.name) GLOB pattern.unless
    WHERE pattern.kind = 'masking' AND work.category IN ('cpu_op', 'kernel')
  ),
  place AS (
    SELECT *
    FROM molprof_call_phase
    UNION ALL
    SELECT *
    FROM molprof_work_phase
  ),
  found AS (
    SELECT
      slice.category,
      slice.name,
      1 AS count,
      IFNULL(overrun.dur, slice.dur) AS time_ns
    FROM matching
    CROSS JOIN slice
    LEFT JOIN _molprof_fact_overrun AS overrun ON overrun.id = slice.id
    JOIN place ON place.id = slice.id
    JOIN molprof_phase AS phase ON phase.id = place.phase_id
    WHERE slice.category = matching.category AND slice.name = matching.name AND phase.phase = 'processor'
    UNION ALL
    SELECT total.*
    FROM matching
    JOIN molprof_operation_total AS total USING (category, name)
    WHERE NOT EXISTS(SELECT 1 FROM molprof_phase WHERE program = 'molprof')
  )
SELECT
  IIF(category = 'kernel', 'kernel', 'operator') AS kind,
  name,
  SUM(count) AS count,
  SUM(time_ns) AS time_ns
FROM found
GROUP BY category, name
ORDER BY kind, time_ns DESC, name;
