-- GPU work by name, added up once for the modules that rank it.
--
-- Example:
--   SELECT category, name, count, time_ns
--   FROM molprof_work_total
--   ORDER BY time_ns DESC, category, name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Slices with the number of their name and category, and of those of the slices around them. To group by such a number
-- is quicker than by the long name of a kernel. Of two columns of the same name the first counts: versions of the engine
-- without such numbers get a text.
CREATE PERFETTO VIEW _molprof_numbered_slice AS
SELECT id, category, name, dur, stack_id
FROM (SELECT *, category || ' ' || IFNULL(name, '') AS stack_id FROM slice);

-- Work of one category by name.
CREATE PERFETTO MACRO _molprof_named_work(category Expr)
RETURNS TableOrSubquery AS (
  SELECT
    $category AS category,
    IFNULL(slice.name, '(no name)') AS name,
    SUM(stack.count) AS count,
    SUM(stack.time_ns) AS time_ns
  FROM (
    SELECT
      id,
      COUNT() AS count,
      SUM(dur) AS time_ns
    FROM _molprof_numbered_slice
    WHERE category = $category
    GROUP BY stack_id
    -- Where there is no work, no slice is looked at.
    LIMIT IIF(EXISTS(SELECT 1 FROM _molprof_work), -1, 0)
  ) AS stack
  CROSS JOIN slice
  WHERE slice.id = stack.id
  GROUP BY IFNULL(slice.name, '(no name)')
);

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
) AS
SELECT * FROM _molprof_named_work!('kernel')
UNION ALL
SELECT * FROM _molprof_named_work!('gpu_memcpy')
UNION ALL
SELECT * FROM _molprof_named_work!('gpu_memset')
ORDER BY category, name;
