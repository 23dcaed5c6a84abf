-- Where in the program calls lie: operator, Python function and modules around them.
--
-- Slices of one name that lie in slices of the same names are in one place, which has the number of the first of them.
-- Functions and modules are recorded with Python stacks only (with_stack=True), which molprof query reads with --stacks.
-- molprof.origin has the same for each call, with layers and steps, and takes longer.
--
-- Example:
--   SELECT place.source, place.module, place.operator, launched.class, launched.count, launched.time_ns
--   FROM molprof_launched_work AS launched
--   JOIN molprof_call_place AS place USING (place_id)
--   ORDER BY launched.time_ns DESC, place.place_id
--   LIMIT 20;

-- GPU work by the place of its call and by class.
CREATE PERFETTO VIEW molprof_launched_work(
  -- The place of the calls; null for work whose call is not recorded.
  place_id JOINID(slice.id),
  -- Class of the work, as in molprof.kernel_classes.
  class STRING,
  -- Kernels, copies and sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
) AS
SELECT
  place_id,
  class,
  count,
  time_ns
FROM _molprof_fact_launched_work
ORDER BY place_id, class;

-- The places of launches, of other calls that start GPU work, and of host syncs.
CREATE PERFETTO VIEW molprof_call_place(
  -- The first slice of the place.
  place_id JOINID(slice.id),
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
  place_id,
  operator,
  annotation,
  source,
  module
FROM _molprof_fact_call_place
ORDER BY place_id;
