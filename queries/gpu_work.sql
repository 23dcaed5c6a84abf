-- What ran on the GPU: every kernel, memory copy and memory set.
--
-- Example:
--   SELECT device, stream, category, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_gpu_work
--   GROUP BY device, stream, category
--   ORDER BY device, stream, category;

INCLUDE PERFETTO MODULE molprof.work_calls;

-- One row per slice of category kernel, gpu_memcpy or gpu_memset, in order of start.
CREATE PERFETTO VIEW molprof_gpu_work(
  -- The slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the device, ns.
  dur DURATION,
  -- Name as recorded; '(no name)' for an empty or missing one.
  name STRING,
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- Device number as text; the event's process number where the event names no device. In a trace of several ranks
  -- rank and device, such as 3:0.
  device STRING,
  -- Stream number; null where not recorded.
  stream LONG,
  -- Correlation number, which the call that started it has too; null where not recorded.
  correlation LONG,
  -- Bytes moved or set; null for kernels, and where not recorded or below 0.
  bytes LONG,
  -- Rank; null unless the trace is of several ranks.
  rank LONG
)
AS
SELECT
  id,
  ts,
  dur,
  name,
  category,
  device,
  stream,
  correlation,
  bytes,
  rank
FROM _molprof_work;
