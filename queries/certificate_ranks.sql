-- Processes of one file: torch.profiler records one, so a file with several was merged.
--
-- Example:
--   SELECT pid, name, operators, gpu_calls
--   FROM molprof_host_process
--   ORDER BY pid;

-- Processes with operators or GPU calls, in order of their first event.
CREATE PERFETTO TABLE molprof_host_process(
  -- The process.
  upid JOINID(process.id),
  -- Process number; made up where the file has text in its place.
  pid LONG,
  -- Name as recorded, or the text in place of a number; null where not recorded.
  name STRING,
  -- Operators (cpu_op).
  operators LONG,
  -- Calls into the runtime or driver.
  gpu_calls LONG
) AS
WITH
  -- Where there are few tracks, the slices of each are counted: the engine need not read them for that.
  few AS MATERIALIZED (
    SELECT COUNT() <= 64 AS tracks
    FROM thread_track
  ),
  -- Added up by track first: a join of every slice is slow.
  track AS (
    SELECT
      id AS track_id,
      (SELECT COUNT() FROM slice WHERE slice.track_id = own.id AND slice.category = 'cpu_op') AS operators,
      (
        SELECT COUNT()
        FROM slice
        WHERE slice.track_id = own.id AND slice.category IN ('cuda_runtime', 'cuda_driver')
      ) AS gpu_calls,
      (
        SELECT slice.ts
        FROM slice
        WHERE slice.track_id = own.id AND slice.category IN ('cpu_op', 'cuda_runtime', 'cuda_driver')
        ORDER BY slice.ts
        LIMIT 1
      ) AS ts
    FROM few
    CROSS JOIN thread_track AS own
    WHERE few.tracks
    UNION ALL
    SELECT *
    FROM (
      SELECT
        track_id,
        SUM(category = 'cpu_op') AS operators,
        SUM(category != 'cpu_op') AS gpu_calls,
        MIN(ts) AS ts
      FROM slice
      WHERE category IN ('cpu_op', 'cuda_runtime', 'cuda_driver')
      GROUP BY track_id
      LIMIT IIF((SELECT tracks FROM few), 0, -1)
    )
  )
SELECT
  process.upid,
  process.pid,
  process.name,
  SUM(track.operators) AS operators,
  SUM(track.gpu_calls) AS gpu_calls
FROM track
JOIN thread_track ON thread_track.id = track.track_id
JOIN thread USING (utid)
JOIN process USING (upid)
WHERE track.ts IS NOT NULL
GROUP BY process.upid
ORDER BY MIN(track.ts), process.upid;
