-- Location of calls in the program: enclosing operator, Python function and modules.
--
-- Slices of one name in slices of the same names have one location; its number is that of the first of them.
-- Functions and modules are recorded with Python stacks only (with_stack=True), which molprof query reads with --stacks.
-- molprof.origin has the same for each call, with layers and steps, and takes longer.
--
-- Example:
--   SELECT location.source, location.module, location.operator, launched.class, launched.count, launched.time_ns
--   FROM molprof_launched_work AS launched
--   JOIN molprof_call_location AS location USING (location_id)
--   ORDER BY launched.time_ns DESC, location.location_id
--   LIMIT 20;

-- GPU work by the location of its call and by class.
CREATE PERFETTO VIEW molprof_launched_work(
  -- The location of the calls; null for work whose call is not recorded.
  location_id JOINID(slice.id),
  -- Class of the work, as in molprof.kernel_classes.
  class STRING,
  -- Kernels, copies and sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
) AS
SELECT
  location_id,
  class,
  count,
  time_ns
FROM _molprof_fact_launched_work
ORDER BY location_id, class;

-- The locations of launches, of other calls that start GPU work, and of host syncs.
CREATE PERFETTO VIEW molprof_call_location(
  -- The first slice at the location.
  location_id JOINID(slice.id),
  -- Innermost operator; null where there is none.
  operator STRING,
  -- Innermost annotation (record_function); null where there is none.
  annotation STRING,
  -- Innermost Python function, as file(line): name, of a library only where there is no other; null without stacks.
  source STRING,
  -- Classes of the modules, the outermost first, with / between them; null without stacks.
  module STRING
) AS
SELECT
  location_id,
  operator,
  annotation,
  source,
  module
FROM _molprof_fact_call_location
ORDER BY location_id;
