-- Launches and the GPU work that they started, matched by rank and correlation number.
--
-- Example:
--   SELECT name, kind, count, time_ns, kernels, mean_delay_ns
--   FROM molprof_launch_summary
--   ORDER BY count DESC, name, kind;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- The work that each call started; a call that started nothing has no row.
CREATE PERFETTO VIEW molprof_call_work(
  -- The call; a graph launch starts many.
  call_id JOINID(slice.id),
  -- Device of the work, as text; of several the first by that text.
  device STRING,
  -- Kernels.
  kernels LONG,
  -- Copies and sets.
  memory_operations LONG,
  -- Sum of their times, ns; concurrent work counts each.
  gpu_ns DURATION,
  -- From the first start to the last end of them, ns.
  span_ns DURATION,
  -- From the start of the call to the start of the first of them, ns; below 0 only if clocks disagree.
  delay DURATION
) AS
SELECT
  call_id,
  MIN(device) AS device,
  SUM(category = 'kernel') AS kernels,
  SUM(category != 'kernel') AS memory_operations,
  SUM(dur) AS gpu_ns,
  MAX(ts_end) - MIN(ts) AS span_ns,
  MIN(ts) - (SELECT call.ts FROM slice AS call WHERE call.id = call_id) AS delay
FROM _molprof_work
WHERE call_id IS NOT NULL
GROUP BY call_id;

-- Launching calls by name, most calls first.
CREATE PERFETTO VIEW molprof_launch_summary(
  -- Name of the runtime or driver function.
  name STRING,
  -- launch or graph_launch.
  kind STRING,
  -- Calls.
  count LONG,
  -- Time in the calls, ns.
  time_ns DURATION,
  -- Kernels that they started.
  kernels LONG,
  -- Mean time from a call's start to its first work's start, ns, over calls that started any; null where no work is
  -- linked.
  mean_delay_ns DOUBLE
) AS
SELECT
  name,
  kind,
  count,
  time_ns,
  kernels,
  mean_delay_ns
FROM _molprof_fact_launch_total
ORDER BY count DESC, name, kind;

-- The trace's counts, one row.
CREATE PERFETTO VIEW molprof_launch_count(
  -- Calls that start a kernel; 0 also where no calls are recorded.
  launches LONG,
  -- Calls that start a graph; they are not launches.
  graph_launches LONG,
  kernels LONG,
  -- Sum of kernel times, ns; concurrent kernels count each.
  kernel_time_ns DURATION,
  -- Distinct kernel names.
  kernel_names LONG,
  -- Launches without GPU work of the same correlation number; a missing number counts as a number.
  launches_without_gpu_work LONG,
  -- Kernels with a call of the same correlation number, by the same rule.
  kernels_with_call LONG,
  -- Kernels without such a call.
  kernels_without_call LONG
) AS
SELECT
  launches,
  graph_launches,
  kernels,
  kernel_time_ns,
  kernel_names,
  launches_without_gpu_work,
  kernels_with_call,
  kernels_without_call
FROM _molprof_fact_launch_count;
