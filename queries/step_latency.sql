-- Durations of steps on the host: percentiles, also of the time to the next step.
--
-- Percentiles are by nearest rank: the smallest value that at least that share of all values does not exceed.
-- Times include the profiler's cost.
--
-- Example:
--   SELECT measure, source, kind, count, p50_ns, p90_ns, p99_ns, longest_ns
--   FROM molprof_step_latency
--   ORDER BY measure, source, kind;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.steps;

-- One row per measure, source and kind of step.
CREATE PERFETTO VIEW molprof_step_latency(
  -- duration, from a step's start to its end; or period, to the start of the next step on its thread.
  measure STRING,
  -- molprof, vllm, sglang, profiler or program.
  source STRING,
  -- Kind of the steps, as in molprof.steps; null for profiler and program.
  kind STRING,
  -- Steps; the last of a thread has no period.
  count LONG,
  -- Mean, ns.
  mean_ns DOUBLE,
  -- Shortest, ns.
  shortest_ns DURATION,
  -- 50th percentile, ns.
  p50_ns DURATION,
  -- 90th percentile, ns; null for fewer than 10 steps.
  p90_ns DURATION,
  -- 99th percentile, ns; null for fewer than 100 steps.
  p99_ns DURATION,
  -- Longest, ns.
  longest_ns DURATION
) AS
WITH
  value AS (
    SELECT 'duration' AS measure, source, kind, dur
    FROM molprof_any_step
    UNION ALL
    SELECT 'period' AS measure, step.source, step.kind, found.period
    FROM _molprof_fact_step_period AS found
    JOIN molprof_any_step AS step ON step.id = found.step_id
  )
SELECT
  measure,
  source,
  kind,
  count,
  mean_ns,
  shortest_ns,
  p50_ns,
  p90_ns,
  p99_ns,
  longest_ns
FROM _molprof_spread!(value, (measure, source, kind))
ORDER BY measure, source, kind;
