-- The phase of each operator, call and instant: the innermost of its thread in which it started.
--
-- Example:
--   SELECT phase.phase, slice.category, COUNT() AS count
--   FROM molprof_call_phase AS place
--   JOIN slice
--     USING (id)
--   JOIN molprof_phase AS phase
--     ON phase.id = place.phase_id
--   GROUP BY phase.phase, slice.category
--   ORDER BY phase.phase, slice.category;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.phases;

-- Operators, calls and instants, such as memory events, that started in a phase; others have no row.
CREATE PERFETTO TABLE molprof_call_phase(
  -- The slice of the operator, call or instant.
  id JOINID(slice.id),
  -- The phase's slice.
  phase_id JOINID(slice.id)
) AS
SELECT
  slice.id,
  lane.id AS phase_id
-- In this order, and with + before what is not time, the engine searches the slices of each phase by time alone: by track it
-- would go through all of a track for each phase.
FROM _molprof_phase_lane AS lane
CROSS JOIN _molprof_thread_track AS track
CROSS JOIN slice
WHERE
  track.upid = lane.upid
  AND track.tid = lane.tid
  AND +slice.track_id = track.id
  AND slice.ts >= lane.ts
  AND slice.ts < lane.ts_end
  AND +slice.category IN ('cpu_op', 'cuda_runtime', 'cuda_driver', 'cpu_instant_event')
ORDER BY slice.id;
