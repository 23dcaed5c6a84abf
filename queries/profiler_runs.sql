-- Runs of the profiler in one file.
--
-- torch.profiler writes one span of category Trace for each of its runs.
--
-- Example:
--   SELECT number, name, ts, dur, gap_ns
--   FROM molprof_profiler_run
--   ORDER BY number;

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
