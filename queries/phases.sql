-- Phases of a captured run, from its annotations (docs/trace-format.md), or of an engine.
--
-- Example:
--   SELECT batch, step, phase, ts, dur
--   FROM molprof_phase
--   ORDER BY ts, id;

INCLUDE PERFETTO MODULE molprof.marked_phases;
INCLUDE PERFETTO MODULE molprof.phase_marks;
INCLUDE PERFETTO MODULE molprof.phase_slices;

-- One row per phase. Of a captured run: template and tokenize of each batch, then prefill or forward, processor,
-- sampling and bookkeeping of each recorded step. Of an engine or transformers: those that molprof.phase_marks
-- recognizes, which may contain each other. Empty for other traces.
CREATE PERFETTO TABLE molprof_phase(
  -- The slice of the annotation or function that marks it.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host, profiler's cost included, ns.
  dur DURATION,
  -- Part of it outside the phases that it contains, ns; those of one thread add up to its time in phases. Where Python
  -- functions are recorded it is without molprof's own marks, whose functions cost most of what small phases seem to take.
  own_ns DURATION,
  -- molprof, vllm, sglang or transformers.
  program STRING,
  -- Name of the phase.
  phase STRING,
  -- Batch of a captured run or call of generate, from 0; null for engines.
  batch LONG,
  -- Step of the batch, 0 for the one with the prefill; null outside steps and for engines.
  step LONG,
  -- Process of the phase.
  upid JOINID(process.id),
  -- Thread number of the phase.
  tid LONG
) AS
SELECT
  phase.id,
  phase.ts,
  phase.dur,
  IFNULL(own.own_ns, phase.dur) AS own_ns,
  phase.program,
  phase.phase,
  phase.batch,
  phase.step,
  phase.upid,
  phase.tid
FROM _molprof_marked_phase AS phase
-- Those that contain others, molprof's own marks, or no time.
LEFT JOIN _molprof_fact_phase_own AS own USING (id)
ORDER BY phase.ts, phase.id;

-- One row per phase of the programs whose phases are recorded, also of those that did not occur.
CREATE PERFETTO VIEW molprof_phase_total(
  -- molprof, vllm, sglang or transformers.
  program STRING,
  -- Name of the phase.
  phase STRING,
  -- Number of occurrences; null, as the times, where nothing in the trace could mark it.
  count LONG,
  -- Time on the host, ns; phases may contain each other.
  time_ns DURATION,
  -- Part of it outside the phases that it contains, ns; these add up to the time in phases.
  own_ns DURATION
) AS
WITH
  found AS (
    SELECT program, phase, COUNT() AS count, SUM(dur) AS time_ns, SUM(own_ns) AS own_ns
    FROM molprof_phase
    GROUP BY program, phase
  ),
  -- Parts of a program of which functions or scopes are recorded.
  recorded AS (
    SELECT program, part, kind
    FROM _molprof_marked_name
    GROUP BY program, part, kind
  ),
  possible AS (
    SELECT
      mark.program,
      mark.phase,
      MAX(recorded.kind IS NOT NULL) AS is_recorded
    FROM molprof_phase_mark AS mark
    LEFT JOIN recorded USING (program, part, kind)
    WHERE mark.program IN (SELECT program FROM found) AND mark.program != 'transformers'
    GROUP BY mark.program, mark.phase
    UNION
    -- Its parts are alternatives, all of functions.
    SELECT
      mark.program,
      mark.phase,
      1 AS is_recorded
    FROM molprof_phase_mark AS mark
    JOIN recorded USING (program, part)
    WHERE mark.program = 'transformers' AND mark.phase IS NOT NULL AND mark.program IN (SELECT program FROM found)
    UNION ALL
    SELECT program, phase, 1 AS is_recorded
    FROM found
    WHERE program = 'molprof'
  )
SELECT
  possible.program,
  possible.phase,
  IIF(possible.is_recorded, IFNULL(found.count, 0), NULL) AS count,
  IIF(possible.is_recorded, IFNULL(found.time_ns, 0), NULL) AS time_ns,
  IIF(possible.is_recorded, IFNULL(found.own_ns, 0), NULL) AS own_ns
FROM possible
LEFT JOIN found USING (program, phase)
ORDER BY possible.program, possible.phase;
