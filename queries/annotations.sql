-- Annotations: named stretches of the host's time, with process and thread.
--
-- Example:
--   SELECT name, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_annotation
--   GROUP BY name
--   ORDER BY time_ns DESC, name
--   LIMIT 20;

-- Tracks with process and thread number: few rows, where a join of the engine's own tables is slow. A lane has the
-- number of the thread that its slices belong to, which all of them hold.
CREATE PERFETTO TABLE _molprof_thread_track AS
SELECT
  thread_track.id,
  thread.upid,
  COALESCE(
    IIF(
      thread.name GLOB '* (lane *)',
      (
        SELECT
          EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid')
        FROM slice
        WHERE
          slice.track_id = thread_track.id
        LIMIT 1
      ),
      NULL
    ),
    thread.tid
  ) AS tid
FROM thread_track
JOIN thread
  USING (utid)
ORDER BY
  thread_track.id;

-- Slices (id, upid, tid, ts, dur), each up to its end or the start of the next of its thread; of its process where tid
-- is null.
CREATE PERFETTO MACRO _molprof_up_to_next(slices TableOrSubquery)
RETURNS TableOrSubquery
AS
(
  SELECT
    id,
    upid,
    tid,
    ts,
    MIN(ts_end, IFNULL(next_ts, ts_end)) AS ts_end
  FROM (
    SELECT
      id,
      upid,
      tid,
      ts,
      ts + dur AS ts_end,
      LEAD(ts) OVER (PARTITION BY upid, tid ORDER BY ts, ts + dur, id) AS next_ts
    FROM $slices
  )
);

-- One row per slice of category user_annotation, in order of start.
CREATE PERFETTO TABLE molprof_annotation(
  -- The slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host, profiler's cost included, ns.
  dur DURATION,
  -- Name as recorded.
  name STRING,
  -- Process in which it ran.
  upid JOINID(process.id),
  -- Thread number, also of slices that the reader moved to another lane.
  tid LONG
)
AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  slice.name,
  track.upid,
  track.tid
FROM slice
JOIN _molprof_thread_track AS track
  ON track.id = slice.track_id
WHERE
  slice.category = 'user_annotation'
ORDER BY
  slice.ts,
  slice.id;
