-- Long operations on the CPU and on the GPU, in order of time.
--
-- Example (at_least_ns=1000000):
--   SELECT ts, dur, category, name, track
--   FROM molprof_long_operations($at_least_ns)
--   ORDER BY ts, dur DESC, id
--   LIMIT 100;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- GPU work, operators and runtime calls of at least a given time, in order of start, the longest of one start first.
CREATE PERFETTO FUNCTION molprof_long_operations(
  -- Least time, ns; 1000000 is a usual choice.
  at_least_ns DURATION
)
RETURNS TABLE(
  -- The slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time of the operation and those that it calls, ns.
  dur DURATION,
  -- Category as recorded: kernel, cpu_op, cuda_runtime...
  category STRING,
  -- Name as recorded.
  name STRING,
  -- Track on which it ran, as text: device and stream of GPU work, process and thread number of any other.
  track STRING
) AS
SELECT
  id,
  ts,
  dur,
  category,
  name,
  'device ' || device || IFNULL(' stream ' || stream, '') AS track
FROM molprof_gpu_work
WHERE dur >= $at_least_ns
UNION ALL
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  slice.category,
  slice.name,
  'process ' || process.pid || ' thread '
  || COALESCE(EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid'), thread.tid) AS track
FROM slice
JOIN thread_track ON slice.track_id = thread_track.id
JOIN thread USING (utid)
JOIN process USING (upid)
WHERE slice.category IN ('cpu_op', 'cuda_runtime', 'cuda_driver') AND slice.dur >= $at_least_ns
ORDER BY ts, dur DESC, id;
