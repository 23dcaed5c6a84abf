-- Location of the CPU in the program during long gaps in which a device had nothing queued.
--
-- Gaps of molprof.idle_causes longer than 1 ms; without GPU work the time in which no thread is in an operator, on the one
-- with most time in them. The innermost slice counts, with the enclosing operator, function and modules
-- (molprof.call_locations). Functions are recorded with Python stacks only, which molprof query reads with --stacks.
--
-- Example:
--   SELECT location.source, location.operator, location.annotation, idle.count, idle.time_ns
--   FROM molprof_idle_time AS idle
--   LEFT JOIN molprof_idle_location AS location USING (location_id)
--   ORDER BY idle.time_ns DESC, idle.location_id
--   LIMIT 20;

-- That time by location.
CREATE PERFETTO VIEW molprof_idle_time(
  -- The location; null if the thread is in no recorded slice.
  location_id JOINID(slice.id),
  -- Gaps.
  count LONG,
  -- Sum, ns.
  time_ns DURATION
) AS
SELECT
  location_id,
  count,
  time_ns
FROM _molprof_fact_idle_location
ORDER BY time_ns DESC, location_id;

-- The locations of that time, without those that take less than a thousandth of it and enclose none that takes more.
CREATE PERFETTO VIEW molprof_idle_location(
  -- The first slice at the location.
  location_id JOINID(slice.id),
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
  location_id,
  operator,
  annotation,
  source,
  module
FROM _molprof_fact_idle_location
WHERE location_id IS NOT NULL AND is_shown
ORDER BY location_id;
