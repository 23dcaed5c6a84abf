-- Launches whose GPU work is not recorded, and GPU work whose call is not recorded.
--
-- A launch inside a stream capture runs nothing: it becomes a node of a graph.
--
-- Example:
--   SELECT place, launches, first_ts, last_ts
--   FROM molprof_missing_work
--   ORDER BY first_ts;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.certificate_calls;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.launches;
INCLUDE PERFETTO MODULE molprof.process_ranks;
INCLUDE PERFETTO MODULE molprof.step_placement;

-- Launches while a capture is open in their process.
CREATE PERFETTO TABLE _molprof_captured_launch AS
WITH
  capturing AS (
    SELECT DISTINCT upid
    FROM _molprof_marking_call AS call
    JOIN _molprof_thread_track AS track ON track.id = call.track_id
    WHERE call.role IN ('capture_begin', 'capture_end')
  ),
  depth AS (
    SELECT
      id,
      role,
      upid,
      SUM((role = 'capture_begin') - (role = 'capture_end')) OVER (PARTITION BY upid ORDER BY ts, id) AS depth
    -- Without captures, no call is looked at.
    FROM (SELECT * FROM molprof_checked_call LIMIT IIF(EXISTS(SELECT 1 FROM capturing), -1, 0))
    WHERE upid IN (SELECT upid FROM capturing)
  ),
  least AS (
    SELECT
      upid,
      -- Below 0 where a capture was open when the recording began.
      MIN(0, MIN(depth)) AS depth
    FROM depth
    GROUP BY upid
  )
SELECT depth.id
FROM depth
JOIN least USING (upid)
WHERE depth.role = 'launch' AND depth.depth > least.depth
ORDER BY depth.id;

-- Launches outside captures without GPU work of their number.
CREATE PERFETTO TABLE _molprof_lost_launch AS
SELECT
  id,
  ts
FROM _molprof_idle_launch
WHERE
  correlation IS NOT NULL
  AND (rank, correlation) NOT IN (SELECT rank, correlation FROM _molprof_shared_work)
  AND id NOT IN (SELECT id FROM _molprof_captured_launch);

-- Launches that start a kernel at once, in order of start. Graph launches are in molprof.certificate_graphs.
CREATE PERFETTO VIEW molprof_certified_launch(
  -- The call's slice.
  id JOINID(slice.id),
  -- Start of the call, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Whether GPU work of its rank with its correlation number is recorded: 1 or 0.
  has_work LONG
) AS
SELECT
  call.id,
  call.ts,
  lost.id IS NULL AS has_work
FROM _molprof_launch_call AS call
LEFT JOIN _molprof_lost_launch AS lost ON lost.id = call.id
WHERE
  call.correlation IS NOT NULL
  AND call.id NOT IN (SELECT id FROM _molprof_captured_launch)
ORDER BY call.ts, call.id;

-- Launches without GPU work by place, in order of start.
CREATE PERFETTO TABLE molprof_missing_work(
  -- start: before the first launch that has work; end: after the last one; middle: between them; all: none has work.
  place STRING,
  -- Launches.
  launches LONG,
  -- Of these, launches in steps of molprof.steps.
  in_steps LONG,
  -- Start of the first of them, ns since the trace's earliest event.
  first_ts TIMESTAMP,
  -- Start of the last of them, ns since the trace's earliest event.
  last_ts TIMESTAMP
) AS
WITH
  known AS (
    SELECT
      MIN(ts) AS first_ts,
      MAX(ts) AS last_ts
    FROM molprof_certified_launch
    WHERE
      -- Where all launches have work, none is looked at.
      EXISTS(SELECT 1 FROM _molprof_lost_launch) AND has_work
  ),
  placed AS (
    SELECT
      CASE
        WHEN known.first_ts IS NULL THEN 'all'
        WHEN launch.ts < known.first_ts THEN 'start'
        WHEN launch.ts > known.last_ts THEN 'end'
        ELSE 'middle'
      END AS place,
      launch.ts,
      launch.id IN (SELECT id FROM molprof_call_step) AS in_step
    FROM _molprof_lost_launch AS launch
    CROSS JOIN known
  )
SELECT
  place,
  COUNT() AS launches,
  SUM(in_step) AS in_steps,
  MIN(ts) AS first_ts,
  MAX(ts) AS last_ts
FROM placed
GROUP BY place
ORDER BY first_ts, place;

