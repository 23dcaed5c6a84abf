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

INCLUDE PERFETTO MODULE molprof.annotations;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.phases;

-- Phases, each up to its end or the start of the next of its thread.
CREATE PERFETTO TABLE _molprof_phase_lane AS
WITH
  lane AS (
    SELECT
      id,
      upid,
      tid,
      ts,
      ts + dur AS ts_end,
      LEAD(ts) OVER (PARTITION BY upid, tid ORDER BY ts, ts + dur, id) AS next_ts
    FROM molprof_phase
  )
SELECT
  id,
  upid,
  tid,
  ts,
  MIN(ts_end, IFNULL(next_ts, ts_end)) AS ts_end
FROM lane;

-- Operators and calls that started in a phase; others have no row.
CREATE PERFETTO TABLE molprof_call_phase(
  -- The operator's or call's slice.
  id JOINID(slice.id),
  -- The phase's slice.
  phase_id JOINID(slice.id)
)
AS
SELECT
  slice.id,
  lane.id AS phase_id
-- In this order, the engine searches the slices of each phase on the tracks of its thread.
FROM _molprof_phase_lane AS lane
CROSS JOIN _molprof_thread_track AS track
CROSS JOIN slice
WHERE
  track.upid = lane.upid
  AND track.tid = lane.tid
  AND slice.track_id = track.id
  AND slice.ts >= lane.ts
  AND slice.ts < lane.ts_end
  AND slice.category IN ('cpu_op', 'cuda_runtime', 'cuda_driver')
ORDER BY
  slice.id;

-- GPU work with the phase of its launch; a graph's work belongs to the graph launch. Nothing is written down for
-- foreign traces, which have no phases.
CREATE PERFETTO VIEW molprof_work_phase(
  -- The kernel, copy or set.
  id JOINID(slice.id),
  -- The phase's slice; null where the call is not recorded or outside any phase.
  phase_id JOINID(slice.id)
)
AS
SELECT
  work.id,
  place.phase_id
FROM _molprof_work AS work
LEFT JOIN molprof_call_phase AS place
  ON place.id = work.call_id;
