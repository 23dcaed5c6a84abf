-- Contents of CUDA and HIP graphs: each piece of work of a graph with its position, over all replays.
--
-- Launches replay one graph if their graph id, device, and names of work are the same: without graph ids in the trace,
-- equal graphs count as one. Positions are those of the graph's first replay in order of start.
-- In another replay, work belongs to the position with the same node id, else with the same index among work of its name.
--
-- Example:
--   SELECT position, name, count, p50_ns, shortest_ns, longest_ns, p50_gap_ns
--   FROM molprof_graph_position
--   WHERE graph = 0
--   ORDER BY position;

-- Launches with work, and the graph that each replays.
CREATE PERFETTO VIEW molprof_graph_replay(
  -- The launch's slice.
  launch_id JOINID(slice.id),
  -- Number of the graph, from 0, in order of its first replay.
  graph LONG,
  -- Number of the replay of this graph, from 0.
  replay LONG,
  -- Graph id as recorded; null where it is not.
  graph_id LONG,
  -- Start of its first work, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- From the start of its first work to the end of its last, ns.
  dur DURATION,
  -- Kernels.
  kernels LONG,
  -- Copies and sets.
  memory_operations LONG,
  -- Sum of the times of its work, ns.
  gpu_ns DURATION,
  -- Time inside it in which none of its work runs, ns.
  gaps_ns DURATION
) AS
SELECT
  launch_id,
  graph,
  replay,
  graph_id,
  ts,
  dur,
  kernels,
  memory_operations,
  gpu_ns,
  gaps_ns
FROM _molprof_fact_graph_replay
ORDER BY ts, launch_id;

-- Graphs, and how their replays differ, in order of the first replay. Medians are the lower of the middle two.
CREATE PERFETTO VIEW molprof_replayed_graph(
  -- Number, from 0.
  graph LONG,
  graph_id LONG,
  -- Launches with work.
  replays LONG,
  -- Kernels in each.
  kernels LONG,
  -- Copies and sets in each.
  memory_operations LONG,
  -- Time from the first work of a replay to the end of its last, ns: median.
  p50_ns DURATION,
  -- The shortest, ns.
  shortest_ns DURATION,
  -- The longest, ns.
  longest_ns DURATION,
  -- Sum of the times of its work, ns: mean.
  mean_gpu_ns DOUBLE,
  -- Time inside it in which none of its work runs, ns: mean.
  mean_gaps_ns DOUBLE
) AS
SELECT
  graph,
  graph_id,
  replays,
  kernels,
  memory_operations,
  p50_ns,
  shortest_ns,
  longest_ns,
  1.0 * gpu_ns / replays AS mean_gpu_ns,
  1.0 * gaps_ns / replays AS mean_gaps_ns
FROM _molprof_fact_replayed_graph
ORDER BY graph;

-- Positions of each graph over all replays, in order. Medians are the lower of the middle two.
CREATE PERFETTO VIEW molprof_graph_position(
  -- Number of the graph, from 0.
  graph LONG,
  -- Position in the graph, from 0.
  position LONG,
  -- Name.
  name STRING,
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- Replays that have it.
  count LONG,
  -- Time on the device, ns: median.
  p50_ns DURATION,
  shortest_ns DURATION,
  longest_ns DURATION,
  -- Sum over all replays, ns.
  time_ns DURATION,
  -- From the end of all earlier work to its start, ns: median; null for the first.
  p50_gap_ns DURATION,
  -- Sum of these over all replays, ns.
  gaps_ns DURATION
) AS
SELECT
  graph,
  position,
  name,
  category,
  count,
  p50_ns,
  shortest_ns,
  longest_ns,
  time_ns,
  p50_gap_ns,
  gaps_ns
FROM _molprof_fact_graph_position
ORDER BY graph, position;
