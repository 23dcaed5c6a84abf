-- Time by name: GPU work and CPU operators.
--
-- Example:
--   SELECT name, class, count, time_ns, time_ratio
--   FROM molprof_top_gpu_operation
--   ORDER BY time_ns DESC, name, class
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.kernel_classes;

INCLUDE PERFETTO MODULE molprof.operation_totals;

-- GPU work by name, longest total time first.
CREATE PERFETTO VIEW molprof_top_gpu_operation(
  -- Kernel, copy or set, as recorded.
  name STRING,
  -- Its class, as in molprof.kernel_classes.
  class STRING,
  -- Runs.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Share of all GPU work's time, 0 to 1; null where no time passed.
  time_ratio DOUBLE,
  -- Mean time, ns.
  mean_ns DOUBLE
)
AS
SELECT
  work.name,
  class.class,
  SUM(work.count) AS count,
  SUM(work.time_ns) AS time_ns,
  1.0 * SUM(work.time_ns) / NULLIF(SUM(SUM(work.time_ns)) OVER (), 0) AS time_ratio,
  1.0 * SUM(work.time_ns) / SUM(work.count) AS mean_ns
FROM molprof_operation_total AS work
JOIN molprof_work_class AS class
  ON class.category = work.category AND class.name = work.name
GROUP BY
  work.name,
  class.class
ORDER BY
  time_ns DESC,
  work.name,
  class.class;

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
FROM molprof_operation_total AS total
LEFT JOIN called
  ON called.name = total.name
WHERE
  total.category = 'cpu_op'
ORDER BY
  own_ns DESC,
  total.name;
