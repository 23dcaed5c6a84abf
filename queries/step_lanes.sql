-- The time of each step: up to its end or the start of the next, on its thread or in its process.
--
-- Where all steps of a process are on one thread, the step open in the process counts for all its threads, such as the
-- one that runs backward passes; else the step open on the same thread.
--
-- Example:
--   SELECT step.source, COUNT() AS count, SUM(lane.ts_end - lane.ts) AS time_ns
--   FROM molprof_step_lane AS lane
--   JOIN molprof_any_step AS step USING (id)
--   GROUP BY step.source
--   ORDER BY step.source;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.steps;

-- Steps, each up to its end or the start of the next in its lane: a process, or one of its threads.
CREATE PERFETTO TABLE _molprof_step_lane AS
WITH
  spread AS (
    SELECT
      upid,
      MIN(tid) < MAX(tid) AS many_threads
    FROM molprof_any_step
    GROUP BY upid
  ),
  lane AS (
    SELECT
      step.id,
      step.upid,
      IIF(spread.many_threads, step.tid, NULL) AS tid,
      step.ts,
      step.dur
    FROM molprof_any_step AS step
    JOIN spread USING (upid)
  )
SELECT *
FROM _molprof_up_to_next!(lane);

-- One row per step.
CREATE PERFETTO VIEW molprof_step_lane(
  -- The step's slice.
  id JOINID(slice.id),
  -- Its process.
  upid JOINID(process.id),
  -- Thread number; null where it counts for all threads of the process.
  tid LONG,
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- End, ns since the trace's earliest event.
  ts_end TIMESTAMP
) AS
SELECT
  id,
  upid,
  tid,
  ts,
  ts_end
FROM _molprof_step_lane;
