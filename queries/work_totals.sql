-- GPU work by name, added up once for the modules that rank it.
--
-- Example:
--   SELECT category, name, count, time_ns
--   FROM molprof_work_total
--   ORDER BY time_ns DESC, category, name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- One row per category and name, in that order.
CREATE PERFETTO TABLE molprof_work_total(
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- Name as recorded; '(no name)' for an empty or missing one.
  name STRING,
  -- Kernels, copies or sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
)
AS
SELECT
  category,
  IFNULL(name, '(no name)') AS name,
  count,
  time_ns
-- One category at a time: the engine groups by one text faster than by two.
FROM (
  SELECT
    'kernel' AS category,
    name,
    COUNT() AS count,
    SUM(dur) AS time_ns
  FROM _molprof_work
  WHERE
    category = 'kernel'
  GROUP BY
    name
  UNION ALL
  SELECT
    'gpu_memcpy',
    name,
    COUNT(),
    SUM(dur)
  FROM _molprof_work
  WHERE
    category = 'gpu_memcpy'
  GROUP BY
    name
  UNION ALL
  SELECT
    'gpu_memset',
    name,
    COUNT(),
    SUM(dur)
  FROM _molprof_work
  WHERE
    category = 'gpu_memset'
  GROUP BY
    name
)
ORDER BY
  category,
  name;
