-- In which step of molprof.steps each operator and each runtime call ran.
--
-- Threads without steps of their own count too, as the one that runs backward passes: where all steps of a process
-- are on one thread, the step that was open in the process decides; else the one on the same thread.
--
-- Example:
--   SELECT slice.name, COUNT() AS count
--   FROM molprof_call_step AS place
--   JOIN slice
--     USING (id)
--   GROUP BY slice.name
--   ORDER BY count DESC, slice.name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.gpu_calls;

INCLUDE PERFETTO MODULE molprof.operators;

INCLUDE PERFETTO MODULE molprof.steps;

-- Runtime calls and leaf operators that started inside a step; those outside any have no row.
CREATE PERFETTO TABLE molprof_call_step(
  -- The call's or operator's slice.
  id JOINID(slice.id),
  -- The step's slice.
  step_id JOINID(slice.id)
)
AS
WITH
  spread AS (
    SELECT
      upid,
      MIN(tid) < MAX(tid) AS many_threads
    FROM molprof_any_step
    GROUP BY
      upid
  ),
  -- Steps of one lane do not overlap.
  step AS (
    SELECT
      step.id,
      step.upid,
      IIF(spread.many_threads, step.tid, -1) AS lane,
      step.ts,
      step.ts + step.dur AS ts_end,
      ROW_NUMBER() OVER (
        PARTITION BY step.upid, IIF(spread.many_threads, step.tid, -1)
        ORDER BY step.ts, step.ts + step.dur, step.id
      ) AS number
    FROM molprof_any_step AS step
    JOIN spread
      USING (upid)
  ),
  placeable AS (
    SELECT
      id
    FROM molprof_gpu_call
    UNION ALL
    SELECT
      id
    FROM molprof_leaf_operator
    -- Without steps there is nothing to sort.
    WHERE
      (SELECT COUNT() FROM molprof_any_step) > 0
  ),
  moment AS (
    SELECT
      NULL AS id,
      upid,
      lane,
      ts,
      number
    FROM step
    UNION ALL
    SELECT
      slice.id,
      thread.upid,
      IIF(
        spread.many_threads,
        COALESCE(EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid'), thread.tid),
        -1
      ) AS lane,
      slice.ts,
      NULL AS number
    FROM placeable
    JOIN slice
      USING (id)
    JOIN thread_track
      ON slice.track_id = thread_track.id
    JOIN thread
      USING (utid)
    JOIN spread
      ON spread.upid = thread.upid
  ),
  placed AS (
    SELECT
      id,
      upid,
      lane,
      ts,
      MAX(number) OVER (
        PARTITION BY upid, lane
        ORDER BY ts, id IS NOT NULL, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
      ) AS number
    FROM moment
  )
SELECT
  placed.id,
  step.id AS step_id
FROM placed
JOIN step
  ON step.upid = placed.upid AND step.lane = placed.lane AND step.number = placed.number
WHERE
  placed.id IS NOT NULL AND placed.ts < step.ts_end
ORDER BY
  placed.id;
