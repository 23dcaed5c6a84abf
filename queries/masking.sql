-- Masking: the processor phase, and which operations write masks.
--
-- Example:
--   SELECT kind, name, count, time_ns
--   FROM molprof_masking_candidate
--   ORDER BY kind, time_ns DESC, name;

INCLUDE PERFETTO MODULE molprof.phase_work;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.kernel_kinds;

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
)
AS
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
WHERE
  phase = 'processor'
ORDER BY
  batch,
  step;

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
)
AS
WITH
  operation AS (
    SELECT
      id,
      'operator' AS kind,
      name,
      dur
    FROM slice
    WHERE
      category = 'cpu_op'
    UNION ALL
    SELECT
      id,
      'kernel' AS kind,
      name,
      dur
    FROM molprof_gpu_work
    WHERE
      category = 'kernel'
  ),
  place AS (
    SELECT
      id,
      phase_id
    FROM molprof_call_phase
    UNION ALL
    SELECT
      id,
      phase_id
    FROM molprof_work_phase
  )
SELECT
  operation.kind,
  operation.name,
  COUNT() AS count,
  SUM(operation.dur) AS time_ns
FROM operation
LEFT JOIN place
  ON place.id = operation.id
LEFT JOIN molprof_phase AS phase
  ON phase.id = place.phase_id
WHERE
  EXISTS(
    SELECT
      1
    FROM molprof_kind_pattern AS pattern
    WHERE
      pattern.kind = 'masking'
      AND LOWER(operation.name) GLOB pattern.pattern
      AND NOT LOWER(operation.name) GLOB pattern.unless
  )
  AND (phase.phase = 'processor' OR (SELECT COUNT() FROM molprof_phase) = 0)
GROUP BY
  operation.kind,
  operation.name
ORDER BY
  operation.kind,
  time_ns DESC,
  operation.name;
