-- Calls that the checks of the certificate compare, with process and thread.
--
-- Example:
--   SELECT role, COUNT() AS count
--   FROM molprof_checked_call
--   GROUP BY role
--   ORDER BY count DESC, role;

INCLUDE PERFETTO MODULE molprof.gpu_calls;

INCLUDE PERFETTO MODULE molprof.operation_totals;

-- Tracks with process and thread number: few rows, where a join of the engine's own tables is slow.
CREATE PERFETTO TABLE _molprof_call_track AS
SELECT
  thread_track.id,
  thread.upid,
  thread.tid
FROM thread_track
JOIN thread
  USING (utid)
ORDER BY
  thread_track.id;

-- Names of calls that launch nothing and are checked.
CREATE PERFETTO TABLE _molprof_checked_name AS
WITH
  named AS (
    SELECT DISTINCT
      name,
      CASE
        WHEN name GLOB '*StreamBeginCapture*' THEN 'capture_begin'
        WHEN name GLOB '*StreamEndCapture*' THEN 'capture_end'
        WHEN name GLOB '*DeviceSynchronize' THEN 'device_sync'
      END AS role
    FROM molprof_operation_total
    WHERE
      category IN ('cuda_runtime', 'cuda_driver')
  )
SELECT
  name,
  role
FROM named
WHERE
  role IS NOT NULL
ORDER BY
  name;

-- Launches, graph launches, begins and ends of stream captures, and syncs of a whole device, in order of start.
CREATE PERFETTO TABLE molprof_checked_call(
  -- The call's slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- End, ns since the trace's earliest event.
  ts_end TIMESTAMP,
  -- launch, graph_launch, capture_begin, capture_end or device_sync.
  role STRING,
  -- Correlation number; null where not recorded.
  correlation LONG,
  -- Rank; null unless the trace is of several ranks.
  rank LONG,
  -- Process.
  upid JOINID(process.id),
  -- Thread number, also of calls that the reader moved to another lane.
  tid LONG
)
AS
SELECT
  call.id,
  call.ts,
  call.ts + call.dur AS ts_end,
  IFNULL(call.kind, named.role) AS role,
  call.correlation,
  call.rank,
  track.upid,
  -- Threads of lanes have numbers from 2^31 up.
  IIF(track.tid >= 2147483648, EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid'), track.tid) AS tid
-- In this order, the calls stay sorted, and only names of calls that launch nothing are looked at.
FROM molprof_gpu_call AS call
LEFT JOIN _molprof_checked_name AS named
  ON call.kind IS NULL AND named.name = call.name
CROSS JOIN slice
  ON slice.id = call.id
CROSS JOIN _molprof_call_track AS track
  ON track.id = slice.track_id
WHERE
  call.kind IS NOT NULL OR named.role IS NOT NULL
ORDER BY
  call.ts,
  call.id;
