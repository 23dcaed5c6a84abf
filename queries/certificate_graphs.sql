-- Graph launches whose work is not recorded, or only in part.
--
-- Example:
--   SELECT name, graph_launches, without_work, kernels
--   FROM molprof_graph_without_work
--   ORDER BY name;

INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.graph_nodes;
INCLUDE PERFETTO MODULE molprof.graphs;
INCLUDE PERFETTO MODULE molprof.step_placement;

-- Calls that launch graphs, by name, where any of them has no work. Calls without a correlation number are left out.
CREATE PERFETTO VIEW molprof_graph_without_work(
  -- Name of the runtime or driver function.
  name STRING,
  -- Calls.
  graph_launches LONG,
  -- Calls without any kernel, copy or set.
  without_work LONG,
  -- Kernels of all of them.
  kernels LONG
) AS
SELECT
  name,
  COUNT() AS graph_launches,
  SUM(kernels + memory_operations = 0) AS without_work,
  SUM(kernels) AS kernels
FROM molprof_graph_launch AS graph
WHERE (SELECT correlation FROM molprof_gpu_call AS call WHERE call.id = graph.id) IS NOT NULL
GROUP BY name
HAVING SUM(kernels + memory_operations = 0) > 0
ORDER BY name;

-- Each piece of work of a graph launch with the one before it, and the gap between them in which nothing of the launch
-- runs.
CREATE PERFETTO TABLE _molprof_graph_pair AS
SELECT
  launch_id,
  device,
  graph_id,
  -- 1: the node was captured next.
  node_id - LAG(node_id) OVER (PARTITION BY launch_id ORDER BY ts, id) AS nodes,
  LAG(name) OVER (PARTITION BY launch_id ORDER BY ts, id) AS before,
  name,
  MAX(0, ts - ended_ts) AS gap_ns
FROM _molprof_graph_work;

-- Long gaps in which work of a launch may be absent. Its two neighbours are kernels that follow each other nowhere
-- without such a gap, and both have other neighbours elsewhere. A gap that most replays have belongs to the graph, so it
-- does not count. Where nodes are numbered, a number that is left out tells it instead; replays of one graph are compared
-- with each other below.
CREATE PERFETTO TABLE _molprof_graph_hole AS
WITH
  pair AS (
    SELECT
      before,
      name,
      COUNT() AS count,
      COUNT(DISTINCT launch_id) AS launches,
      MIN(gap_ns) AS least_ns
    FROM _molprof_graph_pair
    WHERE before IS NOT NULL
    GROUP BY before, name
  ),
  first AS (
    SELECT
      before,
      SUM(count) AS count,
      COUNT() AS names
    FROM pair
    GROUP BY before
  ),
  launched AS (
    SELECT
      name,
      COUNT(DISTINCT launch_id) AS launches
    FROM _molprof_graph_pair
    GROUP BY name
  ),
  last AS (
    SELECT
      name,
      COUNT() AS names
    FROM pair
    GROUP BY name
  ),
  usual AS (
    SELECT gap_ns
    FROM _molprof_graph_pair
    WHERE gap_ns IS NOT NULL
    ORDER BY gap_ns
    LIMIT 1 OFFSET (SELECT COUNT(gap_ns) / 2 FROM _molprof_graph_pair)
  ),
  long AS (
    SELECT MAX(1000, 3 * gap_ns) AS gap_ns
    FROM usual
  )
SELECT
  hole.launch_id,
  hole.device,
  hole.gap_ns
FROM pair
CROSS JOIN first ON first.before = pair.before
CROSS JOIN last ON last.name = pair.name
CROSS JOIN launched ON launched.name = pair.before
CROSS JOIN _molprof_graph_pair AS hole ON hole.before = pair.before AND hole.name = pair.name
WHERE
  pair.least_ns >= (SELECT gap_ns FROM long)
  AND hole.nodes IS NULL
  AND first.names > 1
  AND last.names > 1
  AND IIF(launched.launches > 1, 2 * pair.launches < launched.launches, 4 * pair.count <= first.count)
UNION ALL
SELECT
  launch_id,
  device,
  gap_ns
FROM _molprof_graph_pair AS hole
WHERE
  nodes > 1
  AND gap_ns >= (SELECT gap_ns FROM long)
  AND NOT EXISTS(
    SELECT 1
    FROM _molprof_graph_pair AS other
    WHERE other.graph_id = hole.graph_id AND other.launch_id != hole.launch_id
  );

