-- GPU work of the recorded steps by class.
--
-- Example:
--   SELECT class, count, time_ns
--   FROM molprof_step_class
--   ORDER BY time_ns DESC, class;

INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.kernel_classes;
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.placement;

-- Work whose launch is in a recorded step, by class, longest total time first. Empty for foreign traces.
CREATE PERFETTO VIEW molprof_step_class(
  -- Class of the work, as in molprof.kernel_classes.
  class STRING,
  -- Kernels, copies or sets of all recorded steps.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION
) AS
SELECT
  class.class,
  COUNT() AS count,
  SUM(work.dur) AS time_ns
FROM molprof_gpu_work AS work
JOIN molprof_work_phase AS place ON place.id = work.id
JOIN molprof_phase AS phase ON phase.id = place.phase_id
JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name
WHERE phase.step IS NOT NULL
GROUP BY class.class
ORDER BY time_ns DESC, class.class;
