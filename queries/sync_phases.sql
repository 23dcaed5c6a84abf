-- Host syncs by phase.
--
-- Example:
--   SELECT phase, name, operator, count, time_ns
--   FROM molprof_host_sync_phase
--   ORDER BY time_ns DESC, phase, name, operator;

INCLUDE PERFETTO MODULE molprof.host_syncs;
INCLUDE PERFETTO MODULE molprof.phases;

-- Host syncs by phase, name and operator, longest total time first.
CREATE PERFETTO VIEW molprof_host_sync_phase(
  -- Phase in which the calls began; null outside any, and for foreign traces.
  phase STRING,
  -- Name of the runtime or driver function.
  name STRING,
  -- Innermost enclosing operator of the calls; null where there is none.
  operator STRING,
  -- Calls.
  count LONG,
  -- Time in the calls, ns: the wait and the calls themselves.
  time_ns DURATION,
  -- Longest single call, ns.
  longest_ns DURATION
) AS
SELECT
  phase.phase,
  wait.name,
  wait.operator,
  COUNT() AS count,
  SUM(wait.dur) AS time_ns,
  MAX(wait.dur) AS longest_ns
FROM molprof_host_sync AS wait
LEFT JOIN molprof_phase AS phase ON phase.id = wait.phase_id
GROUP BY phase.phase, wait.name, wait.operator
ORDER BY time_ns DESC, phase.phase, wait.name, wait.operator;
