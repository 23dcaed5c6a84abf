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
INCLUDE PERFETTO MODULE molprof.phases;

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
  item AS (
    SELECT id, upid, tid, ts, dur, NULL AS name, 1 AS is_phase, program = 'transformers' AND batch IS NOT NULL AS in_generate
    FROM molprof_phase
    WHERE phase = 'processor'
    UNION ALL
    SELECT id, upid, tid, ts, dur, name, 0 AS is_phase, 0 AS in_generate
    FROM molprof_phase_slice
    WHERE phase IS NULL OR phase = 'processor'
  ),
  -- Slices are numbered in order of their start.
  placed AS (
    SELECT
      *,
      MAX(IIF(is_phase, id, NULL)) OVER past AS phase_id,
      MAX(IIF(in_generate, id, NULL)) OVER past AS list_id,
      MAX(IIF(is_phase, ts + dur, NULL)) OVER past AS phase_until
    FROM item
    WINDOW
      past AS (
        PARTITION BY upid, tid
        ORDER BY ts, dur DESC, is_phase DESC, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
      )
  ),
  inside AS (
    SELECT
      *,
      COUNT() OVER (PARTITION BY phase_id) AS calls,
      MIN(id) OVER (PARTITION BY phase_id) AS first_id
    FROM placed
    WHERE NOT is_phase AND ts + dur <= phase_until
  ),
  single AS (
    SELECT
      *,
      MAX(ts + dur) OVER (
        PARTITION BY upid, tid
        ORDER BY ts, dur DESC, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS covered_until
    FROM inside
    -- The list is the outermost call; in loops of the user's own it is of the same file as processors.
    WHERE
      id IS NOT list_id
      AND NOT name GLOB '*/cb_logits_processors.py(*'
      AND NOT (id = first_id AND calls > 1 AND name GLOB '*transformers/generation/logits_process.py(*')
  ),
  called AS (
    SELECT
      SUBSTR(name, 1, INSTR(name, '): __call__')) AS source,
      dur
    FROM single
    WHERE covered_until IS NULL OR ts >= covered_until
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
