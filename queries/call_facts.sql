-- Contribution of each call to its step or phase: launches, GPU work, host syncs.
--
-- Example:
--   SELECT call.name, SUM(fact.kernels) AS kernels, SUM(fact.gpu_ns) AS gpu_ns, SUM(fact.sync_ns) AS sync_ns
--   FROM molprof_call_fact AS fact
--   JOIN molprof_gpu_call AS call
--     ON call.id = fact.call_id
--   GROUP BY call.name
--   ORDER BY gpu_ns DESC, call.name;

INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.host_syncs;
INCLUDE PERFETTO MODULE molprof.launches;

-- One row per call that is a launch or host sync, or starts GPU work.
CREATE PERFETTO VIEW molprof_call_fact(
  -- The call's slice.
  call_id JOINID(slice.id),
  -- 1 if it starts a kernel, else 0.
  launches LONG,
  -- 1 if it starts a graph, else 0.
  graph_launches LONG,
  -- Kernels that it started.
  kernels LONG,
  -- Time of the kernels, copies and sets that it started, ns; concurrent work counts each.
  gpu_ns DURATION,
  -- 1 if it is a host sync, else 0.
  syncs LONG,
  -- Time in the host sync, ns, else 0.
  sync_ns DURATION
) AS
SELECT
  call.id AS call_id,
  IFNULL(call.kind = 'launch', 0) AS launches,
  IFNULL(call.kind = 'graph_launch', 0) AS graph_launches,
  IFNULL(work.kernels, 0) AS kernels,
  IFNULL(work.gpu_ns, 0) AS gpu_ns,
  wait.id IS NOT NULL AS syncs,
  IFNULL(wait.dur, 0) AS sync_ns
FROM molprof_gpu_call AS call
LEFT JOIN molprof_call_work AS work ON work.call_id = call.id
LEFT JOIN molprof_host_sync AS wait ON wait.id = call.id
WHERE call.kind IS NOT NULL OR work.call_id IS NOT NULL OR wait.id IS NOT NULL;
