-- CPU operators by name, with their self time.
--
-- Example:
--   SELECT name, count, own_ns, time_ns
--   FROM molprof_top_cpu_operation
--   ORDER BY own_ns DESC, name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.host_totals;

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

-- CPU operators by name, longest self time first.
CREATE PERFETTO VIEW molprof_top_cpu_operation(
  -- Operator, as recorded.
  name STRING,
  -- Calls.
  count LONG,
  -- Self time: sum of their times without the operators that they call, ns.
  own_ns DURATION,
  -- Sum of their times with the operators that they call, ns; calls inside a call of the same name count twice.
  time_ns DURATION,
  -- Mean self time, ns.
  mean_ns DOUBLE
) AS
WITH
  called AS (
    SELECT
      caller AS name,
      SUM(time_ns) AS dur
    FROM _molprof_operator_total
    GROUP BY caller
  )
SELECT
  total.name,
  total.count,
  total.time_ns - IFNULL(called.dur, 0) AS own_ns,
  total.time_ns,
  1.0 * (total.time_ns - IFNULL(called.dur, 0)) / total.count AS mean_ns
FROM molprof_host_total AS total
LEFT JOIN called ON called.name = total.name
WHERE total.category = 'cpu_op'
ORDER BY own_ns DESC, total.name;
