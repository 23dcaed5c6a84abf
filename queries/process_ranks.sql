-- Ranks of a trace that was merged from the traces of several: each process with its rank.
--
-- The reader begins the names of processes with 'rank N: ' if process numbers or names of a merged trace show the ranks
-- apart. The trace of one rank has no rows: its rank is in the file's distributedInfo, which SQL does not see.
--
-- Example:
--   SELECT rank, upid, name
--   FROM molprof_process_rank
--   ORDER BY rank, upid;

-- Processes of a merged trace.
CREATE PERFETTO TABLE molprof_process_rank(
  -- The process.
  upid JOINID(process.id),
  -- Rank to which it belongs.
  rank LONG,
  -- Name of the process, which begins with the rank.
  name STRING
) AS
SELECT
  upid,
  CAST(SUBSTR(name, 6) AS INT) AS rank,
  name
FROM process
WHERE name GLOB 'rank [0-9]*: *'
ORDER BY upid;

-- Their tracks, by number.
CREATE PERFETTO TABLE molprof_track_rank(
  -- The track.
  track_id JOINID(track.id),
  rank LONG
) AS
SELECT
  thread_track.id AS track_id,
  place.rank
FROM thread_track
JOIN thread USING (utid)
JOIN molprof_process_rank AS place USING (upid)
ORDER BY thread_track.id;

-- The rank of a track, looked up only in a trace of several ranks; else null.
CREATE PERFETTO MACRO _molprof_rank(track_id Expr)
RETURNS Expr AS (
  IIF(
    (SELECT COUNT() FROM molprof_track_rank) > 0,
    (SELECT place.rank FROM molprof_track_rank AS place WHERE place.track_id = $track_id),
    NULL
  )
);

-- The device of GPU work, as text: the number that it names, else the number or name of its process. In a trace of
-- several ranks rank and device.
CREATE PERFETTO MACRO _molprof_device(track_id Expr, arg_set_id Expr)
RETURNS Expr AS (
  IIF((SELECT COUNT() FROM molprof_track_rank) > 0, IFNULL(_molprof_rank!($track_id) || ':', ''), '')
  || COALESCE(
    EXTRACT_ARG($arg_set_id, 'args.device'),
    -- A subquery, unlike a join, runs only where it is needed.
    (
      -- A number that the reader made stands for what is no number in the file.
      SELECT IIF(process.pid < 1 << 31, process.pid, IFNULL(process.name, 'not recorded'))
      FROM thread_track
      JOIN thread USING (utid)
      JOIN process USING (upid)
      WHERE thread_track.id = $track_id
    )
  )
);
