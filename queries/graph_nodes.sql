-- What CUDA and HIP graphs hold: each piece of work of a graph with its position, over all replays.
--
-- Launches replay one graph if their graph id, device, and names of work are the same: without graph ids in the trace,
-- equal graphs cannot be told apart, and count as one. Positions are those of the graph's first replay in order of start.
-- In another replay, work belongs to the position with the same node id, else with the same place among work of its name.
--
-- Example:
--   SELECT position, name, count, p50_ns, shortest_ns, longest_ns, p50_gap_ns
--   FROM molprof_graph_position
--   WHERE graph = 0
--   ORDER BY position;

INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Work of graph launches, and how much of the graph ended before it.
CREATE PERFETTO TABLE _molprof_graph_work AS
WITH
  found AS (
    SELECT
      work.call_id AS launch_id,
      work.id,
      work.ts,
      work.dur,
      IFNULL(slice.name, '(no name)') AS name,
      work.category,
      work.device,
      EXTRACT_ARG(slice.arg_set_id, 'args.graph id') AS graph_id,
      EXTRACT_ARG(slice.arg_set_id, 'args.graph node id') AS node_id,
      -- The engine itself takes arrays apart.
      CAST(
        COALESCE(
          EXTRACT_ARG(slice.arg_set_id, 'args.annotation'),
          EXTRACT_ARG(slice.arg_set_id, 'args.annotation[0].name')
        ) AS TEXT
      ) AS annotation
    -- In this order, work is looked up by its call; without graph launches, none is.
    FROM _molprof_graph_call AS call
    CROSS JOIN _molprof_work AS work
    CROSS JOIN slice
    WHERE work.call_id = call.id AND slice.id = work.id
  )
