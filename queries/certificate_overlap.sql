-- GPU work that begins before earlier work on its stream has ended.
--
-- A stream runs its work in order. So either recorded times are too long, or the work ran at once on purpose (dependent
-- launches of Hopper and Blackwell, branches of a graph): the true time is between the union and the sum.
--
-- Example:
--   SELECT device, stream, overlaps, overlap_ns, longest_ns, time_ns, union_ns
--   FROM molprof_stream_overlap
--   ORDER BY overlap_ns DESC;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Streams with overlaps, the most overlapping time first. Work without a stream number is left out.
CREATE PERFETTO VIEW molprof_stream_overlap(
  -- Device number as text.
  device STRING,
  -- Stream number.
  stream LONG,
  -- Kernels, copies and sets that begin before the end of earlier work on the stream.
  overlaps LONG,
  -- Sum of times minus time with any of them running, ns.
  overlap_ns DURATION,
  -- Longest single overlap, ns.
  longest_ns DURATION,
  -- Sum of the times of all work on the stream, ns.
  time_ns DURATION,
  -- Time with any work on the stream running, ns.
  union_ns DURATION
) AS
SELECT
  device,
  stream,
  overlaps,
  overlap_ns,
  longest_ns,
  time_ns,
  time_ns - overlap_ns AS union_ns
FROM _molprof_fact_stream
WHERE overlaps > 0 AND stream IS NOT NULL
ORDER BY overlap_ns DESC, device, stream;

-- GPU work that cannot have lasted as long as the file says: it runs over the next work of its stream, and beyond a
-- device sync that waited for it or the end of the recording; or it has no next and takes longer than the recording.
CREATE PERFETTO VIEW molprof_overrun(
  -- The slice.
  id JOINID(slice.id),
  -- Device number as text.
  device STRING,
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- Until the next work of its stream starts, or the recording ends: what figures have as its time, ns.
  dur DURATION,
  -- As the file has it, ns.
  recorded_ns DURATION
) AS
SELECT
  overrun.id,
  work.device,
  work.category,
  overrun.dur,
  overrun.recorded_ns
FROM _molprof_fact_overrun AS overrun
JOIN _molprof_work AS work USING (id)
ORDER BY overrun.id;
