-- GPU work, operators and runtime calls by name.
--
-- Example:
--   SELECT category, name, count, time_ns
--   FROM molprof_operation_total
--   ORDER BY time_ns DESC, category, name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.host_totals;
INCLUDE PERFETTO MODULE molprof.work_totals;

-- One row per category and name, in that order. Times of operators include those that they call.
CREATE PERFETTO VIEW molprof_operation_total(
  -- kernel, gpu_memcpy, gpu_memset, cpu_op, cuda_runtime or cuda_driver.
  category STRING,
  -- Name as recorded; '(no name)' for an empty or missing one.
  name STRING,
  -- Runs.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
) AS
SELECT *
FROM molprof_host_total
UNION ALL
SELECT *
FROM molprof_work_total
ORDER BY category, name;
