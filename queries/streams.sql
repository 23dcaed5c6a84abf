-- The streams of each device: their work and their busy time.
--
-- Example:
--   SELECT device, stream, count, span_ns, busy_ns, busy_ratio
--   FROM molprof_stream
--   ORDER BY device, stream;

-- One row per stream that ran work, in order of device and stream.
CREATE PERFETTO VIEW molprof_stream(
  -- Device number as text.
  device STRING,
  -- Stream number; null where not recorded.
  stream LONG,
  -- Kernels, copies and sets.
  count LONG,
  -- Kernels alone.
  kernels LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- From the first start to the last end on the stream, ns.
  span_ns DURATION,
  -- Time with at least one of them running, ns; less than time_ns where work overlaps on the stream.
  busy_ns DURATION,
  -- Busy time over span, 0 to 1; null where no time passed.
  busy_ratio DOUBLE
) AS
SELECT
  device,
  stream,
  count,
  kernels,
  time_ns,
  span_ns,
  time_ns - overlap_ns AS busy_ns,
  1.0 * (time_ns - overlap_ns) / NULLIF(span_ns, 0) AS busy_ratio
FROM _molprof_fact_stream
ORDER BY device, stream;
