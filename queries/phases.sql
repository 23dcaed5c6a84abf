-- Steps and phases of a captured run, from its annotations (docs/trace-format.md); phases of an engine.
--
-- Example:
--   SELECT batch, step, phase, ts, dur
--   FROM molprof_phase
--   ORDER BY ts, id;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.generate_phases;
INCLUDE PERFETTO MODULE molprof.phase_marks;
INCLUDE PERFETTO MODULE molprof.phase_slices;

-- Phases of an engine or of transformers.
CREATE PERFETTO VIEW _molprof_engine_phase AS
SELECT
  id,
  ts,
  dur,
  program,
  phase,
  NULL AS batch,
  NULL AS step,
  upid,
  tid
FROM _molprof_outer_slice
WHERE program != 'transformers'
UNION ALL
SELECT
  id,
  ts,
  dur,
  'transformers' AS program,
  phase,
  call AS batch,
  step,
  upid,
  tid
FROM molprof_generate_phase;

-- Phases of the run, or of an engine where no run is recorded.
CREATE PERFETTO TABLE _molprof_marked_phase AS
SELECT
  id,
  ts,
  dur,
  'molprof' AS program,
  SUBSTR(name, 9, INSTR(name || ' ', ' ') - 9) AS phase,
  _molprof_number!(name, ' batch=') AS batch,
  _molprof_number!(name, ' step=') AS step,
  upid,
  tid
FROM molprof_annotation
WHERE role = 'phase'
UNION ALL
SELECT *
FROM _molprof_engine_phase
WHERE NOT EXISTS(SELECT 1 FROM molprof_annotation WHERE role = 'phase');

-- Where phases begin and end, on each thread; how many are open then.
CREATE PERFETTO TABLE _molprof_phase_change AS
SELECT
  id,
  upid,
  tid,
  ts,
  change,
  SUM(change) OVER in_order AS open,
  LEAD(ts) OVER in_order AS ts_end
FROM (
  SELECT id, upid, tid, ts, 1 AS change, -dur AS place
  FROM _molprof_marked_phase
  WHERE dur > 0
  UNION ALL
  SELECT id, upid, tid, ts + dur AS ts, -1 AS change, -id AS place
  FROM _molprof_marked_phase
  WHERE dur > 0
)
WINDOW
  in_order AS (PARTITION BY upid, tid ORDER BY ts, change, place, id);

-- The innermost phase of a thread at each moment: the one that began last and has not ended.
CREATE PERFETTO TABLE _molprof_phase_lane AS
WITH
  -- The phase that began last among those open: slices are numbered in order of their start.
  last AS (
    SELECT
      upid,
      tid,
      ts,
      ts_end,
      MAX(IIF(change > 0, id, NULL)) OVER (
        PARTITION BY upid, tid, open
        ORDER BY ts, change, id
      ) AS around,
      MAX(IIF(change > 0, id, NULL)) OVER (
        PARTITION BY upid, tid
        ORDER BY ts, change, id
      ) AS latest
    FROM _molprof_phase_change
    WHERE open > 0
  )
SELECT
  -- Where phases overlap, the one that is still open.
  IIF(around.ts + around.dur > last.ts, last.around, last.latest) AS id,
  last.upid,
  last.tid,
  last.ts,
  last.ts_end
FROM last
JOIN _molprof_marked_phase AS around ON around.id = last.around
WHERE last.ts_end > last.ts
ORDER BY last.ts, last.upid, last.tid;

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
  -- Part of it outside the phases that it contains, ns; those of one thread add up to its time in phases.
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
  IFNULL(SUM(lane.ts_end - lane.ts), 0) AS own_ns,
  phase.program,
  phase.phase,
  phase.batch,
  phase.step,
  phase.upid,
  phase.tid
FROM _molprof_marked_phase AS phase
LEFT JOIN _molprof_phase_lane AS lane USING (id)
GROUP BY phase.id
ORDER BY phase.ts, phase.id;

-- One row per phase of the programs whose phases are recorded, also of those that did not occur.
CREATE PERFETTO VIEW molprof_phase_total(
  -- molprof, vllm, sglang or transformers.
  program STRING,
  -- Name of the phase.
  phase STRING,
  -- How often it occurred; null, as the times, where nothing in the trace could mark it.
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

-- One row per recorded step.
CREATE PERFETTO TABLE molprof_step(
  id JOINID(slice.id),
  ts TIMESTAMP,
  dur DURATION,
  batch LONG,
  -- Step of the batch; step 0 holds the prefill, every later one is a decode step.
  step LONG
) AS
SELECT
  id,
  ts,
  dur,
  _molprof_number!(name, ' batch=') AS batch,
  _molprof_number!(name, ' step=') AS step
FROM molprof_annotation
WHERE source = 'molprof' AND role = 'step'
ORDER BY ts, id;
