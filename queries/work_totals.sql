-- GPU work by name: sums for the modules that rank it.
--
-- Example:
--   SELECT category, name, count, time_ns
--   FROM molprof_work_total
--   ORDER BY time_ns DESC, category, name
--   LIMIT 20;

-- Slices with the number of their name and category, and of those of the slices around them. To group by such a number
-- is quicker than by the long name of a kernel. Of two columns of the same name the first counts: versions of the engine
-- without such numbers get a text.
CREATE PERFETTO VIEW _molprof_numbered_slice AS
SELECT id, category, name, dur, stack_id
FROM (SELECT *, category || ' ' || IFNULL(name, '') AS stack_id FROM slice);

-- One row per category and name, in that order.
CREATE PERFETTO VIEW molprof_work_total(
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- Name as recorded; '(no name)' for an empty or missing one.
  name STRING,
  -- Kernels, copies or sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
) AS
SELECT
  category,
  name,
  count,
  time_ns
FROM _molprof_fact_work_total
ORDER BY category, name;
