-- Origin of GPU work: enclosing operator, module, Python function and phase of its launch.
--
-- A frame is a slice that encloses a call on its thread: a module (nn.Module), a named range (record_function), a Python
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
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.steps;

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

-- What is known of calls that launch, wait, copy or set, or start GPU work. Copies and sets that are captured into a
-- graph start no work.
CREATE PERFETTO TABLE _molprof_origin_of_call AS
SELECT
  call.id,
  call.frame_id,
  path.operator,
  call.operator_id,
  path.module,
  path.layer,
  path.source,
  phase.phase,
  step.number AS step,
  step.id AS step_id
FROM _molprof_fact_call_frame AS call
LEFT JOIN _molprof_fact_frame_path AS path ON path.path_id = call.path_id
LEFT JOIN molprof_call_phase AS place ON place.id = call.id
LEFT JOIN molprof_phase AS phase ON phase.id = place.phase_id
LEFT JOIN _molprof_origin_step AS in_step ON in_step.id = call.id
LEFT JOIN molprof_any_step AS step ON step.id = in_step.step_id
ORDER BY call.id;

-- Frames around calls that launch or wait, around operators, those included, and functions that take a 100,000th of all
-- recorded time; outer before inner.
CREATE PERFETTO VIEW molprof_frame(
  -- The slice.
  id JOINID(slice.id),
  -- The enclosing frame on its thread; null for an outermost one.
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
  -- Enclosing modules and ranges, itself included, the outermost first, with / between them, at most 300; null where none is
  -- recorded.
  module STRING,
  -- Process.
  upid JOINID(process.id),
  -- Thread number, also of slices that the reader moved to a sub-track.
  tid LONG
) AS
SELECT
  frame.id,
  frame.parent_id,
  slice.ts,
  slice.dur,
  path.kind,
  path.name,
  path.class,
  path.module,
  track.upid,
  track.tid
FROM _molprof_fact_frame AS frame
JOIN slice USING (id)
JOIN _molprof_fact_frame_path AS path USING (path_id)
JOIN _molprof_thread_track AS track ON track.id = slice.track_id
ORDER BY frame.id;

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
  -- Thread number, also of calls that the reader moved to a sub-track.
  tid LONG,
  -- Kernels that it started.
  kernels LONG,
  -- Time of the kernels, copies and sets that it started, ns; concurrent work counts each.
  gpu_ns DURATION,
  -- Whether it is a host sync: 1 or 0.
  is_sync LONG,
  -- Time of the host sync, ns, also in the call right after a copy, which waits again; 0 for other calls.
  sync_ns DURATION,
  -- Innermost enclosing frame; null where there is none.
  frame_id JOINID(slice.id),
  -- Innermost enclosing operator; null where there is none.
  operator STRING,
  -- That operator's slice.
  operator_id JOINID(slice.id),
  -- Enclosing modules and ranges, the outermost first, with / between them; null where none is recorded.
  module STRING,
  -- Number of the layer, from 0: of the outermost module that has others of its class beside it, and modules inside; null
  -- outside any.
  layer LONG,
  -- Innermost enclosing Python function, as file(line): name, one of torch only where there is no other; null where
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
  -- Thread number, also of operators that the reader moved to a sub-track.
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
  frame.id,
  slice.ts,
  slice.dur,
  path.name,
  slice.dur - IFNULL(called.called_ns, 0) AS own_ns,
  slice.track_id,
  track.upid,
  track.tid,
  called.caller_id,
  path.module,
  path.layer,
  path.source,
  phase.phase,
  step.number AS step,
  step.id AS step_id
FROM _molprof_fact_frame AS frame
JOIN _molprof_fact_frame_path AS path USING (path_id)
JOIN slice ON slice.id = frame.id
JOIN _molprof_thread_track AS track ON track.id = slice.track_id
LEFT JOIN _molprof_fact_operator_call AS called ON called.id = frame.id
LEFT JOIN molprof_call_phase AS place ON place.id = frame.id
LEFT JOIN molprof_phase AS phase ON phase.id = place.phase_id
LEFT JOIN _molprof_origin_step AS in_step ON in_step.id = frame.id
LEFT JOIN molprof_any_step AS step ON step.id = in_step.step_id
WHERE path.kind = 'operator'
ORDER BY frame.id;

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
