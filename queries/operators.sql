-- Leaf operators: CPU operators (category cpu_op) that do the work themselves.
--
-- Example:
--   SELECT name, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_leaf_operator
--   GROUP BY name
--   ORDER BY count DESC, name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.annotations;

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
    WHERE category = 'cpu_op'
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
ORDER BY ts, id;

-- The category of operators where modules count them: where no GPU calls are recorded, and in a captured run. Else no
-- row, and so no slice is looked at below.
CREATE PERFETTO TABLE _molprof_counted_category AS
SELECT 'cpu_op' AS category
WHERE
  NOT EXISTS(SELECT 1 FROM slice WHERE category IN ('cuda_runtime', 'cuda_driver'))
  OR EXISTS(SELECT 1 FROM molprof_annotation WHERE source = 'molprof');

-- Where operators are counted: slices with an operator right below them.
CREATE PERFETTO TABLE _molprof_direct_caller AS
SELECT DISTINCT parent_id AS id
FROM slice
WHERE category = (SELECT category FROM _molprof_counted_category) AND parent_id IS NOT NULL
ORDER BY parent_id;

-- The same, and those with an operator further below, under annotations. In order of id, so that the engine can search.
CREATE PERFETTO TABLE _molprof_caller AS
WITH RECURSIVE
  above(id) AS (
    SELECT slice.parent_id
    FROM slice
    JOIN _molprof_direct_caller USING (id)
    WHERE slice.category IS NOT 'cpu_op' AND slice.parent_id IS NOT NULL
    UNION
    SELECT slice.parent_id
    FROM above
    CROSS JOIN slice USING (id)
    WHERE slice.category IS NOT 'cpu_op' AND slice.parent_id IS NOT NULL
  )
SELECT id
FROM _molprof_direct_caller
UNION ALL
SELECT id
FROM above
ORDER BY id;

-- The leaf operators of molprof_leaf_operator, found without a window, which takes three times as long.
CREATE PERFETTO TABLE _molprof_counted_operator AS
SELECT
  slice.id,
  slice.ts,
  slice.track_id
FROM slice
LEFT JOIN _molprof_caller AS caller USING (id)
WHERE
  slice.category = (SELECT category FROM _molprof_counted_category)
  -- Without a recorded end, what follows is not known to be called by it.
  AND (caller.id IS NULL OR slice.dur < 0)
ORDER BY slice.ts, slice.id;

