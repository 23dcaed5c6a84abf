-- Leaf operators: CPU operators (category cpu_op) that do the work themselves.
--
-- Example:
--   SELECT name, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_leaf_operator
--   GROUP BY name
--   ORDER BY count DESC, name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.annotations;

-- Slices in which an operator is the next deeper slice. A table of its own: the engine finds its rows by number.
CREATE PERFETTO TABLE _molprof_direct_caller AS
SELECT DISTINCT
  parent_id AS id
FROM slice
WHERE
  category = 'cpu_op' AND parent_id IS NOT NULL;

-- The same, and those in which an operator lies deeper, below others such as annotations.
CREATE PERFETTO TABLE _molprof_caller AS
WITH RECURSIVE
  above(id) AS (
    SELECT
      slice.parent_id
    FROM slice
    JOIN _molprof_direct_caller
      USING (id)
    WHERE
      slice.category IS NOT 'cpu_op' AND slice.parent_id IS NOT NULL
    UNION
    SELECT
      slice.parent_id
    FROM above
    CROSS JOIN slice
      USING (id)
    WHERE
      slice.category IS NOT 'cpu_op' AND slice.parent_id IS NOT NULL
  )
SELECT
  id
FROM _molprof_direct_caller
UNION ALL
SELECT
  id
FROM above
ORDER BY
  id;

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
  name STRING,
  -- Its track.
  track_id JOINID(track.id)
)
AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  slice.name,
  slice.track_id
FROM slice
LEFT JOIN _molprof_caller AS caller
  USING (id)
WHERE
  slice.category = 'cpu_op'
  -- Without a recorded end, what follows is not known to be called by it.
  AND (caller.id IS NULL OR slice.dur < 0)
ORDER BY
  slice.ts,
  slice.id;

-- The same, computed once for the modules that count them: where no GPU calls are recorded, and in a captured run.
CREATE PERFETTO TABLE _molprof_counted_operator AS
SELECT
  id,
  ts,
  track_id
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

-- Their tracks.
CREATE PERFETTO TABLE _molprof_operator_track AS
SELECT
  id,
  upid,
  tid
FROM _molprof_thread_track AS track
WHERE
  EXISTS(SELECT 1 FROM _molprof_counted_operator AS operator WHERE operator.track_id = track.id)
ORDER BY
  id;
