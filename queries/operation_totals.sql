-- GPU work, operators and runtime calls by name, added up once for the modules that rank them.
--
-- Example:
--   SELECT category, name, count, time_ns
--   FROM molprof_operation_total
--   ORDER BY time_ns DESC, category, name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- The rows of one category by name.
CREATE PERFETTO MACRO _molprof_name_total(events TableOrSubquery, category Expr)
RETURNS TableOrSubquery
AS
(
  SELECT
    name,
    COUNT() AS count,
    SUM(dur) AS time_ns
  FROM $events
  WHERE
    category = $category
  GROUP BY
    name
);

-- One row per category and name, in that order. Times of operators include those that they call.
CREATE PERFETTO TABLE molprof_operation_total(
  -- kernel, gpu_memcpy, gpu_memset, cpu_op, cuda_runtime or cuda_driver.
  category STRING,
  -- Name as recorded; '(no name)' for an empty or missing one.
  name STRING,
  -- Runs.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
)
AS
WITH
  -- One category at a time: the engine groups by one text faster than by two.
  total AS (
    SELECT 'kernel' AS category, * FROM _molprof_name_total!(_molprof_work, 'kernel')
    UNION ALL
    SELECT 'gpu_memcpy', * FROM _molprof_name_total!(_molprof_work, 'gpu_memcpy')
    UNION ALL
    SELECT 'gpu_memset', * FROM _molprof_name_total!(_molprof_work, 'gpu_memset')
    UNION ALL
    SELECT 'cpu_op', * FROM _molprof_name_total!(slice, 'cpu_op')
    UNION ALL
    SELECT 'cuda_runtime', * FROM _molprof_name_total!(slice, 'cuda_runtime')
    UNION ALL
    SELECT 'cuda_driver', * FROM _molprof_name_total!(slice, 'cuda_driver')
  )
SELECT
  category,
  IFNULL(name, '(no name)') AS name,
  count,
  time_ns
FROM total
ORDER BY
  category,
  name;
