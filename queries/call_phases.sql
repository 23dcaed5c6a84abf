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
  run.phase_id
FROM _molprof_fact_phase_run AS run
CROSS JOIN slice
WHERE
  slice.id BETWEEN run.first_id AND run.last_id
  AND slice.category IN ('cpu_op', 'cuda_runtime', 'cuda_driver', 'cpu_instant_event')
ORDER BY slice.id;
