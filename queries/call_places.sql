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

INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.host_syncs;
INCLUDE PERFETTO MODULE molprof.kernel_classes;
INCLUDE PERFETTO MODULE molprof.modules;

-- The places of launches, of other calls that start GPU work, and of host syncs.
CREATE PERFETTO TABLE _molprof_placed_call AS
SELECT
  slice.stack_id,
  MIN(slice.id) AS place_id
FROM (
  SELECT call_id AS id FROM _molprof_work WHERE call_id IS NOT NULL
  UNION
  SELECT id FROM molprof_host_sync
  UNION
  SELECT id FROM _molprof_launch_call
) AS call
CROSS JOIN slice
WHERE slice.id = call.id
GROUP BY slice.stack_id
ORDER BY slice.stack_id;

-- Work by call and by name of the work.
CREATE PERFETTO VIEW _molprof_work_by_call AS
SELECT
  call.stack_id,
  slice.category,
  IFNULL(slice.name, '(no name)') AS name,
  COUNT() AS count,
  SUM(work.dur) AS time_ns
FROM _molprof_work AS work
CROSS JOIN slice
LEFT JOIN slice AS call ON call.id = work.call_id
WHERE slice.id = work.id
GROUP BY call.stack_id, slice.stack_id;

-- GPU work by the place of its call and by class.
CREATE PERFETTO TABLE molprof_launched_work(
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
  placed.place_id,
  class.class,
  SUM(work.count) AS count,
  SUM(work.time_ns) AS time_ns
FROM _molprof_work_by_call AS work
JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name
LEFT JOIN _molprof_placed_call AS placed ON placed.stack_id = work.stack_id
GROUP BY placed.place_id, class.class
ORDER BY placed.place_id, class.class;

-- Slices and all that is around them, so sorted that the engine finds what is in a slice.
CREATE PERFETTO MACRO _molprof_with_surroundings(slices TableOrSubquery)
RETURNS TableOrSubquery AS (
  WITH
    RECURSIVE needed(id, parent_id) AS (
      SELECT
        slice.id,
        slice.parent_id
      FROM $slices AS one
      CROSS JOIN slice
      WHERE slice.id = one.id
      UNION
      SELECT
        slice.id,
        slice.parent_id
      FROM needed
      CROSS JOIN slice
      WHERE slice.id = needed.parent_id
    )
  SELECT
    IFNULL(needed.parent_id, -1) AS parent_id,
    needed.id,
    slice.category,
    slice.name,
    IIF(slice.category = 'python_function', _molprof_function_kind!(slice.name), NULL) AS kind
  FROM needed
  CROSS JOIN slice
  WHERE slice.id = needed.id
  ORDER BY 1, needed.id
);

-- Of each its innermost operator, annotation and function, the slice included, and the classes of all modules.
CREATE PERFETTO MACRO _molprof_described(surroundings TableOrSubquery)
RETURNS TableOrSubquery AS (
  WITH
    RECURSIVE around(id, operator, annotation, function, library, module) AS (
      SELECT
        id,
        IIF(category = 'cpu_op', name, NULL),
        IIF(category = 'user_annotation', name, NULL),
        IIF(kind = 'function', name, NULL),
        IIF(kind = 'library', name, NULL),
        IIF(kind = 'module', _molprof_module_class!(_molprof_module_name!(name)), NULL)
      FROM $surroundings
      WHERE parent_id = -1
      UNION ALL
      SELECT
        inner.id,
        IIF(inner.category = 'cpu_op', inner.name, around.operator),
        IIF(inner.category = 'user_annotation', inner.name, around.annotation),
        IIF(inner.kind = 'function', inner.name, around.function),
        IIF(inner.kind = 'library', inner.name, around.library),
        IIF(
          inner.kind = 'module',
          IFNULL(around.module || '/', '') || _molprof_module_class!(_molprof_module_name!(inner.name)),
          around.module
        )
      FROM around
      CROSS JOIN $surroundings AS inner
      WHERE inner.parent_id = around.id
    )
  SELECT
    id AS place_id,
    operator,
    annotation,
    IFNULL(function, library) AS source,
    module
  FROM around
);

CREATE PERFETTO TABLE _molprof_call_surroundings AS
SELECT *
FROM _molprof_with_surroundings!((SELECT place_id AS id FROM _molprof_placed_call));

-- What is around the places of these calls.
CREATE PERFETTO TABLE molprof_call_place(
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
SELECT place.*
FROM _molprof_described!(_molprof_call_surroundings) AS place
JOIN _molprof_placed_call AS placed USING (place_id)
ORDER BY place.place_id;
