-- Where in the program the CPU was in long gaps, in which a device had nothing queued.
--
-- Gaps of molprof.idle_causes longer than 1 ms; without GPU work the time in which no thread is in an operator, on the one
-- with most time in them. The innermost slice counts, with the operator, function and modules around it
-- (molprof.call_places). Functions are recorded with Python stacks only, which molprof query reads with --stacks.
--
-- Example:
--   SELECT place.source, place.operator, place.annotation, idle.count, idle.time_ns
--   FROM molprof_idle_time AS idle
--   LEFT JOIN molprof_idle_place AS place USING (place_id)
--   ORDER BY idle.time_ns DESC, idle.place_id
--   LIMIT 20;

-- That time by place.
CREATE PERFETTO VIEW molprof_idle_time(
  -- The place; null where the thread is in nothing recorded.
  place_id JOINID(slice.id),
  -- Gaps.
  count LONG,
  -- Sum, ns.
  time_ns DURATION
) AS
SELECT
  place_id,
  count,
  time_ns
FROM _molprof_fact_idle_place
ORDER BY time_ns DESC, place_id;

-- The places of that time, without those that take less than a thousandth of it and are around none that takes more.
CREATE PERFETTO VIEW molprof_idle_place(
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
SELECT
  place_id,
  operator,
  annotation,
  source,
  module
FROM _molprof_fact_idle_place
WHERE place_id IS NOT NULL AND is_shown
ORDER BY place_id;