-- A figure of GPU work of a rank without a call that meets a condition. One figure at a time: where there are no ranks,
-- the engine finds such work without looking at each.
CREATE PERFETTO MACRO _molprof_uncalled(figure Expr, condition Expr)
RETURNS Expr AS (
  IIF(
    (SELECT COUNT() FROM molprof_process_rank) = 0,
    (SELECT $figure FROM _molprof_work AS work WHERE work.call_id IS NULL AND $condition),
    (
      SELECT $figure
      FROM _molprof_work AS work
      WHERE work.call_id IS NULL AND _molprof_work_rank!(work.id) IS first.rank AND $condition
    )
  )
);

-- GPU work without a call that meets a condition, of the ranks that meet another: no row without any. Every work with a
-- call of its number is linked to one.
CREATE PERFETTO MACRO _molprof_missing(place Expr, ranks Expr, condition Expr)
RETURNS TableOrSubquery AS (
  SELECT
    $place AS place,
    SUM(kernels) AS kernels,
    SUM(calls) AS calls,
    IFNULL(SUM(kernel_time_ns), 0) AS kernel_time_ns,
    MIN(first_ts) AS first_ts
  FROM (
    SELECT
      _molprof_uncalled!(COUNT(), $condition AND work.category = 'kernel') AS kernels,
      _molprof_uncalled!(COUNT(DISTINCT work.correlation), $condition) AS calls,
      _molprof_uncalled!(SUM(work.dur), $condition AND work.category = 'kernel') AS kernel_time_ns,
      _molprof_uncalled!(MIN(work.ts), $condition) AS first_ts
    FROM first
    WHERE $ranks
  )
  HAVING MIN(first_ts) IS NOT NULL
);

-- GPU work without a call of its rank and correlation number, by place.
CREATE PERFETTO TABLE molprof_missing_call(
  -- start: its number is below that of any recorded call, so it was launched before the recording; later: its number is
  -- not; all: no GPU work has a call; unnumbered: it has no number.
  place STRING,
  -- Kernels.
  kernels LONG,
  -- Distinct correlation numbers of kernels, copies and sets: the calls that lack.
  calls LONG,
  -- Sum of the times of kernels, ns.
  kernel_time_ns DURATION,
  -- Start of the first, ns since the trace's earliest event.
  first_ts TIMESTAMP
) AS
WITH
  first AS MATERIALIZED (
    SELECT
      rank,
      IIF(
        (SELECT COUNT() FROM molprof_track_rank) > 0,
        (SELECT MIN(call.correlation) FROM _molprof_call AS call WHERE call.rank IS place.rank),
        -- The engine finds the least of all without looking at each call.
        (SELECT MIN(correlation) FROM _molprof_call)
      ) AS least,
      EXISTS(SELECT 1 FROM _molprof_work WHERE call_id IS NOT NULL) AS some_linked
    FROM (SELECT NULL AS rank UNION SELECT rank FROM molprof_process_rank) AS place
  )
SELECT * FROM _molprof_missing!('unnumbered', TRUE, work.correlation IS NULL)
UNION ALL
SELECT * FROM _molprof_missing!('all', NOT first.some_linked, work.correlation IS NOT NULL)
UNION ALL
SELECT * FROM _molprof_missing!('start', first.some_linked, work.correlation < first.least)
UNION ALL
SELECT * FROM _molprof_missing!('later', first.some_linked, work.correlation >= IFNULL(first.least, -1 << 63))
ORDER BY first_ts, place;

-- Launches of one kernel that have several pieces of GPU work, by name: such work stands twice, or has a wrong number.
CREATE PERFETTO VIEW molprof_launch_of_several(
  -- Name of the runtime or driver function.
  name STRING,
  -- Launches.
  launches LONG,
  -- Kernels, copies and sets beyond one for each of them.
  more_work LONG
) AS
SELECT
  call.name,
  COUNT() AS launches,
  SUM(work.count - 1) AS more_work
FROM (SELECT call_id, COUNT() AS count FROM _molprof_work GROUP BY call_id HAVING COUNT() > 1) AS work
CROSS JOIN _molprof_launch_call AS call
WHERE call.id = work.call_id
GROUP BY call.name
ORDER BY call.name;

-- Correlation numbers that calls which follow each other share: it is not sure which of them started the work.
CREATE PERFETTO VIEW molprof_number_of_several(
  -- Rank; null unless the trace is of several ranks.
  rank LONG,
  -- Correlation number.
  correlation LONG,
  -- Calls with it.
  calls LONG
) AS
SELECT
  call.rank,
  call.correlation,
  COUNT() AS calls
FROM _molprof_shared_number AS first
CROSS JOIN _molprof_call AS call
WHERE call.correlation = first.correlation AND IFNULL(call.rank, -1) = first.rank
GROUP BY first.rank, first.correlation
HAVING MAX(call.ts) > MIN(call.ts + call.dur)
ORDER BY call.rank, call.correlation;
