-- Device time that unrecorded work may have taken.
--
-- Example:
--   SELECT position, device, inside_ns, outside_ns
--   FROM molprof_missing_time
--   ORDER BY position, device;

-- Device time without recorded work since the first launch without work, and in host syncs that go on after all recorded
-- work: what the missing work may have taken. No time is in two rows: it is that of the launches with the first start.
CREATE PERFETTO VIEW molprof_missing_time(
  -- Position of the launches, as in molprof_missing_work, or sync.
  position STRING,
  -- Device number as text.
  device STRING,
  -- Idle time of the device between its recorded work, ns.
  inside_ns DURATION,
  -- Time before its first and after its last recorded work, ns.
  outside_ns DURATION
) AS
SELECT
  position,
  device,
  inside_ns,
  outside_ns
FROM _molprof_fact_missing_time
ORDER BY position, device;

-- Host syncs that last longer than all recorded work that was queued when they began.
CREATE PERFETTO VIEW molprof_long_sync(
  -- The call's slice.
  id JOINID(slice.id),
  -- For how long the call went on after the last of that work, ns.
  dur DURATION
) AS
SELECT
  id,
  dur
FROM _molprof_fact_long_sync
ORDER BY id;
