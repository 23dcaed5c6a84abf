-- Steps of a captured run, from its annotations (docs/trace-format.md), and the marks of phases.
--
-- Example:
--   SELECT batch, step, ts, dur
--   FROM molprof_step
--   ORDER BY ts, id;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.generate_phases;
INCLUDE PERFETTO MODULE molprof.phase_slices;

-- Phases of an engine, the outermost of those of one phase, or of transformers.
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
FROM _molprof_fact_engine_phase
JOIN molprof_phase_slice USING (id)
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

-- Phases of masks and grammars of an engine, also of one that is captured: there they are inside phases of the run.
CREATE PERFETTO VIEW _molprof_constraint_phase AS
SELECT *
FROM _molprof_marked_phase
WHERE phase GLOB 'mask_*' OR phase GLOB 'grammar_*'
UNION ALL
SELECT *
FROM _molprof_engine_phase
WHERE
  program != 'transformers'
  AND (phase GLOB 'mask_*' OR phase GLOB 'grammar_*')
  AND EXISTS(SELECT 1 FROM molprof_annotation WHERE role = 'phase');

-- One row per recorded step.
CREATE PERFETTO TABLE molprof_step(
  -- The annotation's slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host, profiler's cost included, ns.
  dur DURATION,
  -- Batch, from 0.
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
