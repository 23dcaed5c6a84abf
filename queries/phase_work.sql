-- What each phase did: host time, launches, GPU work, waits and operators. Figures of the recorded window.
--
-- Example:
--   SELECT phase, count, host_ns, launches, kernels, gpu_ns, syncs, sync_ns
--   FROM molprof_phase_summary
--   ORDER BY phase IS NULL, host_ns DESC, phase;

INCLUDE PERFETTO MODULE molprof.call_facts;

INCLUDE PERFETTO MODULE molprof.operators;

INCLUDE PERFETTO MODULE molprof.phases;

INCLUDE PERFETTO MODULE molprof.placement;

-- One row per phase, in order of start, and one for what lies outside any phase (phase_id null), last.
CREATE PERFETTO TABLE molprof_phase_work(
  -- The phase's slice; null for what lies outside any phase.
  phase_id JOINID(slice.id),
  -- Name of the phase; null for what lies outside any.
  phase STRING,
  -- Batch, from 0; null as above.
  batch LONG,
  -- Step of the batch; null for template, tokenize and as above.
  step LONG,
  -- Time on the host, profiler's cost included, ns; null as above.
  host_ns DURATION,
  -- Calls that start a kernel.
  launches LONG,
  -- Calls that start a graph.
  graph_launches LONG,
  -- Kernels whose launching call lies in the phase.
  kernels LONG,
  -- Time of kernels, copies and sets whose call lies in the phase, ns; side by side counts each.
  gpu_ns DURATION,
  -- Calls that made the CPU wait for the GPU.
  syncs LONG,
  -- Time in those calls, ns.
  sync_ns DURATION,
  -- Operators that call no other operator.
  leaf_operators LONG
)
AS
WITH
  fact AS (
    SELECT
      place.phase_id,
      fact.launches,
      fact.graph_launches,
      fact.kernels,
      fact.gpu_ns,
      fact.syncs,
      fact.sync_ns,
      0 AS leaf_operators
    FROM molprof_call_fact AS fact
    LEFT JOIN molprof_call_phase AS place
      ON place.id = fact.call_id
    UNION ALL
    SELECT NULL, 0, 0, kernels, gpu_ns, 0, 0, 0
    FROM molprof_work_without_call
    UNION ALL
    SELECT place.phase_id, 0, 0, 0, 0, 0, 0, 1
    FROM molprof_leaf_operator AS leaf
    LEFT JOIN molprof_call_phase AS place
      ON place.id = leaf.id
    UNION ALL
    -- So that a phase that did nothing has its row too.
    SELECT id, 0, 0, 0, 0, 0, 0, 0
    FROM molprof_phase
  ),
  total AS (
    SELECT
      phase_id,
      SUM(launches) AS launches,
      SUM(graph_launches) AS graph_launches,
      SUM(kernels) AS kernels,
      SUM(gpu_ns) AS gpu_ns,
      SUM(syncs) AS syncs,
      SUM(sync_ns) AS sync_ns,
      SUM(leaf_operators) AS leaf_operators
    FROM fact
    GROUP BY
      phase_id
  )
SELECT
  total.phase_id,
  phase.phase,
  phase.batch,
  phase.step,
  phase.dur AS host_ns,
  total.launches,
  total.graph_launches,
  total.kernels,
  total.gpu_ns,
  total.syncs,
  total.sync_ns,
  total.leaf_operators
FROM total
LEFT JOIN molprof_phase AS phase
  ON phase.id = total.phase_id
ORDER BY
  phase.ts IS NULL,
  phase.ts,
  phase.id;

-- The same by name of phase, the most host time first; what lies outside any phase last.
CREATE PERFETTO VIEW molprof_phase_summary(
  -- Name of the phase; null for what lies outside any.
  phase STRING,
  -- Phases of that name.
  count LONG,
  -- Time on the host, profiler's cost included, ns; null for what lies outside any phase.
  host_ns DURATION,
  -- Calls that start a kernel.
  launches LONG,
  -- Calls that start a graph.
  graph_launches LONG,
  -- Kernels whose launching call lies in the phase.
  kernels LONG,
  -- Time of kernels, copies and sets whose call lies in the phase, ns.
  gpu_ns DURATION,
  -- Calls that made the CPU wait for the GPU.
  syncs LONG,
  -- Time in those calls, ns.
  sync_ns DURATION,
  -- Operators that call no other operator.
  leaf_operators LONG
)
AS
SELECT
  phase,
  COUNT(phase_id) AS count,
  SUM(host_ns) AS host_ns,
  SUM(launches) AS launches,
  SUM(graph_launches) AS graph_launches,
  SUM(kernels) AS kernels,
  SUM(gpu_ns) AS gpu_ns,
  SUM(syncs) AS syncs,
  SUM(sync_ns) AS sync_ns,
  SUM(leaf_operators) AS leaf_operators
FROM molprof_phase_work
GROUP BY
  phase
ORDER BY
  phase IS NULL,
  host_ns DESC,
  phase;
