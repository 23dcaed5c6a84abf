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

INCLUDE PERFETTO MODULE intervals.intersect;
INCLUDE PERFETTO MODULE molprof.call_phases;
INCLUDE PERFETTO MODULE molprof.devices;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.host_syncs;
INCLUDE PERFETTO MODULE molprof.phases;

-- Ends of all work in order; no rows where all work is on one device, whose gaps are known.
CREATE PERFETTO TABLE _molprof_any_end AS
SELECT ts_end
FROM _molprof_work
ORDER BY ts_end
LIMIT IIF(EXISTS(SELECT 1 FROM _molprof_only_device), 0, -1);

-- When no device worked, from before the first work on, and for how long until then; of a trace with phases.
CREATE PERFETTO TABLE _molprof_all_idle AS
WITH
  gap AS (
    SELECT ts, ts_end
    FROM _molprof_device_gap
    WHERE device IS NULL
    UNION ALL
    -- Work begins after a gap if as many have ended before it as have begun.
    SELECT last.ts_end, next.ts
    FROM _molprof_work AS next
    CROSS JOIN _molprof_any_end AS last
    WHERE last._auto_id = next._auto_id - 1 AND next.ts > last.ts_end
    UNION ALL
    SELECT 0, MIN(ts)
    FROM _molprof_work
    UNION ALL
    SELECT MAX(ts_end), 1 << 62
    FROM _molprof_work
    LIMIT IIF(EXISTS(SELECT 1 FROM _molprof_phase_lane), -1, 0)
  )
SELECT
  ts,
  ts_end,
  SUM(ts_end - ts) OVER (ORDER BY ts ROWS UNBOUNDED PRECEDING) - (ts_end - ts) AS before_ns
FROM gap
WHERE ts IS NOT NULL
ORDER BY ts;

-- How long no device worked between two times; null without GPU work.
CREATE PERFETTO MACRO _molprof_idle_between(ts Expr, ts_end Expr)
RETURNS Expr AS (
  (
    SELECT before_ns + MIN($ts_end, idle.ts_end) - idle.ts
    FROM _molprof_all_idle AS idle
    WHERE idle.ts <= $ts_end
    ORDER BY idle.ts DESC
    LIMIT 1
  ) - (
    SELECT before_ns + MIN($ts, idle.ts_end) - idle.ts
    FROM _molprof_all_idle AS idle
    WHERE idle.ts <= $ts
    ORDER BY idle.ts DESC
    LIMIT 1
  )
);

-- Host syncs of threads with phases, without what an earlier one of the thread covers.
CREATE PERFETTO TABLE _molprof_bound_wait AS
SELECT
  id,
  MAX(ts, IFNULL(earlier_end, ts)) AS ts,
  ts_end - MAX(ts, IFNULL(earlier_end, ts)) AS dur,
  thread
FROM (
  SELECT
    wait.id,
    wait.ts,
    wait.ts + wait.dur AS ts_end,
    (phase.upid << 33) + phase.tid AS thread,
    MAX(wait.ts + wait.dur) OVER (
      PARTITION BY phase.upid, phase.tid
      ORDER BY wait.ts, wait.id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS earlier_end
  FROM molprof_host_sync AS wait
  CROSS JOIN molprof_call_phase AS place
  CROSS JOIN molprof_phase AS phase
  WHERE place.id = wait.id AND phase.id = place.phase_id
)
WHERE ts_end > MAX(ts, IFNULL(earlier_end, ts))
ORDER BY ts, id;

-- Of each phase: time without any device at work, and the part of it in host syncs.
CREATE PERFETTO TABLE _molprof_bound_time AS
SELECT
  phase_id,
  SUM(idle_ns) AS idle_ns,
  SUM(sync_idle_ns) AS sync_idle_ns
FROM (
  SELECT id AS phase_id, _molprof_idle_between!(lane.ts, lane.ts_end) AS idle_ns, 0 AS sync_idle_ns
  FROM _molprof_phase_lane AS lane
  UNION ALL
  SELECT id_0, 0, _molprof_idle_between!(common.ts, common.ts + common.dur)
  FROM _interval_intersect!(
    (
      (SELECT id, ts, ts_end - ts AS dur, (upid << 33) + tid AS thread FROM _molprof_phase_lane),
      _molprof_bound_wait
    ),
    (thread)
  ) AS common
)
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
  IIF(recorded.gpu, phase.own_ns - IFNULL(bound.idle_ns, 0), NULL) AS gpu_busy_ns,
  IIF(recorded.gpu, IFNULL(bound.sync_idle_ns, 0), NULL) AS sync_idle_ns,
  IIF(recorded.gpu, IFNULL(bound.idle_ns - bound.sync_idle_ns, 0), NULL) AS launch_ns
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
