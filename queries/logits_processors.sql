-- Single logits processors in Python stacks, by the file and line of their call.
--
-- A trace has no names of their classes.
--
-- Example:
--   SELECT source, count, time_ns, p50_ns, longest_ns
--   FROM molprof_logits_processor
--   ORDER BY time_ns DESC, source;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.phase_slices;

-- One row per function __call__ that ran within the phase processor and in no other one, but for transformers' list of
-- processors. Empty without Python stacks.
CREATE PERFETTO TABLE molprof_logits_processor(
  -- File and line of the function, as recorded.
  source STRING,
  -- Calls.
  count LONG,
  -- Time on the host, profiler's cost included, ns.
  time_ns DURATION,
  -- 50th percentile of the time of one, by nearest rank, ns.
  p50_ns DURATION,
  -- 90th percentile, ns; null for fewer than 10.
  p90_ns DURATION,
  -- 99th percentile, ns; null for fewer than 100.
  p99_ns DURATION,
  -- Longest, ns.
  longest_ns DURATION
) AS
WITH
  called AS (
    SELECT
      SUBSTR(name, 1, INSTR(name, '): __call__')) AS source,
      dur
    FROM _molprof_fact_single_processor
    JOIN molprof_phase_slice USING (id)
  )
SELECT
  source,
  count,
  time_ns,
  p50_ns,
  p90_ns,
  p99_ns,
  longest_ns
FROM _molprof_spread!(called, (source))
ORDER BY time_ns DESC, source;
