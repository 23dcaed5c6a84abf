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
)
AS
WITH
  -- The first operator that an operator calls is the next one of its track.
  ordered AS (
    SELECT
      id,
      ts,
      dur,
      name,
      depth,
      LEAD(ts) OVER in_order AS next_ts,
      LEAD(depth) OVER in_order AS next_depth
    FROM slice
    WHERE
      category = 'cpu_op'
    WINDOW in_order AS (PARTITION BY track_id ORDER BY ts, depth, id)
  )
SELECT
  id,
  ts,
  dur,
  name
FROM ordered
WHERE
  next_ts IS NULL
  OR next_depth <= depth
  OR next_ts >= ts + MAX(dur, 1)
ORDER BY
  ts,
  id;

-- The same, computed once for the modules that count them: where no GPU calls are recorded, and in a captured run.
CREATE PERFETTO TABLE _molprof_counted_operator AS
SELECT
  id,
  ts
FROM (
  SELECT
    1
  WHERE
    NOT EXISTS(SELECT 1 FROM slice WHERE category IN ('cuda_runtime', 'cuda_driver'))
    OR EXISTS(SELECT 1 FROM slice WHERE category = 'user_annotation' AND name GLOB 'molprof.*')
)
CROSS JOIN molprof_leaf_operator
ORDER BY
  ts,
  id;
