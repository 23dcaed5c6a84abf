-- What each recorded phase did: host time, launches, GPU work, host syncs and operators.
--
-- Example:
--   SELECT phase, count, host_ns, launches, graph_launches, kernels, gpu_ns, syncs, sync_ns
--   FROM molprof_phase_summary
--   ORDER BY phase IS NULL, host_ns DESC, phase;

INCLUDE PERFETTO MODULE molprof.call_facts;
INCLUDE PERFETTO MODULE molprof.call_phases;
INCLUDE PERFETTO MODULE molprof.operators;
INCLUDE PERFETTO MODULE molprof.phases;

-- One row per phase, in order of start, then one for what is outside any phase (phase_id null).
CREATE PERFETTO TABLE molprof_phase_work(
  -- The phase's slice; null for what is outside any phase.
  phase_id JOINID(slice.id),
  -- Name of the phase; null for what is outside any.
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
  -- Leaf operators: those that call no other.
  leaf_operators LONG
) AS
WITH
  -- Leaf operators of each phase: the engine counts those between two times on a track without reading them.
  counted AS MATERIALIZED (
    SELECT
      lane.id AS phase_id,
      COUNT() AS leaf_operators
    FROM _molprof_phase_lane AS lane
    CROSS JOIN _molprof_operator_track AS track
    CROSS JOIN _molprof_counted_operator AS leaf
    WHERE
      track.upid = lane.upid
      AND track.tid = lane.tid
      AND leaf.track_id = track.id
      AND leaf.ts >= lane.ts
      AND leaf.ts < lane.ts_end
    GROUP BY lane.id
  ),
  -- All of them, also of a foreign trace with GPU calls.
  leaf AS MATERIALIZED (
    SELECT
      IIF(
        EXISTS(SELECT 1 FROM _molprof_counted_operator),
        (SELECT COUNT() FROM _molprof_counted_operator),
        (SELECT COUNT() FROM molprof_leaf_operator)
      ) - (SELECT IFNULL(SUM(leaf_operators), 0) FROM counted) AS outside
  ),
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
    LEFT JOIN molprof_call_phase AS place ON place.id = fact.call_id
    UNION ALL
    SELECT NULL, 0, 0, kernels, gpu_ns, 0, 0, 0
    FROM molprof_work_without_call
    UNION ALL
    SELECT phase_id, 0, 0, 0, 0, 0, 0, leaf_operators
    FROM counted
    UNION ALL
    SELECT NULL, 0, 0, 0, 0, 0, 0, outside
    FROM leaf
    WHERE outside > 0
    UNION ALL
    -- A phase that did nothing has a row too.
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
    GROUP BY phase_id
  )
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
FROM total
LEFT JOIN molprof_phase AS phase ON phase.id = total.phase_id
ORDER BY phase.ts IS NULL, phase.ts, phase.id;

-- The same by phase, most host time first; what is outside any phase last.
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
