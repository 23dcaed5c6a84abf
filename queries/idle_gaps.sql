-- The idle time of each device, gap by gap, with the cause that takes most of it.
--
-- molprof.idle_causes explains the causes.
--
-- Example:
--   SELECT device, ts, dur, cause, position
--   FROM molprof_idle_gap
--   ORDER BY dur DESC, device, ts
--   LIMIT 20;

-- One row per gap, in order of device and start.
CREATE PERFETTO VIEW molprof_idle_gap(
  -- Device number as text.
  device STRING,
  -- Start of the gap, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Length of the gap, ns.
  dur DURATION,
  -- The cause that takes most of it.
  cause STRING,
  -- The kernel, copy or set that ended it; null after the last one.
  next_id JOINID(slice.id),
  -- between: after one piece of work and before another; before the first, or after the last of the device.
  position STRING
) AS
SELECT
  device,
  ts,
  ts_end - ts AS dur,
  cause,
  next_id,
  position
FROM _molprof_fact_idle_gap
ORDER BY device, ts;