SELECT
  launch_id,
  id,
  ts,
  dur,
  name,
  category,
  device,
  -- What is no number tells no graph.
  IIF(TYPEOF(graph_id) = 'integer', graph_id, NULL) AS graph_id,
  IIF(TYPEOF(node_id) = 'integer', node_id, NULL) AS node_id,
  annotation,
  ROW_NUMBER() OVER (PARTITION BY launch_id ORDER BY ts, id) - 1 AS place,
  IFNULL('node ' || node_id, name || ' #' || ROW_NUMBER() OVER (PARTITION BY launch_id, name ORDER BY ts, id)) AS node,
  MAX(ts + dur) OVER (
    PARTITION BY launch_id
    ORDER BY ts, id
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS ended_ts
FROM found
ORDER BY ts, id;

-- Launches with work, and the graph that each replays.
CREATE PERFETTO TABLE molprof_graph_replay(
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
WITH
  launched AS (
    SELECT
      launch_id,
      MIN(device) AS device,
      MIN(graph_id) AS graph_id,
      MIN(ts) AS ts,
      MAX(ts + dur) - MIN(ts) AS dur,
      SUM(category = 'kernel') AS kernels,
      SUM(category != 'kernel') AS memory_operations,
      SUM(dur) AS gpu_ns,
      SUM(MAX(0, ts - IFNULL(ended_ts, ts))) AS gaps_ns,
      -- Equal for equal names in any order: streams of a graph may overtake each other.
      SUM(HASH(name, category) & 4294967295) AS digest
    FROM _molprof_graph_work
    GROUP BY launch_id
  ),
  replayed AS (
    SELECT
      *,
      MIN(ts) OVER alike AS first_ts,
      MIN(launch_id) OVER alike AS first_id,
      ROW_NUMBER() OVER (PARTITION BY device, graph_id, kernels, memory_operations, digest ORDER BY ts, launch_id) - 1
        AS replay
    FROM launched
    WINDOW alike AS (PARTITION BY device, graph_id, kernels, memory_operations, digest)
  )
SELECT
  launch_id,
  DENSE_RANK() OVER (ORDER BY first_ts, first_id) - 1 AS graph,
  replay,
  graph_id,
  ts,
  dur,
  kernels,
  memory_operations,
  gpu_ns,
  gaps_ns
FROM replayed
ORDER BY ts, launch_id;

-- Every piece of work of a graph, in order of start.
CREATE PERFETTO TABLE molprof_graph_node(
  -- The kernel, copy or set.
  id JOINID(slice.id),
  launch_id JOINID(slice.id),
  -- Number of the graph, from 0.
  graph LONG,
  replay LONG,
  -- Position in the graph, from 0; null where its first replay has no such work.
  position LONG,
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the device, ns.
  dur DURATION,
  -- From the end of all earlier work of the launch to the start of this, ns; 0 if they overlap, null for the first.
  gap_ns DURATION,
  -- Name as recorded.
  name STRING,
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- Graph node id as recorded; null where it is not.
  node_id LONG,
  -- Annotation of the node as recorded, mostly JSON; null without one.
  annotation STRING
) AS
WITH
  numbered AS (
    SELECT
      work.id,
      work.launch_id,
      replay.graph,
      replay.replay,
      work.ts,
      work.dur,
      MAX(0, work.ts - work.ended_ts) AS gap_ns,
      work.name,
      work.category,
      work.node_id,
      work.annotation,
      work.place,
      work.node
    FROM _molprof_graph_work AS work
    JOIN molprof_graph_replay AS replay USING (launch_id)
  )
SELECT
  work.id,
  work.launch_id,
  work.graph,
  work.replay,
  first.place AS position,
  work.ts,
  work.dur,
  work.gap_ns,
  work.name,
  work.category,
  work.node_id,
  work.annotation
FROM numbered AS work
LEFT JOIN numbered AS first ON first.graph = work.graph AND first.replay = 0 AND first.node = work.node
ORDER BY work.ts, work.id;

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
WITH
  ordered AS (
    SELECT
      graph,
      graph_id,
      kernels,
      memory_operations,
      dur,
      gpu_ns,
      gaps_ns,
      ROW_NUMBER() OVER (PARTITION BY graph ORDER BY dur, launch_id) AS number,
      COUNT() OVER (PARTITION BY graph) AS count
    FROM molprof_graph_replay
  )
SELECT
  graph,
  MIN(graph_id) AS graph_id,
  COUNT() AS replays,
  MIN(kernels) AS kernels,
  MIN(memory_operations) AS memory_operations,
  MAX(IIF(number = (count + 1) / 2, dur, NULL)) AS p50_ns,
  MIN(dur) AS shortest_ns,
  MAX(dur) AS longest_ns,
  AVG(gpu_ns) AS mean_gpu_ns,
  AVG(gaps_ns) AS mean_gaps_ns
FROM ordered
GROUP BY graph
ORDER BY graph;

-- Positions of each graph over all replays, in order. Medians are the lower of the middle two.
CREATE PERFETTO VIEW molprof_graph_position(
  -- Number of the graph, from 0.
  graph LONG,
  -- Position in the graph, from 0.
  position LONG,
  -- Name.
  name STRING,
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
WITH
  ordered AS (
    SELECT
      graph,
      position,
      name,
      category,
      dur,
      gap_ns,
      ROW_NUMBER() OVER (PARTITION BY graph, position ORDER BY dur, id) AS number,
      ROW_NUMBER() OVER (PARTITION BY graph, position ORDER BY gap_ns IS NULL, gap_ns, id) AS gap_number,
      COUNT() OVER (PARTITION BY graph, position) AS count,
      COUNT(gap_ns) OVER (PARTITION BY graph, position) AS gap_count
    FROM molprof_graph_node
    WHERE position IS NOT NULL
  )
SELECT
  graph,
  position,
  MIN(name) AS name,
  MIN(category) AS category,
  COUNT() AS count,
  MAX(IIF(number = (count + 1) / 2, dur, NULL)) AS p50_ns,
  MIN(dur) AS shortest_ns,
  MAX(dur) AS longest_ns,
  SUM(dur) AS time_ns,
  MAX(IIF(gap_number = (gap_count + 1) / 2, gap_ns, NULL)) AS p50_gap_ns,
  SUM(gap_ns) AS gaps_ns
FROM ordered
GROUP BY graph, position
ORDER BY graph, position;
