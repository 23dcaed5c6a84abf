-- Tiny kernels: launching them takes longer than running them.
--
-- Example:
--   SELECT name, count, time_ns
--   FROM molprof_tiny_kernel
--   ORDER BY time_ns DESC, name;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Kernels below 10 µs, by name.
CREATE PERFETTO VIEW molprof_tiny_kernel(
  -- Name of the kernels in this row.
  name STRING,
  -- How many there are.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
) AS
SELECT
  name,
  COUNT() AS count,
  SUM(dur) AS time_ns
FROM molprof_gpu_work
WHERE category = 'kernel' AND dur < 10000
GROUP BY name
ORDER BY name;
