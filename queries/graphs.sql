-- Graph launches (CUDA or HIP graphs) and the work of each.
--
-- Example:
--   SELECT name, graph_launches, kernels, kernels_per_graph, gpu_ns, mean_delay_ns
--   FROM molprof_graph_summary
--   ORDER BY graph_launches DESC, name;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- One row per graph launch, in order of start.
CREATE PERFETTO TABLE molprof_graph_launch(
  -- The call's slice.
  id JOINID(slice.id),
  -- Start of the call, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time in the call, ns.
  dur DURATION,
  -- Name of the runtime or driver function.
  name STRING,
  -- Kernels of the graph; 0 where none is recorded.
  kernels LONG,
  -- Copies and sets of the graph.
  memory_operations LONG,
  -- Sum of their times, ns; concurrent work counts each.
  gpu_ns DURATION,
  -- From the start of the graph's first work to the end of its last, ns; null where none is recorded.
  span_ns DURATION,
  -- From the start of the call to the start of the graph's first work, ns; null as above.
  delay DURATION
) AS
SELECT
  call.id,
  call.ts,
  call.dur,
  call.name,
  IFNULL(SUM(work.category = 'kernel'), 0) AS kernels,
  IFNULL(SUM(work.category != 'kernel'), 0) AS memory_operations,
  IFNULL(SUM(work.dur), 0) AS gpu_ns,
  MAX(work.ts_end) - MIN(work.ts) AS span_ns,
  MIN(work.ts) - call.ts AS delay
FROM _molprof_fact_graph_launch AS launch
CROSS JOIN slice AS call
LEFT JOIN _molprof_work AS work ON work.call_id = launch.id
WHERE call.id = launch.id
GROUP BY launch.id
ORDER BY call.ts, call.id;

-- Graph launches by name, most calls first.
CREATE PERFETTO VIEW molprof_graph_summary(
  name STRING,
  -- Calls.
  graph_launches LONG,
  -- Time in the calls, ns.
  time_ns DURATION,
  -- Kernels of the graphs.
  kernels LONG,
  -- Mean number of kernels in a graph.
  kernels_per_graph DOUBLE,
  -- Sum of the times of the graphs' work, ns.
  gpu_ns DURATION,
  -- Mean time from a call's start to its first work's start, ns, over calls that started any; null where no work is
  -- recorded.
  mean_delay_ns DOUBLE
) AS
SELECT
  name,
  COUNT() AS graph_launches,
  SUM(dur) AS time_ns,
  SUM(kernels) AS kernels,
  AVG(kernels) AS kernels_per_graph,
  SUM(gpu_ns) AS gpu_ns,
  AVG(delay) AS mean_delay_ns
FROM molprof_graph_launch
GROUP BY name
ORDER BY graph_launches DESC, name;

-- Work of graph launches, with its graph and node. Args that are no numbers give none.
CREATE PERFETTO TABLE _molprof_graph_work AS
SELECT
  id,
  IIF(TYPEOF(graph_id) = 'integer', graph_id, NULL) AS graph_id,
  IIF(TYPEOF(node_id) = 'integer', node_id, NULL) AS node_id
FROM (
  SELECT
    work.id,
    EXTRACT_ARG(slice.arg_set_id, 'args.graph id') AS graph_id,
    EXTRACT_ARG(slice.arg_set_id, 'args.graph node id') AS node_id
  -- In this order, work is looked up by its call; without graph launches, none is.
  FROM _molprof_fact_graph_launch AS launch
  CROSS JOIN _molprof_work AS work
  CROSS JOIN slice
  WHERE work.call_id = launch.id AND slice.id = work.id
)
ORDER BY id;
