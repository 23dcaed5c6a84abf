-- CPU operators by name, with their self time.
--
-- Example:
--   SELECT name, count, own_ns, time_ns
--   FROM molprof_top_cpu_operation
--   ORDER BY own_ns DESC, name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.host_totals;

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
