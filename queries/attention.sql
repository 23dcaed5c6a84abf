-- Attention: its kernels on the GPU and its operators on the CPU, whose names tell the backend.
--
-- Example:
--   SELECT kind, name, count, time_ns, time_ratio
--   FROM molprof_attention
--   ORDER BY kind, time_ns DESC, name;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.kernel_classes;

-- Attention kernels and operators by name, longest total time first. An operator's time includes the operators
-- that it calls, so rows of kind operator overlap each other and must not be added up.
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
  COUNT() AS count,
  SUM(work.dur) AS time_ns,
  1.0 * SUM(work.dur) / NULLIF((SELECT SUM(dur) FROM molprof_gpu_work), 0) AS time_ratio
FROM molprof_gpu_work AS work
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
  COUNT() AS count,
  SUM(dur) AS time_ns,
  NULL AS time_ratio
FROM slice
WHERE
  category = 'cpu_op' AND LOWER(name) GLOB '*attention*'
GROUP BY
  name
ORDER BY
  kind,
  time_ns DESC,
  name;
