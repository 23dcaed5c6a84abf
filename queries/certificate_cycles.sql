-- Idle time of each device between runs of the profiler in one file.
--
-- Example:
--   SELECT device, idle_ns
--   FROM molprof_idle_between_runs
--   ORDER BY device;

INCLUDE PERFETTO MODULE molprof.profiler_runs;

-- Idle time of each device between runs of the profiler: nothing recorded it.
CREATE PERFETTO VIEW molprof_idle_between_runs(
  -- Device number as text.
  device STRING,
  -- Idle time between runs, ns.
  idle_ns DURATION
) AS
SELECT
  device,
  idle_ns
FROM _molprof_fact_idle_between_runs
ORDER BY device;
