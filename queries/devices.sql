-- When each device was busy: the union of its kernels, copies and sets, which may run concurrently.
--
-- Example:
--   SELECT device, span_ns, busy_ns, idle_ns, count
--   FROM molprof_device
--   ORDER BY device;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- One row per kernel, copy or set, in order of slice, with the latest end of any earlier one on its device.
CREATE PERFETTO TABLE molprof_device_work(
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
)
AS
SELECT
  id,
  device,
  stream,
  ts,
  ts + dur AS ts_end,
  MAX(ts + dur) OVER (
    PARTITION BY device
    ORDER BY ts, id
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS busy_until
FROM molprof_gpu_work
ORDER BY
  id;

-- Busy and idle time of each device, from its first work to the end of its last.
CREATE PERFETTO TABLE molprof_device(
  -- Device number as text.
  device STRING,
  -- From the first start to the last end, ns.
  span_ns DURATION,
  -- Time with at least one kernel, copy or set running, ns.
  busy_ns DURATION,
  -- The rest of the span, ns.
  idle_ns DURATION,
  -- Kernels, copies and sets.
  count LONG
)
AS
WITH
  busy AS (
    SELECT
      device,
      MAX(ts_end) - MIN(ts) AS span_ns,
      -- What it adds to the union: its part after all earlier work.
      SUM(MAX(0, ts_end - MAX(ts, IFNULL(busy_until, ts)))) AS busy_ns,
      COUNT() AS count
    FROM molprof_device_work
    GROUP BY
      device
  )
SELECT
  device,
  span_ns,
  busy_ns,
  span_ns - busy_ns AS idle_ns,
  count
FROM busy
ORDER BY
  device;

-- The gaps of each device between its first and last work, longest first.
CREATE PERFETTO VIEW molprof_device_idle(
  -- Device number as text.
  device STRING,
  -- Start of the gap, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Length of the gap, ns.
  dur DURATION
)
AS
SELECT
  device,
  busy_until AS ts,
  ts - busy_until AS dur
FROM molprof_device_work
WHERE
  ts > busy_until
ORDER BY
  dur DESC,
  ts,
  device;
