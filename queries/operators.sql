-- Leaf operators: CPU operators (category cpu_op) that do the work themselves.
--
-- Example:
--   SELECT name, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_leaf_operator
--   GROUP BY name
--   ORDER BY count DESC, name
--   LIMIT 20;

-- Operators that call no other operator. Without recorded GPU calls their number is the nearest to a number of
-- launches.
CREATE PERFETTO VIEW molprof_leaf_operator(
  -- The operator's slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time in the operator, ns.
  dur DURATION,
  -- Name, such as aten::add.
  name STRING
) AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  slice.name
FROM _molprof_fact_leaf_operator AS leaf
CROSS JOIN slice
WHERE slice.id = leaf.id
ORDER BY slice.ts, slice.id;
