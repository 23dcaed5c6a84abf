-- CPU operators by name, with their self time.
--
-- Example:
--   SELECT name, count, own_ns, time_ns
--   FROM molprof_top_cpu_operation
--   ORDER BY own_ns DESC, name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.host_totals;

-- Time of each operator inside another, by the name of that. A table: the trace processor groups its rows much faster
-- than those of a join.
CREATE PERFETTO TABLE _molprof_called_operator AS
SELECT
  operator.name,
  callee.dur
FROM slice AS callee
JOIN slice AS operator
  ON operator.id = callee.parent_id
WHERE
  callee.category = 'cpu_op' AND operator.category = 'cpu_op';

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
)
AS
WITH
  called AS (
    SELECT
      IFNULL(name, '(no name)') AS name,
      SUM(dur) AS dur
    FROM _molprof_called_operator
    GROUP BY
      name
  )
SELECT
  total.name,
  total.count,
  total.time_ns - IFNULL(called.dur, 0) AS own_ns,
  total.time_ns,
  1.0 * (total.time_ns - IFNULL(called.dur, 0)) / total.count AS mean_ns
FROM molprof_host_total AS total
LEFT JOIN called
  ON called.name = total.name
WHERE
  total.category = 'cpu_op'
ORDER BY
  own_ns DESC,
  total.name;
