-- Where GPU work comes from: operator, module, Python function and phase around its launch.
--
-- A frame is what stands around a call on its thread: a module (nn.Module), a named range (record_function), a Python
-- function or an operator. torch.profiler records modules and functions with Python stacks only (with_stack=True), which
-- molprof query reads with --stacks. The number behind a file is the line where the function begins, not the line of the
-- call. Kernels of a graph have the frames of the graph launch. Backward passes run on a thread without Python.
--
-- Example:
--   SELECT module, operator, COUNT() AS count, SUM(dur) AS gpu_ns
--   FROM molprof_origin
--   GROUP BY module, operator
--   ORDER BY gpu_ns DESC, module, operator
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.call_facts;

INCLUDE PERFETTO MODULE molprof.call_phases;

INCLUDE PERFETTO MODULE molprof.gpu_calls;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.phases;

INCLUDE PERFETTO MODULE molprof.step_placement;

INCLUDE PERFETTO MODULE molprof.steps;

INCLUDE PERFETTO MODULE molprof.work_calls;

-- Slices that the reader moved to a lane, and their own thread: the outermost, named ranges, and what is right inside.
CREATE PERFETTO TABLE _molprof_origin_moved AS
SELECT
  slice.id,
  slice.ts,
  slice.ts + slice.dur AS ts_end,
  slice.category = 'user_annotation' AS is_range,
  thread.upid,
  EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid') AS tid
FROM slice
JOIN thread_track
  ON slice.track_id = thread_track.id
JOIN thread
  USING (utid)
LEFT JOIN slice AS outer
  ON outer.id = slice.parent_id
WHERE
  slice.arg_set_id IS NOT NULL
  AND slice.category IN ('python_function', 'user_annotation', 'cpu_op', 'cuda_runtime', 'cuda_driver')
  AND EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid') IS NOT NULL
  AND (slice.category = 'user_annotation' OR IFNULL(outer.category, 'user_annotation') = 'user_annotation');

-- All slices of those threads, in order of start, so that the engine can search.
CREATE PERFETTO TABLE _molprof_origin_home AS
SELECT
  slice.ts,
  slice.id,
  slice.ts + slice.dur AS ts_end,
  thread.upid,
  thread.tid
FROM thread_track
JOIN thread
  USING (utid)
JOIN slice
  ON slice.track_id = thread_track.id
WHERE
  (thread.upid, thread.tid) IN (SELECT upid, tid FROM _molprof_origin_moved)
ORDER BY
  slice.ts,
  slice.id;

-- The innermost slice of their own thread around their start, of a range around all of it. A range begins inside the
-- function that enters it and ends inside the one that leaves it, so stacks put every range on a lane.
CREATE PERFETTO TABLE _molprof_origin_lane AS
WITH
  placed AS (
    SELECT
      moved.id,
      IIF(moved.is_range, moved.ts_end - 1, moved.ts) AS covered_ts,
      moved.is_range,
      moved.ts,
      moved.ts_end,
      (
        SELECT
          home.id
        FROM _molprof_origin_home AS home
        WHERE
          home.ts <= moved.ts AND home.upid = moved.upid AND home.tid = moved.tid
        ORDER BY
          home.ts DESC,
          home.id DESC
        LIMIT 1
      ) AS last_id
    FROM _molprof_origin_moved AS moved
  )
SELECT
  placed.id,
  placed.is_range,
  placed.ts,
  placed.ts_end,
  IIF(
    last.ts + last.dur > placed.covered_ts,
    last.id,
    (
      SELECT
        ancestor.id
      FROM ancestor_slice(placed.last_id) AS ancestor
      WHERE
        ancestor.ts + ancestor.dur > placed.covered_ts
      ORDER BY
        ancestor.depth DESC
      LIMIT 1
    )
  ) AS parent_id
FROM placed
JOIN slice AS last
  ON last.id = placed.last_id
ORDER BY
  placed.id;

-- Calls that have an origin. Copies and sets that are captured into a graph start no work.
CREATE PERFETTO VIEW _molprof_origin_call AS
SELECT
  call_id
FROM molprof_call_fact
UNION
SELECT
  id AS call_id
