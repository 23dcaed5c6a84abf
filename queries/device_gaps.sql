-- The gaps between the work of each device, and the end of earlier work before each piece of work.
--
-- Example:
--   SELECT device, ts, dur
--   FROM molprof_device_idle
--   ORDER BY dur DESC, ts, device
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- One row per kernel, copy or set, in order of slice, with the latest end of any earlier one on its device.
CREATE PERFETTO VIEW molprof_device_work(
  -- The kernel, copy or set.
  id JOINID(slice.id),
  -- Device number as text.
  device STRING,
  -- Stream number; null where not recorded.
  stream LONG,
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- End, ns since the trace's earliest event.
  ts_end TIMESTAMP,
  -- Latest end of any earlier work on the device, ns since the trace's earliest event; null for the first.
  busy_until TIMESTAMP
) AS
SELECT
  work.id,
  work.device,
  work.stream,
  work.ts,
  work.ts_end,
  before.busy_until
FROM _molprof_work AS work
JOIN _molprof_fact_device_work AS before USING (id)
ORDER BY work.id;

-- The gaps of each device between its first and last work, longest first.
CREATE PERFETTO VIEW molprof_device_idle(
  device STRING,
  -- Start of the gap, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Length of the gap, ns.
  dur DURATION
) AS
SELECT
  device,
  ts,
  ts_end - ts AS dur
FROM _molprof_fact_device_gap
ORDER BY dur DESC, ts, device;
