-- Every launch: its time, the delay to its work, and the depth of the device's queue.
--
-- A queue depth of 0 means that the device had no work left when the call began: it waited for the CPU.
--
-- Example:
--   SELECT name, count, mean_ns, mean_delay_ns, mean_queue_depth, empty_queue
--   FROM molprof_launch_queue_summary
--   ORDER BY count DESC, name, kind;

INCLUDE PERFETTO MODULE molprof.gpu_calls;

-- One row per call that starts a kernel or a graph, in order of start.
CREATE PERFETTO VIEW molprof_launch(
  -- The call's slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time in the call, ns.
  dur DURATION,
  -- Name of the runtime or driver function.
  name STRING,
  -- launch or graph_launch.
  kind STRING,
  -- Device of the work that it started, as text; null where none is recorded.
  device STRING,
  -- Kernels that it started.
  kernels LONG,
  -- From the start of the call to the start of its first work, ns; null where none is recorded.
  delay DURATION,
  -- Queue depth: kernels, copies and sets of earlier calls on that device that had not ended when the call began;
  -- without work whose call is not recorded; null where the call started none.
  queue_depth LONG
) AS
SELECT
  call.id,
  call.ts,
  call.dur,
  call.name,
  call.kind,
  launch.device,
  launch.kernels,
  launch.delay,
  launch.queue_depth
FROM _molprof_fact_launch AS launch
CROSS JOIN molprof_gpu_call AS call
WHERE call.id = launch.id
ORDER BY call.ts, call.id;

-- Launches by name, most calls first.
CREATE PERFETTO VIEW molprof_launch_queue_summary(
  name STRING,
  kind STRING,
  -- Calls.
  count LONG,
  -- Time in the calls, ns.
  time_ns DURATION,
  -- Mean time of a call, ns.
  mean_ns DOUBLE,
  -- Kernels that they started.
  kernels LONG,
  -- Shortest time from a call's start to its first work's start, ns; null where no work is linked.
  shortest_delay_ns DURATION,
  -- Mean of such times, ns; null as above.
  mean_delay_ns DOUBLE,
  -- Longest such time, ns; null as above.
  longest_delay_ns DURATION,
  -- Mean queue depth when a call began; null as above.
  mean_queue_depth DOUBLE,
  -- Largest queue depth; null as above.
  largest_queue_depth LONG,
  -- Calls that began when the device had no work.
  empty_queue LONG
) AS
SELECT
  name,
  kind,
  COUNT() AS count,
  SUM(dur) AS time_ns,
  AVG(dur) AS mean_ns,
  SUM(kernels) AS kernels,
  MIN(delay) AS shortest_delay_ns,
  AVG(delay) AS mean_delay_ns,
  MAX(delay) AS longest_delay_ns,
  AVG(queue_depth) AS mean_queue_depth,
  MAX(queue_depth) AS largest_queue_depth,
  COUNT() FILTER (WHERE queue_depth = 0) AS empty_queue
FROM molprof_launch
GROUP BY name, kind
ORDER BY count DESC, name, kind;
