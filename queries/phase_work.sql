-- Work of each recorded phase: host time, launches, GPU work, host syncs and operators.
--
-- Example:
--   SELECT phase, count, host_ns, launches, graph_launches, kernels, gpu_ns, syncs, sync_ns
--   FROM molprof_phase_summary
--   ORDER BY phase IS NULL, host_ns DESC, phase;

INCLUDE PERFETTO MODULE molprof.phases;

-- One row per phase, in order of start, then one for time outside phases (phase_id null).
CREATE PERFETTO TABLE molprof_phase_work(
  -- The phase's slice; null for time outside phases.
  phase_id JOINID(slice.id),
  -- Name of the phase; null for time outside phases.
  phase STRING,
  -- Batch, from 0; null as above.
  batch LONG,
  -- Step of the batch; null for set-up phases and as above.
  step LONG,
  -- Time on the host outside the phases that it contains, profiler's cost included, ns; null as above.
  host_ns DURATION,
  -- Calls that start a kernel.
  launches LONG,
  -- Calls that start a graph.
  graph_launches LONG,
  -- Kernels whose launch is in the phase.
  kernels LONG,
  -- Time of kernels, copies and sets whose call is in the phase, ns; concurrent work counts each.
  gpu_ns DURATION,
  -- Host syncs.
  syncs LONG,
  -- Time in host syncs, ns.
  sync_ns DURATION,
  -- Leaf operators: those that call no other; null where they are not counted: GPU calls are recorded, and molprof did not
  -- capture the trace.
  leaf_operators LONG
) AS
SELECT
  total.phase_id,
  phase.phase,
  phase.batch,
  phase.step,
  phase.own_ns AS host_ns,
  total.launches,
  total.graph_launches,
  total.kernels,
  total.gpu_ns,
  total.syncs,
  total.sync_ns,
  total.leaf_operators
FROM _molprof_fact_phase_sum AS total
LEFT JOIN molprof_phase AS phase ON phase.id = total.phase_id
WHERE
  total.phase_id IS NOT NULL
  OR launches + graph_launches + kernels + gpu_ns + syncs + IFNULL(leaf_operators, 0) > 0
ORDER BY phase.ts IS NULL, phase.ts, phase.id;

-- The same by phase, most host time first; time outside phases last.
CREATE PERFETTO VIEW molprof_phase_summary(
  phase STRING,
  -- Phases of that name.
  count LONG,
  -- Time on the host, profiler's cost included, ns; null outside any phase.
  host_ns DURATION,
  launches LONG,
  graph_launches LONG,
  kernels LONG,
  -- Time of kernels, copies and sets whose call is in the phase, ns.
  gpu_ns DURATION,
  syncs LONG,
  sync_ns DURATION,
  -- Leaf operators; null where they are not counted.
  leaf_operators LONG
) AS
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
GROUP BY phase
ORDER BY phase IS NULL, host_ns DESC, phase;
