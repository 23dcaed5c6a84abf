-- Calls that the checks of the certificate compare, with process and thread.
--
-- Example:
--   SELECT role, COUNT() AS count
--   FROM molprof_checked_call
--   GROUP BY role
--   ORDER BY count DESC, role;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.gpu_calls;

-- Calls that launch nothing and are checked: the engine finds their names without looking at each call.
CREATE PERFETTO TABLE _molprof_marking_call AS
SELECT id, ts, ts + dur AS ts_end, 'capture_begin' AS role, correlation, rank, track_id
FROM _molprof_call
WHERE name GLOB '*StreamBeginCapture*' AND kind IS NULL
UNION ALL
SELECT id, ts, ts + dur, 'capture_end', correlation, rank, track_id
FROM _molprof_call
WHERE name GLOB '*StreamEndCapture*' AND kind IS NULL
UNION ALL
SELECT id, ts, ts + dur, 'device_sync', correlation, rank, track_id
FROM _molprof_call
WHERE name GLOB '*DeviceSynchronize' AND kind IS NULL;

-- Launches, graph launches, begins and ends of stream captures, and syncs of a whole device, in order of start.
CREATE PERFETTO VIEW molprof_checked_call(
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
) AS
WITH
  call AS (
    SELECT id, ts, ts + dur AS ts_end, 'launch' AS role, correlation, rank, track_id
    FROM _molprof_launch_call
    UNION ALL
    SELECT id, ts, ts + dur, 'graph_launch', correlation, rank, track_id
    FROM _molprof_graph_call
    UNION ALL
    SELECT id, ts, ts_end, role, correlation, rank, track_id
    FROM _molprof_marking_call
  )
SELECT
  call.id,
  call.ts,
  call.ts_end,
  call.role,
  call.correlation,
  call.rank,
  track.upid,
  track.tid
FROM call
CROSS JOIN _molprof_thread_track AS track ON track.id = call.track_id
ORDER BY call.ts, call.id;
