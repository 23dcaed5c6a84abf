-- The step of each runtime call, and of each leaf operator where no GPU calls are recorded.
--
-- Steps are those of molprof.open_steps. Of overlapping steps, the last that began counts.
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

-- Runtime calls and leaf operators that started in a step; others have no row.
CREATE PERFETTO TABLE molprof_call_step(
  -- The call's or operator's slice.
  id JOINID(slice.id),
  -- The step's slice.
  step_id JOINID(slice.id)
) AS
SELECT
  call.id,
  run.step_id
FROM _molprof_fact_step_run AS run
CROSS JOIN _molprof_call AS call
WHERE call.id BETWEEN run.first_id AND run.last_id
UNION ALL
SELECT
  id,
  step_id
FROM _molprof_fact_operator_step;

-- The engine searches for calls by their slice.
CREATE PERFETTO INDEX _molprof_call_step_id ON molprof_call_step(id);
