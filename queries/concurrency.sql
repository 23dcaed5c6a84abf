-- Time of each device by the number of kernels, copies and sets that ran concurrently.
--
-- Example:
--   SELECT device, running, time_ns, span_ratio
--   FROM molprof_concurrency
--   ORDER BY device, running;

-- Time of each device by the number of kernels, copies and sets that run, from its first work to the end of its last.
-- The row with 0 is the idle time; the rows of a device add up to its span.
CREATE PERFETTO VIEW molprof_concurrency(
  -- Device number as text.
  device STRING,
  -- Kernels, copies and sets that run at the same time.
  running LONG,
  -- Time with exactly that many, ns.
  time_ns DURATION,
  -- Share of the device's span, 0 to 1.
  span_ratio DOUBLE
) AS
SELECT
  device,
  running,
  time_ns,
  1.0 * time_ns / SUM(time_ns) OVER (PARTITION BY device) AS span_ratio
FROM _molprof_fact_concurrency
ORDER BY device, running;
