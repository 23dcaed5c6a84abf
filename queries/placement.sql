-- The phase of each kernel, copy and set: that of its launch, whenever it ran.
--
-- Example:
--   SELECT phase.phase, COUNT() AS count, SUM(work.dur) AS gpu_ns
--   FROM molprof_work_phase AS place
--   JOIN molprof_gpu_work AS work
--     USING (id)
--   LEFT JOIN molprof_phase AS phase
--     ON phase.id = place.phase_id
--   GROUP BY phase.phase
--   ORDER BY phase.phase IS NULL, phase.phase;

INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.phases;

-- GPU work with the phase of its launch; a graph's work belongs to the graph launch. Nothing is written down for
-- foreign traces, which have no phases.
CREATE PERFETTO VIEW molprof_work_phase(
  -- The kernel, copy or set.
  id JOINID(slice.id),
  -- The phase's slice; null where the call is not recorded or outside any phase.
  phase_id JOINID(slice.id)
) AS
SELECT
  work.id,
  place.phase_id
FROM _molprof_work AS work
LEFT JOIN _molprof_fact_launch_phase AS place ON place.id = work.call_id;
