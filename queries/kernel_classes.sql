-- GPU work by class: what each kernel, copy and set does.
--
-- Classes: attention, matmul, norm, elementwise, reduce, softmax, sort/top-k, copy, cat, fill, index/scatter/gather,
-- embedding/rotary, cache-write, collective, other; memcpy by direction; memset. The name of a kernel decides, and where
-- no pattern knows it that of the operator that launched the first of its kind.
--
-- Example:
--   SELECT class, count, time_ns, time_ratio, names
--   FROM molprof_class_summary
--   ORDER BY time_ns DESC, class;

INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.work_totals;
INCLUDE PERFETTO MODULE molprof.kernel_patterns;

-- Names with the class that the patterns give them; null where none matches. Each name is made lower case once.
CREATE PERFETTO MACRO _molprof_pattern_class(names TableOrSubquery)
RETURNS TableOrSubquery AS (
  WITH
    lowered AS MATERIALIZED (
      SELECT
        name,
        LOWER(name) AS lower_name
      FROM $names
    )
  SELECT
    name,
    (
      SELECT class
      FROM molprof_kernel_pattern
      WHERE lower_name GLOB pattern
      ORDER BY priority, pattern
      LIMIT 1
    ) AS class
  FROM lowered
);

-- Kernels by name.
CREATE PERFETTO TABLE _molprof_kernel_class AS
SELECT *
FROM _molprof_pattern_class!((SELECT name FROM molprof_work_total WHERE category = 'kernel'))
ORDER BY name;

-- Kernels that no pattern knows, with the operator that launched the first of each; null where none did.
CREATE PERFETTO TABLE _molprof_unknown_kernel AS
SELECT
  name,
  (
    SELECT operator.name
    FROM ancestor_slice((SELECT call_id FROM _molprof_work WHERE id = work.first_id)) AS operator
    WHERE operator.category = 'cpu_op'
    ORDER BY operator.depth DESC
    LIMIT 1
  ) AS operator
FROM _molprof_kernel_class AS kernel
JOIN _molprof_fact_work_total AS work USING (name)
WHERE kernel.class IS NULL AND work.category = 'kernel'
ORDER BY name;

-- The class of every name that ran on the GPU.
CREATE PERFETTO TABLE molprof_work_class(
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- Name as recorded.
  name STRING,
  -- Class of the kernel, 'other' where no pattern matches; 'memcpy HtoD' and the like for copies; 'memset'.
  class STRING
) AS
WITH
  operator AS MATERIALIZED (
    SELECT *
    FROM _molprof_pattern_class!((SELECT DISTINCT operator AS name FROM _molprof_unknown_kernel))
  )
SELECT
  'kernel' AS category,
  kernel.name,
  COALESCE(kernel.class, operator.class, 'other') AS class
FROM _molprof_kernel_class AS kernel
LEFT JOIN _molprof_unknown_kernel AS unknown ON unknown.name = kernel.name
LEFT JOIN operator ON operator.name = unknown.operator
UNION ALL
SELECT
  category,
  name,
  IIF(category = 'gpu_memset', 'memset', REPLACE(_molprof_copy_name!(name), 'Memcpy', 'memcpy')) AS class
FROM molprof_work_total
WHERE category IN ('gpu_memcpy', 'gpu_memset')
ORDER BY category, name;

-- GPU work by class, longest total time first.
CREATE PERFETTO VIEW molprof_class_summary(
  -- Class of the work.
  class STRING,
  -- Kernels, copies or sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Share of all GPU work's time, 0 to 1; null where no time passed.
  time_ratio DOUBLE,
  -- Distinct names in the class.
  names LONG
) AS
SELECT
  class.class,
  SUM(work.count) AS count,
  SUM(work.time_ns) AS time_ns,
  1.0 * SUM(work.time_ns) / NULLIF(SUM(SUM(work.time_ns)) OVER (), 0) AS time_ratio,
  COUNT(DISTINCT work.name) AS names
FROM molprof_work_total AS work
JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name
GROUP BY class.class
ORDER BY time_ns DESC, class.class;
