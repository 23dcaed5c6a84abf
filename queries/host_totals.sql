-- Operators and runtime calls by name, added up once for the modules that rank them.
--
-- Example:
--   SELECT category, name, count, time_ns
--   FROM molprof_host_total
--   ORDER BY time_ns DESC, category, name
--   LIMIT 20;

-- Operators by name, and by the operator that calls them; null where none does. The engine numbers slices by their name
-- and category, and those of the slices around them: sums by such a number need no join of every slice with its caller.
-- The number is a hash of 53 bits: that two of 10,000 kinds of slices share one has a chance below 1 in 100 million.
CREATE PERFETTO TABLE _molprof_operator_total AS
WITH
  stack AS (
    SELECT
      id,
      COUNT() AS count,
      SUM(dur) AS time_ns
    FROM (
      SELECT
        *,
        -- Of two columns of the same name the first counts: versions of the engine without such numbers get this one.
        QUOTE(name) || ' ' || QUOTE(
          (
            SELECT caller.name
            FROM slice AS caller
            WHERE caller.id = slice.parent_id AND caller.category = 'cpu_op'
          )
        ) AS stack_id
      FROM slice
    )
    WHERE category = 'cpu_op'
    GROUP BY stack_id
  )
SELECT
  IFNULL(operator.name, '(no name)') AS name,
  IIF(caller.category = 'cpu_op', IFNULL(caller.name, '(no name)'), NULL) AS caller,
  stack.count,
  stack.time_ns
FROM stack
CROSS JOIN slice AS operator
LEFT JOIN slice AS caller ON caller.id = operator.parent_id
WHERE operator.id = stack.id;

-- One row per category and name, in that order. Times of operators include those that they call.
CREATE PERFETTO TABLE molprof_host_total(
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
  IFNULL(name, '(no name)') AS name,
  count,
  time_ns
-- One category at a time: the engine groups by one text faster than by two.
FROM (
  SELECT
    'cpu_op' AS category,
    name,
    SUM(count) AS count,
    SUM(time_ns) AS time_ns
  FROM _molprof_operator_total
  GROUP BY name
  UNION ALL
  SELECT
    'cuda_runtime',
    name,
    COUNT(),
    SUM(dur)
  FROM slice
  WHERE category = 'cuda_runtime'
  GROUP BY name
  UNION ALL
  SELECT
    'cuda_driver',
    name,
    COUNT(),
    SUM(dur)
  FROM slice
  WHERE category = 'cuda_driver'
  GROUP BY name
)
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
