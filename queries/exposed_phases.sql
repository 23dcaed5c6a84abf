-- Exposed and hidden time of phases: their overlap with work of other phases.
--
-- Example:
--   SELECT phase, count, busy_ns, exposed_ns, hidden_ns
--   FROM molprof_exposed_phase
--   ORDER BY exposed_ns DESC, phase;

-- Phases by the work whose call began in them, the longest exposed time first.
CREATE PERFETTO VIEW molprof_exposed_phase(
  -- Name of the phase; null for work outside any, and work without a recorded call.
  phase STRING,
  -- Kernels, copies and sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Time in which any of them runs, ns.
  busy_ns DURATION,
  -- The part of it in which no work of another phase runs, ns.
  exposed_ns DURATION,
  -- The rest, ns.
  hidden_ns DURATION
) AS
SELECT
  phase,
  count,
  time_ns,
  busy_ns,
  exposed_ns,
  busy_ns - exposed_ns AS hidden_ns
FROM _molprof_fact_exposed_phase
ORDER BY exposed_ns DESC, phase;
