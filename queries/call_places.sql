-- Where in the program slices of the CPU lie: operator, Python function and modules around them.
--
-- Slices that lie in slices of the same names are in one place. The engine numbers such places, so that what surrounds
-- them is looked up once for each. Functions and modules are recorded with Python stacks only (with_stack=True), which
-- molprof query reads with --stacks. molprof.origin has the same for each call, layer and step, and takes longer.
--
-- Example:
--   SELECT place.source, place.module, place.operator, launched.class, launched.count, launched.time_ns
--   FROM molprof_launched_work AS launched
--   JOIN molprof_call_place AS place USING (place_id)
--   ORDER BY launched.time_ns DESC, place.place_id
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.host_syncs;
INCLUDE PERFETTO MODULE molprof.kernel_classes;
INCLUDE PERFETTO MODULE molprof.modules;

-- GPU work by the place of its call and by class. Work whose call is not recorded has place 0.
CREATE PERFETTO TABLE molprof_launched_work(
  -- The place of the calls.
  place_id LONG,
  -- Class of the work, as in molprof.kernel_classes.
  class STRING,
  -- Kernels, copies and sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- One of the calls.
  call_id JOINID(slice.id)
) AS
SELECT
  IFNULL(call.stack_id, 0) AS place_id,
  class.class,
  SUM(work.count) AS count,
  SUM(work.time_ns) AS time_ns,
  MIN(work.call_id) AS call_id
FROM (
  SELECT
    call.stack_id,
    slice.category,
    slice.name,
    COUNT() AS count,
    SUM(work.dur) AS time_ns,
    MIN(work.call_id) AS call_id
  FROM _molprof_work AS work
  CROSS JOIN slice
  LEFT JOIN slice AS call ON call.id = work.call_id
  WHERE slice.id = work.id
  GROUP BY call.stack_id, slice.stack_id
) AS work
LEFT JOIN slice AS call ON call.id = work.call_id
JOIN molprof_work_class AS class ON class.category = work.category AND class.name = IFNULL(work.name, '(no name)')
GROUP BY call.stack_id, class.class
ORDER BY place_id, class.class;

-- One slice of each place, and all slices around these, so sorted that the engine finds those in a slice.
CREATE PERFETTO MACRO _molprof_with_surroundings(slices TableOrSubquery)
RETURNS TableOrSubquery AS (
  WITH
    RECURSIVE needed(id, parent_id) AS (
      SELECT
        slice.id,
        slice.parent_id
      FROM (SELECT MIN(inner.id) AS id FROM $slices AS one JOIN slice AS inner USING (id) GROUP BY inner.stack_id) AS place
      CROSS JOIN slice
      WHERE slice.id = place.id
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

-- The same by number of the place: innermost operator, annotation and function, the slice included, and all modules.
CREATE PERFETTO MACRO _molprof_described(needed TableOrSubquery)
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
      FROM $needed
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
      CROSS JOIN $needed AS inner
      WHERE inner.parent_id = around.id
    )
  SELECT
    slice.stack_id AS place_id,
    around.operator,
    around.annotation,
    IFNULL(around.function, around.library) AS source,
    around.module
  FROM around
  CROSS JOIN slice
  WHERE slice.id = around.id
  -- Those of one number are in slices of the same names.
  GROUP BY slice.stack_id
);

CREATE PERFETTO TABLE _molprof_call_around AS
SELECT *
FROM _molprof_with_surroundings!(
  (
    SELECT call_id AS id FROM molprof_launched_work WHERE call_id IS NOT NULL
    UNION ALL
    SELECT id FROM molprof_host_sync
  )
);

-- The places of calls that start GPU work, and of host syncs.
CREATE PERFETTO TABLE molprof_call_place(
  -- Number of the place.
  place_id LONG,
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
FROM _molprof_described!(_molprof_call_around)
ORDER BY place_id;
