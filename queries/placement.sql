-- The phase of each operator, runtime call, kernel, copy and set.
--
-- An operator or call belongs to the phase of its thread in which it started; GPU work to the phase of its launch,
-- whenever it ran.
--
-- Example:
--   SELECT phase.phase, COUNT() AS count, SUM(slice.dur) AS gpu_ns
--   FROM molprof_work_phase AS place
--   JOIN slice
--     USING (id)
--   LEFT JOIN molprof_phase AS phase
--     ON phase.id = place.phase_id
--   GROUP BY phase.phase
--   ORDER BY phase.phase IS NULL, phase.phase;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.phases;

INCLUDE PERFETTO MODULE molprof.work_calls;

-- Operators and calls that started in a phase; others have no row.
CREATE PERFETTO TABLE molprof_call_phase(
  -- The operator's or call's slice.
  id JOINID(slice.id),
  -- The phase's slice.
  phase_id JOINID(slice.id)
)
AS
WITH
  phase AS (
    SELECT
      id,
      upid,
      tid,
      ts,
      ts + dur AS ts_end,
      ROW_NUMBER() OVER (PARTITION BY upid, tid ORDER BY ts, ts + dur, id) AS number
    FROM molprof_phase
  ),
  moment AS (
    SELECT
      NULL AS id,
      upid,
      tid,
      ts,
      number
    FROM phase
    UNION ALL
    SELECT
      slice.id,
      thread.upid,
      COALESCE(EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid'), thread.tid) AS tid,
      slice.ts,
      NULL AS number
    FROM slice
    JOIN thread_track
      ON slice.track_id = thread_track.id
    JOIN thread
      USING (utid)
    WHERE
      slice.category IN ('cpu_op', 'cuda_runtime', 'cuda_driver')
      -- Foreign traces have no phases and need no sorting.
      AND (SELECT COUNT() FROM molprof_phase) > 0
  ),
  -- Phases of one thread do not overlap: only the last that began can be open.
  placed AS (
    SELECT
      id,
      upid,
      tid,
      ts,
      MAX(number) OVER (
        PARTITION BY upid, tid
        ORDER BY ts, id IS NOT NULL, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
      ) AS number
    FROM moment
  )
SELECT
  placed.id,
  phase.id AS phase_id
FROM placed
JOIN phase
  ON phase.upid = placed.upid AND phase.tid = placed.tid AND phase.number = placed.number
WHERE
  placed.id IS NOT NULL AND placed.ts < phase.ts_end
ORDER BY
  placed.id;

-- GPU work with the phase of its launch; a graph's work belongs to the graph launch.
CREATE PERFETTO TABLE molprof_work_phase(
  -- The kernel, copy or set.
  id JOINID(slice.id),
  -- The phase's slice; null where the call is not recorded or outside any phase.
  phase_id JOINID(slice.id)
)
AS
SELECT
  work.id,
  -- Foreign traces have no phases to look for.
  IIF(
    (SELECT COUNT() FROM molprof_phase) > 0,
    (
      SELECT
        place.phase_id
      FROM molprof_gpu_work_call AS link
      JOIN molprof_call_phase AS place
        ON place.id = link.call_id
      WHERE
        link.work_id = work.id
    ),
    NULL
  ) AS phase_id
FROM molprof_gpu_work AS work
ORDER BY
  work.id;
