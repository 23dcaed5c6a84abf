-- Processes of one file: torch.profiler records one, so a file with several was merged.
--
-- Example:
--   SELECT pid, name, operators, gpu_calls
--   FROM molprof_host_process
--   ORDER BY pid;

INCLUDE PERFETTO MODULE molprof.gpu_calls;

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
)
AS
SELECT
  process.upid,
  process.pid,
  process.name,
  SUM(slice.category = 'cpu_op') AS operators,
  SUM(slice.category != 'cpu_op') AS gpu_calls
FROM slice
JOIN thread_track
  ON thread_track.id = slice.track_id
JOIN thread
  USING (utid)
JOIN process
  USING (upid)
WHERE
  slice.category IN ('cpu_op', 'cuda_runtime', 'cuda_driver')
GROUP BY
  process.upid
ORDER BY
  MIN(slice.ts),
  process.upid;

-- Correlation numbers that launching calls of several processes have, one row.
CREATE PERFETTO VIEW molprof_colliding_correlation(
  -- Numbers that launches or graph launches of more than one process have.
  numbers LONG
)
AS
SELECT
  COUNT() AS numbers
FROM (
  SELECT
    1
  FROM molprof_gpu_call AS call
  JOIN slice
    USING (id)
  JOIN thread_track
    ON thread_track.id = slice.track_id
  JOIN thread
    USING (utid)
  WHERE
    call.kind IS NOT NULL AND call.correlation IS NOT NULL
  GROUP BY
    call.correlation
  HAVING
    MIN(thread.upid) < MAX(thread.upid)
);