-- Launches whose work is a part of that of another graph, which is replayed before and after them in their step, and at
-- least four times as often.
CREATE PERFETTO TABLE _molprof_graph_part AS
WITH
  graph AS (
    SELECT
      graph,
      COUNT() AS replays,
      MIN(launch_id) AS launch_id,
      MIN(kernels + memory_operations) AS count,
      MAX(gpu_ns) AS gpu_ns
    FROM molprof_graph_replay
    WHERE graph_id IS NULL
    GROUP BY graph
  ),
  replay AS (
    SELECT
      replay.launch_id,
      replay.graph,
      replay.gpu_ns,
      LAG(replay.graph, 1) OVER near AS last,
      LAG(replay.graph, 2) OVER near AS second_last,
      LEAD(replay.graph, 1) OVER near AS next,
      LEAD(replay.graph, 2) OVER near AS second_next
    FROM molprof_graph_replay AS replay
    JOIN molprof_call_step AS place ON place.id = replay.launch_id
    WINDOW near AS (PARTITION BY place.step_id ORDER BY replay.ts, replay.launch_id)
  ),
  names AS (
    SELECT
      work.launch_id,
      work.name,
      COUNT() AS count
    FROM _molprof_graph_work AS work
    JOIN graph USING (launch_id)
    GROUP BY work.launch_id, work.name
  )
SELECT
  replay.launch_id,
  whole.count - part.count AS absent,
  MAX(0, whole.gpu_ns - replay.gpu_ns) AS time_ns
FROM replay
JOIN graph AS part USING (graph)
JOIN graph AS whole
  ON whole.graph IN (replay.last, replay.second_last)
  AND whole.graph IN (replay.next, replay.second_next)
  AND whole.count > part.count
  AND whole.replays >= 4 * part.replays
WHERE
  NOT EXISTS(
    SELECT 1
    FROM names AS mine
    LEFT JOIN names AS other ON other.launch_id = whole.launch_id AND other.name = mine.name
    WHERE mine.launch_id = part.launch_id AND mine.count > IFNULL(other.count, 0)
  );

-- Graph launches of which only some work is recorded, by device: replays of one graph id with less work than the largest,
-- those with a part of what is replayed around them, and launches with gaps in which work stands elsewhere.
CREATE PERFETTO VIEW molprof_graph_incomplete(
  -- Device number as text.
  device STRING,
  -- Launches.
  launches LONG,
  -- Kernels, copies and sets that are absent, as the largest replay has them; null where gaps alone tell it.
  absent LONG,
  -- Time that they take in the largest replay, or gaps in which they stand, ns.
  time_ns DURATION
) AS
WITH
  launched AS (
    SELECT
      launch_id,
      MIN(device) AS device,
      MIN(graph_id) AS graph_id,
      COUNT() AS count,
      SUM(dur) AS time_ns
    FROM _molprof_graph_work
    GROUP BY launch_id
  ),
  largest AS (
    SELECT
      device,
      graph_id,
      MAX(count) AS count,
      MAX(time_ns) AS time_ns
    FROM launched
    WHERE graph_id IS NOT NULL
    GROUP BY device, graph_id
  ),
  found AS (
    SELECT
      launched.launch_id,
      launched.device,
      largest.count - launched.count AS absent,
      MAX(0, largest.time_ns - launched.time_ns) AS time_ns
    FROM launched
    JOIN largest USING (device, graph_id)
    WHERE largest.count > launched.count
    UNION ALL
    SELECT
      launch_id,
      device,
      NULL AS absent,
      SUM(gap_ns) AS time_ns
    FROM _molprof_graph_hole
    GROUP BY launch_id, device
    UNION ALL
    SELECT
      part.launch_id,
      launched.device,
      MAX(part.absent) AS absent,
      MAX(part.time_ns) AS time_ns
    FROM _molprof_graph_part AS part
    JOIN launched USING (launch_id)
    GROUP BY part.launch_id, launched.device
  ),
  worst AS (
    SELECT
      launch_id,
      device,
      MAX(absent) AS absent,
      MAX(time_ns) AS time_ns
    FROM found
    GROUP BY launch_id, device
  )
SELECT
  device,
  COUNT() AS launches,
  IIF(COUNT(absent) = COUNT(), SUM(absent), NULL) AS absent,
  SUM(time_ns) AS time_ns
FROM worst
GROUP BY device
ORDER BY device;
