-- GPU work that begins before the work ahead of it on its stream has ended.
--
-- A stream runs its work in order. So either recorded times are too long, or the work ran at once on purpose (dependent
-- launches of Hopper and Blackwell, branches of a graph): the true time is between the union and the sum.
--
-- Example:
--   SELECT device, stream, overlaps, overlap_ns, longest_ns, time_ns, union_ns
--   FROM molprof_stream_overlap
--   ORDER BY overlap_ns DESC;

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