FROM molprof_gpu_call
WHERE
  name GLOB '*Memcpy*' OR name GLOB '*Memset*';

-- Calls, operators, ranges and all that stands around them, sorted so that the engine finds the children of a slice.
CREATE PERFETTO TABLE _molprof_origin_parent AS
WITH
  RECURSIVE needed(id, parent_id) AS (
    SELECT
      slice.id,
      IIF(lane.id IS NULL, slice.parent_id, lane.parent_id)
    FROM slice
    LEFT JOIN _molprof_origin_lane AS lane
      USING (id)
    WHERE
      slice.category IN ('cpu_op', 'user_annotation') OR slice.id IN (SELECT call_id FROM _molprof_origin_call)
    UNION
    SELECT
      slice.id,
      IIF(lane.id IS NULL, slice.parent_id, lane.parent_id)
    FROM needed
    JOIN slice
      ON slice.id = needed.parent_id
    LEFT JOIN _molprof_origin_lane AS lane
      ON lane.id = slice.id
  )
SELECT
  IFNULL(parent_id, -1) AS parent_id,
  id
FROM needed
ORDER BY
  1,
  id;

-- Slices that began in a range on a lane, and the innermost such range, which has the highest id. Both are in one slice.
CREATE PERFETTO TABLE _molprof_origin_in_range AS
SELECT
  item.id,
  MAX(range.id) AS range_id
FROM _molprof_origin_lane AS range
CROSS JOIN _molprof_origin_parent AS item
  ON item.parent_id = range.parent_id
JOIN slice
  ON slice.id = item.id
WHERE
  range.is_range
  AND slice.ts < range.ts_end
  -- Of two ranges that begin together, one holds the other.
  AND (slice.ts > range.ts OR slice.ts = range.ts AND slice.id > range.id)
GROUP BY
  item.id
ORDER BY
  item.id;

-- The same with what each of them is.
CREATE PERFETTO TABLE _molprof_origin_slice AS
SELECT
  slice.id,
  IFNULL(inside.range_id, item.parent_id) AS parent_id,
  CASE slice.category
    WHEN 'cpu_op' THEN 'operator'
    WHEN 'user_annotation' THEN IIF(
      slice.name GLOB 'molprof.*'
      OR slice.name GLOB 'ProfilerStep#*'
      OR slice.name GLOB 'step[[][A-Z]*]'
      OR slice.id IN (SELECT id FROM molprof_any_step),
      NULL,
      'range'
    )
    WHEN 'python_function' THEN CASE
      WHEN slice.name GLOB 'nn.Module: *' THEN 'module'
      WHEN slice.name GLOB '<built-in *' OR NOT slice.name GLOB '*([0-9]*): *' THEN NULL
      WHEN slice.name GLOB 'torch/*'
        OR slice.name GLOB '*/site-packages/torch/*'
        OR slice.name GLOB 'triton/*'
        OR slice.name GLOB '<*'
        OR slice.name GLOB 'contextlib.py(*'
        OR slice.name GLOB '*: __torch_function__' THEN 'library'
      ELSE 'function'
    END
  END AS kind,
  IIF(slice.name GLOB 'nn.Module: *', SUBSTR(slice.name, 12), IFNULL(slice.name, '(no name)')) AS name
FROM _molprof_origin_parent AS item
JOIN slice
  USING (id)
LEFT JOIN _molprof_origin_in_range AS inside
  USING (id)
ORDER BY
  2,
  slice.id;

