-- Operators and runtime calls by name: sums for the modules that rank them.
--
-- Example:
--   SELECT category, name, count, time_ns
--   FROM molprof_host_total
--   ORDER BY time_ns DESC, category, name
--   LIMIT 20;

-- One row per category and name, in that order. Times of operators include those that they call.
CREATE PERFETTO VIEW molprof_host_total(
  -- cpu_op, cuda_runtime or cuda_driver.
  category STRING,
  -- Name as recorded; '(no name)' for an empty or missing one.
  name STRING,
  -- Runs.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
) AS
SELECT
  category,
  name,
  count,
  time_ns
FROM _molprof_fact_host_total
ORDER BY category, name;

-- Attention operators by name, which shows the backend.
CREATE PERFETTO VIEW molprof_attention_operator(
  -- Name as recorded.
  name STRING,
  count LONG,
  -- Sum of their times with the operators that they call, ns.
  time_ns DURATION
) AS
SELECT
  name,
  count,
  time_ns
FROM molprof_host_total
WHERE category = 'cpu_op' AND LOWER(name) GLOB '*attention*'
ORDER BY time_ns DESC, name;
