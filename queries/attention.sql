-- Attention: its kernels and its operators, whose names show the backend.
--
-- Example:
--   SELECT kind, name, count, time_ns, time_ratio
--   FROM molprof_attention
--   ORDER BY kind, time_ns DESC, name;

INCLUDE PERFETTO MODULE molprof.host_totals;

INCLUDE PERFETTO MODULE molprof.kernel_classes;

INCLUDE PERFETTO MODULE molprof.work_totals;

-- Attention kernels and operators by name, longest total time first. Do not add up rows of kind operator: their times
-- include the operators that they call.
CREATE PERFETTO VIEW molprof_attention(
  -- kernel or operator.
  kind STRING,
  -- Name as recorded.
  name STRING,
  -- Kernels or calls.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Share of all GPU work's time, 0 to 1; null for operators, and where no time passed.
  time_ratio DOUBLE
)
AS
SELECT
  'kernel' AS kind,
  work.name,
  SUM(work.count) AS count,
  SUM(work.time_ns) AS time_ns,
  1.0 * SUM(work.time_ns) / NULLIF(
    (
      SELECT
        SUM(time_ns)
      FROM molprof_work_total
    ),
    0
  ) AS time_ratio
FROM molprof_work_total AS work
JOIN molprof_work_class AS class
  ON class.category = work.category AND class.name = work.name
WHERE
  class.class = 'attention'
GROUP BY
  work.name
UNION ALL
SELECT
  'operator' AS kind,
  name,
  count,
  time_ns,
  NULL AS time_ratio
FROM molprof_host_total
WHERE
  category = 'cpu_op' AND LOWER(name) GLOB '*attention*'
ORDER BY
  kind,
  time_ns DESC,
  name;
