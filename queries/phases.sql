-- Steps and phases of a captured run, from its annotations (docs/trace-format.md).
--
-- Example:
--   SELECT batch, step, phase, ts, dur
--   FROM molprof_phase
--   ORDER BY ts, id;

INCLUDE PERFETTO MODULE molprof.annotations;

-- One row per phase: template and tokenize of each batch, then prefill or forward, processor, sampling and
-- bookkeeping of each recorded step. Empty for foreign traces.
CREATE PERFETTO TABLE molprof_phase(
  -- The annotation's slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host, profiler's cost included, ns.
  dur DURATION,
  -- template, tokenize, prefill, forward, processor, sampling or bookkeeping.
  phase STRING,
  -- Batch, from 0.
  batch LONG,
  -- Step of the batch, 0 for the one with the prefill; null for template and tokenize.
  step LONG,
  -- Process of the phase.
  upid JOINID(process.id),
  -- Thread number of the phase.
  tid LONG
) AS
SELECT
  id,
  ts,
  dur,
  SUBSTR(name, 9, INSTR(name || ' ', ' ') - 9) AS phase,
  _molprof_number!(name, ' batch=') AS batch,
  _molprof_number!(name, ' step=') AS step,
  upid,
  tid
FROM molprof_annotation
WHERE role = 'phase'
ORDER BY ts, id;

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
