-- Bound of each phase: a busy GPU, the CPU waiting for an idle GPU, or the CPU issuing work.
--
-- Every moment of a phase counts once: as gpu_busy where any device runs a kernel, copy or set (also of an earlier
-- phase, and while the CPU waits for it); else as sync_idle where the phase's thread is in a host sync; else as launch.
-- The three add up to the phase's time.
--
-- Example:
--   SELECT phase, count, host_ns, gpu_busy_ns, sync_idle_ns, launch_ns
--   FROM molprof_phase_bound_summary
--   ORDER BY host_ns DESC, phase;

INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.phases;

-- One row per phase, in order of start. Empty for foreign traces.
CREATE PERFETTO TABLE molprof_phase_bound(
  -- The phase's slice.
  phase_id JOINID(slice.id),
  -- Name of the phase.
  phase STRING,
  -- Batch, from 0.
  batch LONG,
  -- Step of the batch; null for phases outside the steps.
  step LONG,
  -- Time on the host outside the phases that it contains (own_ns of molprof_phase), profiler's cost included, ns.
  host_ns DURATION,
  -- Part of it with any device busy, ns; null where no GPU work is recorded, as the next two.
  gpu_busy_ns DURATION,
  -- Part of it in a host sync while all devices were idle, ns.
  sync_idle_ns DURATION,
  -- The rest, ns: the CPU issued work or did its own while all devices were idle.
  launch_ns DURATION
) AS
WITH
  recorded AS (
    SELECT COUNT() > 0 AS gpu
    FROM molprof_gpu_work
  )
SELECT
  phase.id AS phase_id,
  phase.phase,
  phase.batch,
  phase.step,
  phase.own_ns AS host_ns,
  IIF(recorded.gpu, phase.own_ns - IFNULL(bound.idle_ns, 0), NULL) AS gpu_busy_ns,
  IIF(recorded.gpu, IFNULL(bound.sync_idle_ns, 0), NULL) AS sync_idle_ns,
  IIF(recorded.gpu, IFNULL(bound.idle_ns - bound.sync_idle_ns, 0), NULL) AS launch_ns
FROM molprof_phase AS phase
CROSS JOIN recorded
LEFT JOIN _molprof_fact_phase_bound AS bound ON bound.phase_id = phase.id
ORDER BY phase.ts, phase.id;

-- The same by phase, most host time first.
CREATE PERFETTO VIEW molprof_phase_bound_summary(
  phase STRING,
  -- Phases of that name.
  count LONG,
  host_ns DURATION,
  gpu_busy_ns DURATION,
  sync_idle_ns DURATION,
  -- The rest, ns.
  launch_ns DURATION
) AS
SELECT
  phase,
  COUNT() AS count,
  SUM(host_ns) AS host_ns,
  SUM(gpu_busy_ns) AS gpu_busy_ns,
  SUM(sync_idle_ns) AS sync_idle_ns,
  SUM(launch_ns) AS launch_ns
FROM molprof_phase_bound
GROUP BY phase
ORDER BY host_ns DESC, phase;
