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

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.call_facts;
INCLUDE PERFETTO MODULE molprof.call_phases;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.kernel_classes;
INCLUDE PERFETTO MODULE molprof.modules;
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.steps;

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
JOIN thread_track ON slice.track_id = thread_track.id
JOIN thread USING (utid)
LEFT JOIN slice AS outer ON outer.id = slice.parent_id
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
JOIN thread USING (utid)
JOIN slice ON slice.track_id = thread_track.id
WHERE (thread.upid, thread.tid) IN (SELECT upid, tid FROM _molprof_origin_moved)
ORDER BY slice.ts, slice.id;

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
        SELECT home.id
        FROM _molprof_origin_home AS home
        WHERE home.ts <= moved.ts AND home.upid = moved.upid AND home.tid = moved.tid
        ORDER BY home.ts DESC, home.id DESC
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
      SELECT ancestor.id
      FROM ancestor_slice(placed.last_id) AS ancestor
      WHERE ancestor.ts + ancestor.dur > placed.covered_ts
      ORDER BY ancestor.depth DESC
      LIMIT 1
    )
  ) AS parent_id
FROM placed
JOIN slice AS last ON last.id = placed.last_id
ORDER BY placed.id;

-- Calls that have an origin. Copies and sets that are captured into a graph start no work.
CREATE PERFETTO VIEW _molprof_origin_call AS
SELECT call_id
FROM molprof_call_fact
UNION
SELECT id AS call_id
FROM molprof_gpu_call
WHERE name GLOB '*Memcpy*' OR name GLOB '*Memset*';

-- Calls, operators, ranges, memory events, Python functions that take a 100,000th of all recorded time, and all that stands around them,
-- sorted so that the engine finds the children of a slice.
CREATE PERFETTO TABLE _molprof_origin_parent AS
WITH
  RECURSIVE needed(id, parent_id) AS (
    SELECT
      slice.id,
      IIF(lane.id IS NULL, slice.parent_id, lane.parent_id)
    FROM slice
    LEFT JOIN _molprof_origin_lane AS lane USING (id)
    WHERE
      slice.category IN ('cpu_op', 'user_annotation')
      OR slice.category = 'cpu_instant_event' AND slice.name = '[memory]'
      OR slice.id IN (SELECT call_id FROM _molprof_origin_call)
      OR slice.category = 'python_function'
      AND slice.dur > (SELECT (MAX(ts + dur) - MIN(ts)) / 100000 FROM slice WHERE category = 'python_function')
    UNION
    SELECT
      slice.id,
      IIF(lane.id IS NULL, slice.parent_id, lane.parent_id)
    FROM needed
    JOIN slice ON slice.id = needed.parent_id
    LEFT JOIN _molprof_origin_lane AS lane ON lane.id = slice.id
  )
SELECT
  IFNULL(parent_id, -1) AS parent_id,
  id
FROM needed
ORDER BY 1, id;

-- Slices that began in a range on a lane, and the innermost such range, which has the highest id. Both are in one slice.
CREATE PERFETTO TABLE _molprof_origin_in_range AS
SELECT
  item.id,
  MAX(range.id) AS range_id
FROM _molprof_origin_lane AS range
CROSS JOIN _molprof_origin_parent AS item ON item.parent_id = range.parent_id
JOIN slice ON slice.id = item.id
WHERE
  range.is_range
  AND slice.ts < range.ts_end
  -- Of two ranges that begin together, one holds the other.
  AND (slice.ts > range.ts OR slice.ts = range.ts AND slice.id > range.id)
GROUP BY item.id
ORDER BY item.id;

-- The same with what each of them is.
CREATE PERFETTO TABLE _molprof_origin_slice AS
SELECT
  slice.id,
  IFNULL(inside.range_id, item.parent_id) AS parent_id,
  CASE slice.category
    WHEN 'cpu_op' THEN 'operator'
    WHEN 'user_annotation' THEN IIF(
      slice.id IN (
        SELECT id FROM molprof_annotation WHERE source = 'molprof' OR source != 'program' AND role = 'step'
        UNION ALL
        SELECT id FROM molprof_any_step
      ),
      NULL,
      'range'
    )
    WHEN 'python_function' THEN _molprof_function_kind!(slice.name)
  END AS kind,
  IIF(_molprof_is_module!(slice.name), _molprof_module_name!(slice.name), IFNULL(slice.name, '(no name)')) AS name
