-- Durations of steps with the GPU work that they start.
--
-- A step is done when it has ended on the host and its work on the device. Its time begins with it, or when the steps
-- before it in its process are done: in a loop in which the host runs ahead of the device it is the device's.
--
-- Example:
--   SELECT step.name, step.dur AS host_ns, fact.time_ns
--   FROM molprof_step_time AS fact
--   JOIN molprof_any_step AS step ON step.id = fact.step_id
--   ORDER BY step.ts, step.id;

INCLUDE PERFETTO MODULE molprof.steps;

-- One row per step, in order of start.
CREATE PERFETTO TABLE molprof_step_time(
  -- The step's slice.
  step_id JOINID(slice.id),
  -- When it and the work that its calls started have ended, ns since the trace's earliest event.
  done_ts TIMESTAMP,
  -- From its start, or from when the steps before it in its process were done, to that moment, ns.
  time_ns DURATION
) AS
SELECT
  step_id,
  done_ts,
  time_ns
FROM _molprof_fact_step_time;
