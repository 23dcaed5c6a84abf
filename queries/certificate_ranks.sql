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
)
AS
WITH
  -- Added up by track first: a join of every slice is slow.
  track AS (
    SELECT
      track_id,
      COUNT() AS operators,
      0 AS gpu_calls,
      MIN(ts) AS ts
    FROM slice
    WHERE
      category = 'cpu_op'
    GROUP BY
      track_id
    UNION ALL
    SELECT
      track_id,
      0 AS operators,
      COUNT() AS gpu_calls,
      MIN(ts) AS ts
    FROM slice
    WHERE
      category IN ('cuda_runtime', 'cuda_driver')
    GROUP BY
      track_id
  )
SELECT
  process.upid,
  process.pid,
  process.name,
  SUM(track.operators) AS operators,
  SUM(track.gpu_calls) AS gpu_calls
FROM track
JOIN thread_track
  ON thread_track.id = track.track_id
JOIN thread
  USING (utid)
JOIN process
  USING (upid)
GROUP BY
  process.upid
ORDER BY
  MIN(track.ts),
  process.upid;
