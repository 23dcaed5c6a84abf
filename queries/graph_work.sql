-- Work of CUDA and HIP graphs, each piece with its position in the graph.
--
-- Graphs and positions are those of molprof.graph_nodes.
--
-- Example:
--   SELECT graph, replay, position, name, dur, gap_ns
--   FROM molprof_graph_node
--   ORDER BY ts, id
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.graphs;

-- Every piece of work of a graph, in order of start.
CREATE PERFETTO VIEW molprof_graph_node(
  -- The kernel, copy or set.
  id JOINID(slice.id),
  -- The launch's slice.
  launch_id JOINID(slice.id),
  -- Number of the graph, from 0.
  graph LONG,
  -- Number of the replay of this graph, from 0.
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
SELECT
  work.id,
  work.launch_id,
  work.graph,
  work.replay,
  work.position,
  slice.ts,
  IFNULL(overrun.dur, slice.dur) AS dur,
  work.gap_ns,
  IFNULL(slice.name, '(no name)') AS name,
  slice.category,
  graph.node_id,
  -- The engine itself takes arrays apart.
  CAST(
    COALESCE(
      EXTRACT_ARG(slice.arg_set_id, 'args.annotation'),
      EXTRACT_ARG(slice.arg_set_id, 'args.annotation[0].name')
    ) AS TEXT
  ) AS annotation
FROM _molprof_fact_graph_node AS work
JOIN _molprof_graph_work AS graph USING (id)
JOIN slice USING (id)
LEFT JOIN _molprof_fact_overrun AS overrun ON overrun.id = work.id
ORDER BY slice.ts, slice.id;
