-- Runs of the profiler in one file, and the idle time between them.
--
-- torch.profiler writes one span of category Trace for each of its runs.
--
-- Example:
--   SELECT number, name, ts, dur, gap_ns
--   FROM molprof_profiler_run
--   ORDER BY number;

INCLUDE PERFETTO MODULE molprof.devices;
INCLUDE PERFETTO MODULE molprof.gpu_work;

-- One row per run of the profiler, in order of start; empty where the trace has no such spans.
CREATE PERFETTO TABLE molprof_profiler_run(
  -- The span's slice.
  id JOINID(slice.id),
  -- Number of the run, from 1.
  number LONG,
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Length, ns.
  dur DURATION,
  -- Name as recorded.
  name STRING,
  -- From the end of all earlier runs to the start of this one, ns; 0 where they overlap, null for the first.
  gap_ns DURATION
) AS
SELECT
  id,
  ROW_NUMBER() OVER in_order AS number,
  ts,
  dur,
  name,
  MAX(0, ts - MAX(ts + dur) OVER (in_order ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS gap_ns
FROM slice
WHERE category = 'Trace' AND name GLOB 'PyTorch Profiler*'
WINDOW in_order AS (ORDER BY ts, id)
ORDER BY ts, id;

-- Time between runs, for each device.
CREATE PERFETTO TABLE _molprof_between_runs AS
SELECT
  device.device,
  run.ts - run.gap_ns AS ts,
  run.ts AS ts_end
FROM molprof_profiler_run AS run
CROSS JOIN molprof_device AS device
WHERE run.gap_ns > 0 AND device.idle_ns > 0;

-- Idle time of each device between runs of the profiler: nothing recorded it.
CREATE PERFETTO VIEW molprof_idle_between_runs(
  -- Device number as text.
  device STRING,
  -- Idle time between runs, ns.
  idle_ns DURATION
) AS
SELECT
  pause.device,
  SUM(MIN(gap.ts_end, pause.ts_end) - MAX(gap.ts, pause.ts)) AS idle_ns
-- In this order, the engine searches the gaps of each of these few times: both their starts and their ends are in order.
FROM _molprof_between_runs AS pause
CROSS JOIN _molprof_device_gap AS gap
WHERE
  gap.ts < pause.ts_end
  AND gap.ts_end > pause.ts
  AND IFNULL(gap.device, (SELECT device FROM _molprof_only_device)) = pause.device
GROUP BY pause.device
ORDER BY pause.device;
