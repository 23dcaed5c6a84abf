-- Graph launches whose work is not recorded, or only in part.
--
-- Example:
--   SELECT name, graph_launches, without_work, kernels
--   FROM molprof_graph_without_work
--   ORDER BY name;

INCLUDE PERFETTO MODULE molprof.graphs;

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
WHERE id NOT IN (SELECT id FROM _molprof_fact_unnumbered_launch)
GROUP BY name
HAVING SUM(kernels + memory_operations = 0) > 0
ORDER BY name;

-- Graph launches of which only some work is recorded, by device: replays of one graph id with less work than the largest,
-- those with a part of what is replayed around them, and launches with gaps in which other replays have work.
CREATE PERFETTO VIEW molprof_graph_incomplete(
  -- Device number as text.
  device STRING,
  -- Launches.
  launches LONG,
  -- Kernels, copies and sets that are absent, as the largest replay has them; null where only gaps show it.
  absent LONG,
  -- Their time in the largest replay, or that of the gaps that they may fill, ns.
  time_ns DURATION
) AS
SELECT
  device,
  launches,
  absent,
  time_ns
FROM _molprof_fact_graph_incomplete
ORDER BY device;