FROM _molprof_origin_parent AS item
JOIN slice USING (id)
LEFT JOIN _molprof_origin_in_range AS inside USING (id)
ORDER BY 2, slice.id;

-- What stands around each of them: itself included, but for the operator.
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
      NULL,
      IIF(kind = 'function', id, NULL),
      IIF(kind = 'library', id, NULL)
    FROM _molprof_origin_slice
    WHERE parent_id = -1
    UNION ALL
    SELECT
      inner.id,
      inner.kind,
      IIF(inner.kind IS NULL, stack.frame_id, inner.id),
      stack.frame_id,
      IIF(stack.kind IN ('module', 'range'), stack.id, stack.module_id),
      IIF(inner.kind IN ('module', 'range'), IFNULL(stack.path || '/', '') || inner.name, stack.path),
      IIF(stack.kind = 'operator', stack.id, stack.operator_id),
      IIF(inner.kind = 'function', inner.id, stack.function_id),
      IIF(inner.kind = 'library', inner.id, stack.library_id)
    FROM stack
    JOIN _molprof_origin_slice AS inner ON inner.parent_id = stack.id
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
ORDER BY id;

-- Modules by path, and which are layers: of one class, beside each other, with modules inside.
CREATE PERFETTO TABLE _molprof_origin_module AS
WITH
  module AS (
    SELECT DISTINCT
      path,
      parent_path,
      IIF(is_module, _molprof_module_class!(name), name) AS class,
      IIF(is_module, CAST(SUBSTR(name, LENGTH(_molprof_module_class!(name)) + 2) AS INT), 0) AS number,
      is_module
    FROM (
      SELECT
        inner.path,
        IFNULL(outer.path, '') AS parent_path,
        SUBSTR(inner.path, IFNULL(LENGTH(outer.path) + 2, 1)) AS name,
        inner.kind = 'module' AS is_module
      FROM _molprof_origin_stack AS inner
      LEFT JOIN _molprof_origin_stack AS outer ON outer.id = inner.module_id
      WHERE inner.kind IN ('module', 'range')
    )
  ),
  marked AS (
    SELECT
      *,
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
ORDER BY parent_path, path;

-- The layer of each path: that of its outermost module that is one.
CREATE PERFETTO TABLE _molprof_origin_layer AS
WITH
  RECURSIVE inside(path, layer) AS (
    SELECT
      path,
      layer
    FROM _molprof_origin_module
    WHERE parent_path = ''
    UNION ALL
    SELECT
      inner.path,
      IFNULL(inside.layer, inner.layer)
    FROM inside
    JOIN _molprof_origin_module AS inner ON inner.parent_path = inside.path
  )
SELECT *
FROM inside
ORDER BY path;

-- The step of operators, calls and instants: that in which they began. Others have no row.
CREATE PERFETTO TABLE _molprof_origin_step AS
SELECT
  slice.id,
  run.step_id
FROM _molprof_fact_slice_step_run AS run
CROSS JOIN slice
WHERE
  slice.id BETWEEN run.first_id AND run.last_id
  AND slice.category IN ('cpu_op', 'cuda_runtime', 'cuda_driver', 'cpu_instant_event')
ORDER BY slice.id;

-- Time of the operators that each operator calls. One on a lane may outlast the operator in which it began.
CREATE PERFETTO TABLE _molprof_origin_called AS
SELECT
  outer.id,
  SUM(inner.dur) AS time_ns
FROM _molprof_origin_stack AS stack
JOIN slice AS inner USING (id)
JOIN slice AS outer ON outer.id = stack.operator_id
WHERE stack.kind = 'operator' AND inner.ts + inner.dur <= outer.ts + outer.dur
GROUP BY outer.id
ORDER BY outer.id;

-- What is known of operators and of calls that have an origin.
CREATE PERFETTO VIEW _molprof_origin_known AS
SELECT
  stack.id,
  stack.kind,
  stack.frame_id,
  operator.name AS operator,
  stack.operator_id,
  stack.path AS module,
  layer.layer,
  function.name AS source,
  phase.phase,
  step.number AS step,
  step.id AS step_id
FROM _molprof_origin_stack AS stack
LEFT JOIN slice AS operator ON operator.id = stack.operator_id
LEFT JOIN slice AS function ON function.id = stack.function_id
LEFT JOIN _molprof_origin_layer AS layer ON layer.path = stack.path
LEFT JOIN molprof_call_phase AS place ON place.id = stack.id
LEFT JOIN molprof_phase AS phase ON phase.id = place.phase_id
LEFT JOIN _molprof_origin_step AS in_step ON in_step.id = stack.id
LEFT JOIN molprof_any_step AS step ON step.id = in_step.step_id;

-- The same of calls, in order of slice.
CREATE PERFETTO TABLE _molprof_origin_of_call AS
SELECT known.*
FROM _molprof_origin_call AS call
JOIN _molprof_origin_known AS known ON known.id = call.call_id
ORDER BY known.id;

-- Frames around calls that launch or wait, around operators, those included, and functions that take a 100,000th of all
-- recorded time; outer before inner.
CREATE PERFETTO VIEW molprof_frame(
  -- The slice.
  id JOINID(slice.id),
  -- The frame around it on its thread; null for an outermost one.
  parent_id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time in it, ns.
  dur DURATION,
  -- module, range (record_function), function, library (a function of torch, triton or Python itself) or operator.
  kind STRING,
  -- Name; of a module its class and a number, such as Linear_3.
  name STRING,
  -- Of a module its class, such as Linear; of any other its name.
  class STRING,
  -- Modules and ranges around it and itself, the outermost first, with / between them; null where none is recorded.
  module STRING,
  -- Process.
  upid JOINID(process.id),
  -- Thread number, also of slices that the reader moved to another lane.
  tid LONG
) AS
SELECT
  stack.id,
  stack.outer_id AS parent_id,
  slice.ts,
  slice.dur,
  stack.kind,
  IIF(stack.kind = 'module', _molprof_module_name!(slice.name), IFNULL(slice.name, '(no name)')) AS name,
  IIF(
    stack.kind = 'module',
    _molprof_module_class!(_molprof_module_name!(slice.name)),
    IFNULL(slice.name, '(no name)')
  ) AS class,
  stack.path AS module,
  track.upid,
  track.tid
FROM _molprof_origin_stack AS stack
JOIN slice USING (id)
JOIN _molprof_thread_track AS track ON track.id = slice.track_id
WHERE stack.kind IS NOT NULL
ORDER BY stack.id;

-- Each call that is a launch, copy, set or host sync, or starts GPU work: what it did, and its origin.
CREATE PERFETTO VIEW molprof_call_origin(
  -- The call's slice.
  call_id JOINID(slice.id),
  ts TIMESTAMP,
  -- Time in the call, ns.
  dur DURATION,
  -- Name of the runtime or driver function.
  name STRING,
  -- launch: starts a kernel; graph_launch: starts a graph; null: any other call.
  kind STRING,
  -- Correlation number, which the GPU work that it started has too; null where not recorded.
  correlation LONG,
  -- Rank; null unless the trace is of several ranks.
  rank LONG,
  upid JOINID(process.id),
  -- Thread number, also of calls that the reader moved to another lane.
  tid LONG,
  -- Kernels that it started.
  kernels LONG,
  -- Time of the kernels, copies and sets that it started, ns; concurrent work counts each.
  gpu_ns DURATION,
  -- Whether it is a host sync: 1 or 0.
  is_sync LONG,
  -- Time of the host sync, ns, also in the call right after a copy, which waits again; 0 for other calls.
  sync_ns DURATION,
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
  -- Phase of a captured run in which it began; null outside any.
  phase STRING,
  -- Number of the step in which it began, in its batch or as the profiler counts; null outside any, and for steps
  -- without a number.
  step LONG,
  -- That step, a row of molprof_any_step; null outside any.
  step_id JOINID(slice.id)
) AS
SELECT
  call.id AS call_id,
  call.ts,
  call.dur,
  call.name,
  call.kind,
  call.correlation,
  call.rank,
  track.upid,
  track.tid,
  IFNULL(fact.kernels, 0) AS kernels,
  IFNULL(fact.gpu_ns, 0) AS gpu_ns,
  IFNULL(fact.syncs, 0) AS is_sync,
  IFNULL(fact.sync_ns, 0) AS sync_ns,
  origin.frame_id,
  origin.operator,
  origin.operator_id,
  origin.module,
  origin.layer,
  origin.source,
  origin.phase,
  origin.step,
  origin.step_id
FROM _molprof_origin_of_call AS origin
JOIN _molprof_call AS call USING (id)
JOIN _molprof_thread_track AS track ON track.id = call.track_id
LEFT JOIN molprof_call_fact AS fact ON fact.call_id = call.id
ORDER BY call.id;

-- Each operator and its origin, in order of slice.
CREATE PERFETTO VIEW molprof_operator_origin(
  -- The operator's slice.
  id JOINID(slice.id),
  ts TIMESTAMP,
  -- Time in the operator, ns.
  dur DURATION,
  -- Name, such as aten::add; '(no name)' for an empty or missing one.
  name STRING,
  -- Self time: without the operators that it calls, ns.
  own_ns DURATION,
  -- Track: operators of one are inside each other or one after the other.
  track_id JOINID(thread_track.id),
  upid JOINID(process.id),
  -- Thread number, also of operators that the reader moved to another lane.
  tid LONG,
  -- The operator that calls it; null where none does.
  caller_id JOINID(slice.id),
  module STRING,
  layer LONG,
  source STRING,
  phase STRING,
  step LONG,
  step_id JOINID(slice.id)
) AS
SELECT
  origin.id,
  slice.ts,
  slice.dur,
  IFNULL(slice.name, '(no name)') AS name,
  slice.dur - IFNULL(called.time_ns, 0) AS own_ns,
  slice.track_id,
  track.upid,
  track.tid,
  origin.operator_id AS caller_id,
  origin.module,
  origin.layer,
  origin.source,
  origin.phase,
  origin.step,
  origin.step_id
FROM _molprof_origin_known AS origin
JOIN slice USING (id)
JOIN _molprof_thread_track AS track ON track.id = slice.track_id
LEFT JOIN _molprof_origin_called AS called ON called.id = origin.id
WHERE origin.kind = 'operator'
ORDER BY origin.id;

-- Every kernel, copy and set, in order of start, with all that is known of it.
CREATE PERFETTO VIEW molprof_origin(
  -- The kernel, copy or set.
  id JOINID(slice.id),
  ts TIMESTAMP,
  -- Time on the device, ns.
  dur DURATION,
  -- Name as recorded; '(no name)' for an empty or missing one.
  name STRING,
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- Class of the work, as in molprof.kernel_classes.
  class STRING,
  -- Device, as in molprof.gpu_work.
  device STRING,
  -- Stream number; null where not recorded.
  stream LONG,
  rank LONG,
  correlation LONG,
  -- Bytes moved or set; null for kernels, and where not recorded.
  bytes LONG,
  -- Whether a graph launch started it: 1 or 0.
  in_graph LONG,
  -- The call that started it; null where it is not recorded, and so are all columns below, those of the call.
  call_id JOINID(slice.id),
  frame_id JOINID(slice.id),
  operator STRING,
  operator_id JOINID(slice.id),
  module STRING,
  layer LONG,
  source STRING,
  phase STRING,
  step LONG,
  step_id JOINID(slice.id)
) AS
SELECT
  work.id,
  work.ts,
  work.dur,
  work.name,
  work.category,
  class.class,
  work.device,
  work.stream,
  work.rank,
  work.correlation,
  work.bytes,
  IFNULL(call.kind = 'graph_launch', 0) AS in_graph,
  work.call_id,
  origin.frame_id,
  origin.operator,
  origin.operator_id,
  origin.module,
  origin.layer,
  origin.source,
  origin.phase,
  origin.step,
  origin.step_id
FROM molprof_gpu_work AS work
LEFT JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name
LEFT JOIN molprof_gpu_call AS call ON call.id = work.call_id
LEFT JOIN _molprof_origin_of_call AS origin ON origin.id = work.call_id
ORDER BY work.ts, work.id;
