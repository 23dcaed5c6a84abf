-- What bounded each phase: a busy GPU, the CPU waiting for an idle GPU, or the CPU issuing work.
--
-- Every moment of a phase counts once: as gpu_busy where any device runs a kernel, copy or set (also of an earlier
-- phase, and while the CPU waits for it); else as sync_idle where the phase's thread is in a host sync; else as launch.
-- The three add up to the phase's time.
--
-- Example:
--   SELECT phase, count, host_ns, gpu_busy_ns, sync_idle_ns, launch_ns
--   FROM molprof_phase_bound_summary
--   ORDER BY host_ns DESC, phase;

INCLUDE PERFETTO MODULE molprof.call_phases;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.host_syncs;
INCLUDE PERFETTO MODULE molprof.phases;

-- Changes of state per thread with phases; changes at one time are one row.
CREATE PERFETTO TABLE _molprof_bound_change AS
WITH
  home AS (
    SELECT DISTINCT
      upid,
      tid
    FROM molprof_phase
  ),
  -- What is true from ts to ts_end; phases without duration are left out.
  stretch AS (
    SELECT
      upid,
      tid,
      ts,
      ts_end,
      id + 1 AS phase_id,
      0 AS busy,
      0 AS waiting
    FROM _molprof_phase_lane
    UNION ALL
    SELECT
      home.upid,
      home.tid,
      work.ts,
      work.ts + work.dur AS ts_end,
      NULL AS phase_id,
      1 AS busy,
      0 AS waiting
    FROM home
    CROSS JOIN molprof_gpu_work AS work
    UNION ALL
    SELECT
      phase.upid,
      phase.tid,
      wait.ts,
      wait.ts + wait.dur AS ts_end,
      NULL AS phase_id,
      0 AS busy,
      1 AS waiting
    FROM molprof_host_sync AS wait
    JOIN molprof_call_phase AS place ON place.id = wait.id
    JOIN molprof_phase AS phase ON phase.id = place.phase_id
  ),
  change AS (
    SELECT
      upid,
      tid,
      ts,
      phase_id,
      busy,
      waiting
    FROM stretch
    UNION ALL
    SELECT
      upid,
      tid,
      ts_end AS ts,
      -phase_id AS phase_id,
      -busy AS busy,
      -waiting AS waiting
    FROM stretch
  )
SELECT
  upid,
  tid,
  ts,
  SUM(phase_id) AS phase_id,
  SUM(busy) AS busy,
  SUM(waiting) AS waiting
FROM change
GROUP BY upid, tid, ts;

-- Time of each phase by what bounded it. At most one phase of a thread is open at a time, so the sum of the numbers of
-- the open ones, counted from 1, is its number.
CREATE PERFETTO TABLE _molprof_bound_time AS
WITH
  moment AS (
    SELECT
      IFNULL(SUM(phase_id) OVER past, 0) AS phase_id,
      SUM(busy) OVER past AS busy,
      SUM(waiting) OVER past AS waiting,
      LEAD(ts) OVER (PARTITION BY upid, tid ORDER BY ts) - ts AS dur
    FROM _molprof_bound_change
    WINDOW
      past AS (PARTITION BY upid, tid ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
  )
SELECT
  phase_id - 1 AS phase_id,
  SUM(IIF(busy > 0, dur, 0)) AS gpu_busy_ns,
  SUM(IIF(busy = 0 AND waiting > 0, dur, 0)) AS sync_idle_ns,
  SUM(IIF(busy = 0 AND waiting = 0, dur, 0)) AS launch_ns
FROM moment
WHERE phase_id > 0
GROUP BY phase_id;

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
  -- Time on the host outside the phases that it contains, profiler's cost included, ns.
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
  IIF(recorded.gpu, IFNULL(bound.gpu_busy_ns, 0), NULL) AS gpu_busy_ns,
  IIF(recorded.gpu, IFNULL(bound.sync_idle_ns, 0), NULL) AS sync_idle_ns,
  IIF(recorded.gpu, IFNULL(bound.launch_ns, 0), NULL) AS launch_ns
FROM molprof_phase AS phase
CROSS JOIN recorded
LEFT JOIN _molprof_bound_time AS bound ON bound.phase_id = phase.id
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
