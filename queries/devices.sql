-- When each device was busy: the union of its kernels, copies and sets, which may run concurrently.
--
-- Example:
--   SELECT device, span_ns, busy_ns, idle_ns, count
--   FROM molprof_device
--   ORDER BY device;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Work of each device in order of start.
CREATE PERFETTO TABLE _molprof_device_start AS
SELECT
  id,
  device,
  ts,
  ts_end,
  call_end,
  queued_ts
FROM _molprof_work
ORDER BY
  device,
  ts,
  id;

-- Ends of work of each device in order.
CREATE PERFETTO TABLE _molprof_device_end AS
SELECT
  device,
  ts_end
FROM _molprof_device_start
ORDER BY
  device,
  ts_end;

-- Gaps in order of device and start. Work begins after a gap if as many have ended before it as have begun: if the end
-- in the row before its own is earlier. Rows are joined by number, which takes a fifth of the time of a window.
CREATE PERFETTO TABLE _molprof_device_gap AS
SELECT
  next.id AS next_id,
  next._auto_id AS place,
  next.device,
  last.ts_end AS ts,
  next.ts - last.ts_end AS dur,
  next.call_end
FROM _molprof_device_start AS next
CROSS JOIN _molprof_device_end AS last
WHERE
  last._auto_id = next._auto_id - 1 AND next.ts > last.ts_end AND next.device IS last.device;

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
  span AS (
    SELECT
      device,
      MAX(ts_end) - MIN(ts) AS span_ns,
      COUNT() AS count
    FROM _molprof_device_start
    GROUP BY
      device
  ),
  idle AS (
    SELECT
      device,
      SUM(dur) AS idle_ns
    FROM _molprof_device_gap
    GROUP BY
      device
  )
SELECT
  span.device,
  span.span_ns,
  span.span_ns - IFNULL(idle.idle_ns, 0) AS busy_ns,
  IFNULL(idle.idle_ns, 0) AS idle_ns,
  span.count
FROM span
LEFT JOIN idle
  ON idle.device IS span.device
ORDER BY
  span.device;

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
)
AS
SELECT
  id,
  device,
  stream,
  ts,
  ts_end,
  MAX(ts_end) OVER (
    PARTITION BY device
    ORDER BY ts, id
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS busy_until
FROM _molprof_work
ORDER BY
  id;

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
  ts,
  dur
FROM _molprof_device_gap
ORDER BY
  dur DESC,
  ts,
  device;
