-- Busy time of each device: the union of its kernels, copies and sets, which may run concurrently.
--
-- Example:
--   SELECT device, span_ns, busy_ns, idle_ns, count
--   FROM molprof_device
--   ORDER BY device;

-- Busy and idle time of each device, from its first work to the end of its last.
CREATE PERFETTO VIEW molprof_device(
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
SELECT
  device,
  span_ns,
  busy_ns,
  idle_ns,
  count
FROM _molprof_fact_device
ORDER BY device;