-- What stands around each of them, itself included.
CREATE PERFETTO TABLE _molprof_origin_stack AS
WITH
  RECURSIVE stack(id, kind, frame_id, outer_id, module_id, path, operator_id, function_id, library_id) AS (
    SELECT
      id,
      kind,
      IIF(kind IS NULL, NULL, id),
      NULL,
      NULL,
      IIF(kind IN ('module', 'range'), name, NULL),
      IIF(kind = 'operator', id, NULL),
      IIF(kind = 'function', id, NULL),
      IIF(kind = 'library', id, NULL)
    FROM _molprof_origin_slice
    WHERE
      parent_id = -1
    UNION ALL
    SELECT
      inner.id,
      inner.kind,
      IIF(inner.kind IS NULL, stack.frame_id, inner.id),
      stack.frame_id,
      IIF(stack.kind IN ('module', 'range'), stack.id, stack.module_id),
      IIF(inner.kind IN ('module', 'range'), IFNULL(stack.path || '/', '') || inner.name, stack.path),
      IIF(inner.kind = 'operator', inner.id, stack.operator_id),
      IIF(inner.kind = 'function', inner.id, stack.function_id),
      IIF(inner.kind = 'library', inner.id, stack.library_id)
    FROM stack
    JOIN _molprof_origin_slice AS inner
      ON inner.parent_id = stack.id
  )
SELECT
  id,
  kind,
  frame_id,
  outer_id,
  module_id,
  path,
  operator_id,
  IFNULL(function_id, library_id) AS function_id
FROM stack
ORDER BY
  id;

-- Modules by path, and which are layers: of one class, beside each other, with modules inside.
CREATE PERFETTO TABLE _molprof_origin_module AS
WITH
  named AS (
    SELECT
      inner.path,
      IFNULL(outer.path, '') AS parent_path,
      IIF(inner.kind = 'module', SUBSTR(slice.name, 12), slice.name) AS name,
      inner.kind = 'module' AS is_module
    FROM _molprof_origin_stack AS inner
    JOIN slice
      USING (id)
    LEFT JOIN _molprof_origin_stack AS outer
      ON outer.id = inner.module_id
    WHERE
      inner.kind IN ('module', 'range')
  ),
  module AS (
    SELECT DISTINCT
      path,
      parent_path,
      RTRIM(name, '0123456789') AS class,
      CAST(SUBSTR(name, LENGTH(RTRIM(name, '0123456789')) + 1) AS INT) AS number,
      is_module
    FROM named
  ),
  marked AS (
    SELECT
      path,
      parent_path,
      class,
      number,
      is_module,
      path IN (SELECT parent_path FROM module WHERE is_module) AS has_modules
    FROM module
  )
SELECT
  path,
  parent_path,
  IIF(
    is_module
    AND COUNT() OVER of_class > 1
    AND MAX(has_modules) OVER of_class,
    ROW_NUMBER() OVER (PARTITION BY parent_path, class, is_module ORDER BY number, path) - 1,
    NULL
  ) AS layer
FROM marked
WINDOW of_class AS (PARTITION BY parent_path, class, is_module)
ORDER BY
  parent_path,
  path;

-- The layer of each path: that of its outermost module that is one.
CREATE PERFETTO TABLE _molprof_origin_layer AS
WITH
  RECURSIVE inside(path, layer) AS (
    SELECT
      path,
      layer
    FROM _molprof_origin_module
    WHERE
      parent_path = ''
    UNION ALL
    SELECT
      inner.path,
      IFNULL(inside.layer, inner.layer)
    FROM inside
    JOIN _molprof_origin_module AS inner
      ON inner.parent_path = inside.path
  )
SELECT
  path,
  layer
FROM inside
ORDER BY
  path;

-- Frames around calls that launch or wait, and around operators, those included, outer before inner.
CREATE PERFETTO VIEW molprof_frame(
  -- The slice.
  id JOINID(slice.id),
  -- The frame around it on its thread; null for an outermost one.
  parent_id JOINID(slice.id),
  -- module, range (record_function), function, library (a function of torch, triton or Python itself) or operator.
  kind STRING,
  -- Name; of a module its class and a number, such as Linear_3.
  name STRING
)
AS
SELECT
  stack.id,
  stack.outer_id AS parent_id,
  stack.kind,
  IIF(stack.kind = 'module', SUBSTR(slice.name, 12), IFNULL(slice.name, '(no name)')) AS name
FROM _molprof_origin_stack AS stack
JOIN slice
  USING (id)
WHERE
  stack.kind IS NOT NULL
ORDER BY
  stack.id;

