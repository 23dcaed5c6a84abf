-- Device time that launches without recorded GPU work may have taken.
--
-- Example:
--   SELECT place, device, inside_ns, outside_ns
--   FROM molprof_missing_time
--   ORDER BY place, device;

-- Device time without recorded work since the first launch without work: what the missing work may have taken.
CREATE PERFETTO VIEW molprof_missing_time(
  -- Place of the launches, as in molprof_missing_work.
  place STRING,
  -- Device number as text.
  device STRING,
  -- Idle time of the device between its recorded work, ns.
  inside_ns DURATION,
  -- Time before its first and after its last recorded work, ns.
  outside_ns DURATION
) AS
SELECT
  place,
  device,
  inside_ns,
  outside_ns
FROM _molprof_fact_missing_time
ORDER BY place, device;
