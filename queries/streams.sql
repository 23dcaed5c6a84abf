-- The streams of each device: their work and their busy time.
--
-- Example:
--   SELECT device, stream, count, span_ns, busy_ns, busy_ratio
--   FROM molprof_stream
--   ORDER BY device, stream;

INCLUDE PERFETTO MODULE molprof.gpu_work;

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
WITH
  ordered AS (
    SELECT
      device,
      stream,
      category,
      ts,
      dur,
      _molprof_added!(ts, ts + dur, earlier) AS added_ns
    FROM molprof_gpu_work
    WINDOW
      earlier AS (
        PARTITION BY device, stream
        ORDER BY ts, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      )
  ),
  total AS (
    SELECT
      device,
      stream,
      COUNT() AS count,
      SUM(category = 'kernel') AS kernels,
      SUM(dur) AS time_ns,
      MAX(ts + dur) - MIN(ts) AS span_ns,
      SUM(added_ns) AS busy_ns
    FROM ordered
    GROUP BY device, stream
  )
SELECT
  device,
  stream,
  count,
  kernels,
  time_ns,
  span_ns,
  busy_ns,
  1.0 * busy_ns / NULLIF(span_ns, 0) AS busy_ratio
FROM total
ORDER BY device, stream;
