-- Times of the phases of an engine or run: in all, and percentiles of single ones.
--
-- Percentiles are by nearest rank, as in molprof.step_latency. Times include the profiler's cost.
--
-- Example:
--   SELECT program, phase, count, time_ns, p50_ns, p90_ns, p99_ns, longest_ns
--   FROM molprof_phase_time
--   ORDER BY program, own_ns DESC, phase;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.recorded;
INCLUDE PERFETTO MODULE molprof.phases;

-- One row per phase of vLLM, SGLang, transformers or a program that writes molprof's annotations; also of those of an
-- engine that did not occur. Empty for other traces.
CREATE PERFETTO VIEW molprof_phase_time(
  -- vllm, sglang, transformers or molprof.
  program STRING,
  -- Name of the phase.
  phase STRING,
  -- Number of occurrences; null, as all columns below, where nothing in the trace could mark it.
  count LONG,
  -- Time on the host, ns; phases may contain each other.
  time_ns DURATION,
  -- The same as a share of the recorded span, 0 to 1.
  time_ratio DOUBLE,
  -- Part of it outside the phases that it contains, ns.
  own_ns DURATION,
  -- 50th percentile of the time of one, ns.
  p50_ns DURATION,
  -- 90th percentile, ns; null for fewer than 10.
  p90_ns DURATION,
  -- 99th percentile, ns; null for fewer than 100.
  p99_ns DURATION,
  -- Longest, ns.
  longest_ns DURATION
) AS
WITH
  span AS (
    SELECT MAX(ts_end) - MIN(ts) AS dur
    FROM molprof_recorded
  )
SELECT
  total.program,
  total.phase,
  total.count,
  total.time_ns,
  1.0 * total.time_ns / NULLIF(span.dur, 0) AS time_ratio,
  total.own_ns,
  spread.p50_ns,
  spread.p90_ns,
  spread.p99_ns,
  spread.longest_ns
FROM molprof_phase_total AS total
CROSS JOIN span
LEFT JOIN _molprof_spread!(molprof_phase, (program, phase)) AS spread USING (program, phase)
ORDER BY total.program, total.own_ns IS NULL, total.own_ns DESC, total.phase;
