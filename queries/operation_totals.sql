-- GPU work, operators and runtime calls added up by name, once for all modules that rank or class them.
--
-- Example:
--   SELECT category, name, count, time_ns
--   FROM molprof_operation_total
--   ORDER BY time_ns DESC, category, name
--   LIMIT 20;

-- One row per category and name, in that order. Operators include those that they call.
CREATE PERFETTO TABLE molprof_operation_total(
  -- kernel, gpu_memcpy, gpu_memset, cpu_op, cuda_runtime or cuda_driver.
  category STRING,
  -- Name as recorded; '(no name)' for an empty one, which the trace processor does not tell from none.
  name STRING,
  -- Runs.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
)
AS
SELECT
  category,
  IFNULL(name, '(no name)') AS name,
  COUNT() AS count,
  SUM(dur) AS time_ns
FROM slice
WHERE
  category IN ('kernel', 'gpu_memcpy', 'gpu_memset', 'cpu_op', 'cuda_runtime', 'cuda_driver')
GROUP BY
  category,
  name
ORDER BY
  category,
  name;
