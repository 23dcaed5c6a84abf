-- When each device was busy: the union of its kernels, copies and sets, which may run concurrently.
--
-- Example:
--   SELECT device, span_ns, busy_ns, idle_ns, count
--   FROM molprof_device
--   ORDER BY device;

INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Work of each device in order of start; no rows where all work is on one, and so in this order already.
CREATE PERFETTO TABLE _molprof_device_start AS
SELECT
  id,
  device,
  ts,
  ts_end,
  call_id,
  call_ts
FROM _molprof_work
ORDER BY device, ts, id
LIMIT IIF((SELECT COUNT() FROM _molprof_only_device) > 0, 0, -1);

-- Ends of work of each device in order.
CREATE PERFETTO TABLE _molprof_device_end AS
SELECT ts_end
FROM _molprof_work
ORDER BY device, ts_end;

-- When the work of each device was queued, in order. Nothing was queued in a gap if as much work was queued by then as
-- had begun: if the time in the row of the work that ends the gap is later than the gap's start.
CREATE PERFETTO TABLE _molprof_device_queue AS
SELECT queued_ts AS ts
FROM _molprof_work
ORDER BY device, queued_ts;

-- Gaps of work in order of device and start. Work begins after a gap if as many have ended before it as have begun: if
-- the end in the row before its own is earlier. Rows are joined by number, which takes a fifth of the time of a window.
CREATE PERFETTO MACRO _molprof_gap(started TableOrSubquery, device Expr, condition Expr)
RETURNS TableOrSubquery AS (
  SELECT
    next.id AS next_id,
    $device AS device,
    last.ts_end AS ts,
    next.ts AS ts_end,
    next.ts - last.ts_end AS dur,
    next.call_ts,
    CASE
      WHEN next.call_ts IS NULL THEN 0
      WHEN queue.ts <= last.ts_end THEN 1
      -- With so short a delay, the end of the call does not matter, and is not searched for.
      WHEN next.ts - next.call_ts < 100000 THEN 2
      ELSE 2 + (
        SELECT next.ts - call.ts - call.dur > MAX(100000, call.ts + call.dur - last.ts_end)
        FROM _molprof_work AS work
        CROSS JOIN _molprof_call AS call
        WHERE work.id = next.id AND call.id = work.call_id
      )
    END AS queue
  FROM $started AS next
  CROSS JOIN _molprof_device_end AS last
  CROSS JOIN _molprof_device_queue AS queue
  WHERE
    last._auto_id = next._auto_id - 1
    AND next.ts > last.ts_end
    AND queue._auto_id = next._auto_id
    AND $condition
);

-- Gaps of all devices, those of each in order. Device: null where all work is on one. Queue, what was queued when it
-- began: 0: the call of the work that ends the gap is not recorded; 1: work; 2: nothing; 3: nothing, and the work that
-- ends it starts late after its call.
CREATE PERFETTO TABLE _molprof_device_gap AS
SELECT *
FROM _molprof_gap!(
  (SELECT work.*, work._auto_id FROM _molprof_only_device CROSS JOIN _molprof_work AS work),
  NULL,
  TRUE
)
UNION ALL
SELECT *
FROM _molprof_gap!(
  _molprof_device_start,
  next.device,
  next.device IS (SELECT before.device FROM _molprof_device_start AS before WHERE before._auto_id = last._auto_id)
);

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
) AS
WITH
  span AS (
    SELECT
      device,
      MAX(ts_end) - MIN(ts) AS span_ns,
      COUNT() AS count
    FROM _molprof_device_start
    GROUP BY device
    UNION ALL
    -- The engine finds these without looking at each.
    SELECT
      device,
      (SELECT MAX(ts_end) FROM _molprof_device_end) - (SELECT MIN(ts) FROM _molprof_work),
      (SELECT COUNT() FROM _molprof_work)
    FROM _molprof_only_device
  ),
  idle AS (
    SELECT
      device,
      SUM(dur) AS idle_ns
    FROM _molprof_device_gap
    WHERE device IS NOT NULL
    GROUP BY device
    UNION ALL
    SELECT
      (SELECT device FROM _molprof_only_device),
      SUM(dur)
    FROM _molprof_device_gap
    WHERE device IS NULL
  )
SELECT
  span.device,
  span.span_ns,
  span.span_ns - IFNULL(idle.idle_ns, 0) AS busy_ns,
  IFNULL(idle.idle_ns, 0) AS idle_ns,
  span.count
FROM span
LEFT JOIN idle ON idle.device IS span.device
ORDER BY span.device;

-- One row per kernel, copy or set, in order of slice, with the latest end of any earlier one on its device.
CREATE PERFETTO VIEW molprof_device_work(
  -- The kernel, copy or set.
  id JOINID(slice.id),
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
ORDER BY id;

-- The gaps of each device between its first and last work, longest first.
CREATE PERFETTO VIEW molprof_device_idle(
  device STRING,
  -- Start of the gap, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Length of the gap, ns.
  dur DURATION
) AS
SELECT
  IFNULL(device, (SELECT device FROM _molprof_only_device)) AS device,
  ts,
  dur
FROM _molprof_device_gap
ORDER BY dur DESC, ts, device;
