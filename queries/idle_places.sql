-- Where in the program the CPU was in long gaps, in which a device had nothing queued.
--
-- Gaps of molprof.idle_causes longer than 1 ms, and the time before the first and after the last work of a device; without
-- GPU work the time in which no thread is in an operator, on the one with most time in them. The innermost slice counts,
-- with the operator, function and modules around it (molprof.call_places). Functions are recorded with Python stacks only,
-- which molprof query reads with --stacks.
--
-- Example:
--   SELECT place.source, place.operator, place.annotation, idle.count, idle.time_ns
--   FROM molprof_idle_time AS idle
--   LEFT JOIN molprof_idle_place AS place USING (place_id)
--   ORDER BY idle.time_ns DESC, idle.place_id
--   LIMIT 20;

INCLUDE PERFETTO MODULE intervals.intersect;
INCLUDE PERFETTO MODULE molprof.call_places;
INCLUDE PERFETTO MODULE molprof.idle_causes;

-- Time of each stretch in each slice of its thread.
CREATE PERFETTO TABLE _molprof_idle_overlap AS
SELECT
  common.id,
  common.slice_id,
  slice.parent_id,
  common.ts_end - common.ts AS time_ns
FROM _molprof_common!(
  _molprof_long_host_idle,
  (
    SELECT id, ts, dur, track_id
    FROM slice
    WHERE dur > 0 AND track_id IN (SELECT DISTINCT track_id FROM _molprof_long_host_idle)
  )
) AS common
CROSS JOIN slice
WHERE slice.id = common.slice_id
ORDER BY common.id, common.slice_id;

-- The idle time of each gap by innermost slice: the time in a slice less that in the slices in it.
CREATE PERFETTO TABLE _molprof_idle_own AS
WITH
  own AS (
    SELECT id, slice_id, time_ns FROM _molprof_idle_overlap
    UNION ALL
    SELECT id, parent_id, -time_ns FROM _molprof_idle_overlap
    UNION ALL
    SELECT id, NULL, dur FROM _molprof_long_host_idle
  ),
  summed AS (
    SELECT
      id,
      slice_id,
      SUM(time_ns) AS time_ns
    FROM own
    GROUP BY id, slice_id
    HAVING SUM(time_ns) != 0
  )
SELECT
  summed.id,
  MIN(summed.slice_id) OVER (PARTITION BY slice.stack_id) AS place_id,
  summed.time_ns
FROM summed
LEFT JOIN slice ON slice.id = summed.slice_id;

-- That time by place.
CREATE PERFETTO TABLE molprof_idle_time(
  -- The place; null where the thread is in nothing recorded.
  place_id JOINID(slice.id),
  -- Gaps.
  count LONG,
  -- Sum, ns.
  time_ns DURATION
) AS
SELECT
  place_id,
  COUNT(DISTINCT id) AS count,
  SUM(time_ns) AS time_ns
FROM _molprof_idle_own
GROUP BY place_id
ORDER BY time_ns DESC, place_id;

CREATE PERFETTO TABLE _molprof_idle_surroundings AS
SELECT *
FROM _molprof_with_surroundings!(
  (
    SELECT place_id AS id
    FROM molprof_idle_time
    WHERE place_id IS NOT NULL AND time_ns >= 0.001 * (SELECT SUM(time_ns) FROM molprof_idle_time)
  )
);

-- The places of that time; those that take less than a thousandth of it have no row.
CREATE PERFETTO TABLE molprof_idle_place(
  -- The first slice of the place.
  place_id JOINID(slice.id),
  -- Innermost operator; null where there is none.
  operator STRING,
  -- Innermost annotation (record_function); null where there is none.
  annotation STRING,
  -- Innermost Python function, as file(line): name, of a library only where there is no other; null without stacks.
  source STRING,
  -- Classes of the modules, the outermost first, with / between them; null without stacks.
  module STRING
) AS
SELECT place.*
FROM _molprof_described!(_molprof_idle_surroundings) AS place
WHERE place.place_id IN (SELECT time.place_id FROM molprof_idle_time AS time)
ORDER BY place.place_id;
