-- GPU work by name, with its class. Operators are in molprof.cpu_operations.
--
-- Example:
--   SELECT name, class, count, time_ns, time_ratio
--   FROM molprof_top_gpu_operation
--   ORDER BY time_ns DESC, name, class
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.kernel_classes;
INCLUDE PERFETTO MODULE molprof.work_totals;

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
) AS
SELECT
  work.name,
  class.class,
  SUM(work.count) AS count,
  SUM(work.time_ns) AS time_ns,
  1.0 * SUM(work.time_ns) / NULLIF(SUM(SUM(work.time_ns)) OVER (), 0) AS time_ratio,
  1.0 * SUM(work.time_ns) / SUM(work.count) AS mean_ns
FROM molprof_work_total AS work
JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name
GROUP BY work.name, class.class
ORDER BY time_ns DESC, work.name, class.class;
