-- What ran on the GPU: every kernel, memory copy and memory set.
--
-- Example:
--   SELECT device, stream, category, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_gpu_work
--   GROUP BY device, stream, category
--   ORDER BY device, stream, category;

INCLUDE PERFETTO MODULE molprof.process_ranks;

-- One row per slice of category kernel, gpu_memcpy or gpu_memset, in order of start.
CREATE PERFETTO TABLE molprof_gpu_work(
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
  slice.id,
  slice.ts,
  slice.dur,
  IFNULL(slice.name, '(no name)') AS name,
  slice.category,
  IIF(
    (SELECT COUNT() FROM molprof_track_rank) > 0,
    IFNULL((SELECT rank FROM molprof_track_rank WHERE track_id = slice.track_id) || ':', ''),
    ''
  ) || CAST(
    COALESCE(
      EXTRACT_ARG(slice.arg_set_id, 'args.device'),
      -- A subquery, unlike a join, runs only where it is needed.
      (
        SELECT
          process.pid
        FROM thread_track
        JOIN thread
          USING (utid)
        JOIN process
          USING (upid)
        WHERE
          thread_track.id = slice.track_id
      )
    ) AS TEXT
  ) AS device,
  EXTRACT_ARG(slice.arg_set_id, 'args.stream') AS stream,
  EXTRACT_ARG(slice.arg_set_id, 'args.correlation') AS correlation,
  CASE
    WHEN slice.category = 'kernel' THEN NULL
    -- Text is kept, and refused later: CAST would read its first digits.
    WHEN TYPEOF(EXTRACT_ARG(slice.arg_set_id, 'args.bytes')) = 'text' THEN EXTRACT_ARG(slice.arg_set_id, 'args.bytes')
    WHEN CAST(EXTRACT_ARG(slice.arg_set_id, 'args.bytes') AS INT) >= 0
    THEN CAST(EXTRACT_ARG(slice.arg_set_id, 'args.bytes') AS INT)
  END AS bytes,
  -- A join would be made for each row of every trace.
  IIF(
    (SELECT COUNT() FROM molprof_track_rank) > 0,
    (SELECT rank FROM molprof_track_rank WHERE track_id = slice.track_id),
    NULL
  ) AS rank
FROM slice
WHERE
  slice.category IN ('kernel', 'gpu_memcpy', 'gpu_memset')
ORDER BY
  slice.ts,
  slice.id;