-- Origin of each call that is a launch, copy, set or host sync, or starts GPU work.
CREATE PERFETTO TABLE molprof_call_origin(
  -- The call's slice.
  call_id JOINID(slice.id),
  -- Innermost frame around it; null where there is none.
  frame_id JOINID(slice.id),
  -- Innermost operator around it; null where there is none.
  operator STRING,
  -- That operator's slice.
  operator_id JOINID(slice.id),
  -- Modules and ranges around it, the outermost first, with / between them; null where none is recorded.
  module STRING,
  -- Number of the layer, from 0: of the outermost module that has others of its class beside it, and modules inside; null
  -- outside any.
  layer LONG,
  -- Innermost Python function around it, as file(line): name, one of torch only where there is no other; null where
  -- stacks are not recorded.
  source STRING,
  -- Phase of a captured run in which the call began; null outside any.
  phase STRING,
  -- Number of the step in which the call began, in its batch or as the profiler counts; null outside any, and for steps
  -- without a number.
  step LONG,
  -- That step, a row of molprof_any_step; null outside any.
  step_id JOINID(slice.id)
)
AS
SELECT
  stack.id AS call_id,
  stack.frame_id,
  operator.name AS operator,
  stack.operator_id,
  stack.path AS module,
  layer.layer,
  function.name AS source,
  phase.phase,
  step.number AS step,
  step.id AS step_id
FROM _molprof_origin_call AS fact
JOIN _molprof_origin_stack AS stack
  ON stack.id = fact.call_id
LEFT JOIN slice AS operator
  ON operator.id = stack.operator_id
LEFT JOIN slice AS function
  ON function.id = stack.function_id
LEFT JOIN _molprof_origin_layer AS layer
  ON layer.path = stack.path
LEFT JOIN molprof_call_phase AS place
  ON place.id = fact.call_id
LEFT JOIN molprof_phase AS phase
  ON phase.id = place.phase_id
LEFT JOIN molprof_call_step AS in_step
  ON in_step.id = fact.call_id
LEFT JOIN molprof_any_step AS step
  ON step.id = in_step.step_id
ORDER BY
  stack.id;

-- Origin of each operator.
CREATE PERFETTO VIEW molprof_operator_origin(
  -- The operator's slice.
  id JOINID(slice.id),
  -- Modules and ranges around it, the outermost first, with / between them; null where none is recorded.
  module STRING,
  -- Number of the layer, from 0; null outside any.
  layer LONG,
  -- Innermost Python function around it, as file(line): name; null where stacks are not recorded.
  source STRING,
  -- Phase of a captured run in which it began; null outside any.
  phase STRING
)
AS
SELECT
  stack.id,
  stack.path AS module,
  layer.layer,
  function.name AS source,
  phase.phase
FROM _molprof_origin_stack AS stack
LEFT JOIN slice AS function
  ON function.id = stack.function_id
LEFT JOIN _molprof_origin_layer AS layer
  ON layer.path = stack.path
LEFT JOIN molprof_call_phase AS place
  ON place.id = stack.id
LEFT JOIN molprof_phase AS phase
  ON phase.id = place.phase_id
WHERE
  stack.kind = 'operator'
ORDER BY
  stack.id;

-- Every kernel, copy and set, in order of start, with the columns of that call in molprof_call_origin.
CREATE PERFETTO VIEW molprof_origin(
  -- The kernel, copy or set.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the device, ns.
  dur DURATION,
  -- Name as recorded.
  name STRING,
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- The call that started it; null where it is not recorded, and so are all columns below.
  call_id JOINID(slice.id),
  frame_id JOINID(slice.id),
  operator STRING,
  module STRING,
  layer LONG,
  source STRING,
  phase STRING,
  step LONG,
  step_id JOINID(slice.id)
)
AS
SELECT
  work.id,
  work.ts,
  work.dur,
  work.name,
  work.category,
  link.call_id,
  origin.frame_id,
  origin.operator,
  origin.module,
  origin.layer,
  origin.source,
  origin.phase,
  origin.step,
  origin.step_id
FROM molprof_gpu_work AS work
LEFT JOIN molprof_gpu_work_call AS link
  ON link.work_id = work.id
LEFT JOIN molprof_call_origin AS origin
  ON origin.call_id = link.call_id
ORDER BY
  work.ts,
  work.id;
