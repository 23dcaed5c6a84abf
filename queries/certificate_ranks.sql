-- Processes of one file: torch.profiler records one, so a file with several was merged.
--
-- Example:
--   SELECT pid, name, operators, gpu_calls
--   FROM molprof_host_process
--   ORDER BY pid;

-- Processes with operators or GPU calls, in order of their first event.
CREATE PERFETTO VIEW molprof_host_process(
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
SELECT
  process.upid,
  process.pid,
  process.name,
  SUM(track.operators) AS operators,
  SUM(track.gpu_calls) AS gpu_calls
FROM _molprof_fact_host_track AS track
JOIN thread_track ON thread_track.id = track.track_id
JOIN thread USING (utid)
JOIN process USING (upid)
GROUP BY process.upid
ORDER BY MIN(track.ts), process.upid;
