-- Steps of any trace: annotations of molprof, engines, profiler or program; transformers' loops.
--
-- Names are those of molprof.annotations: molprof.step batch=B step=S; SGLang's step[MODE bs=N] and
-- step[MODE bs=N toks=T]; vLLM's execute_context_C(...)_generation_G(...) and
-- execute_N_context_C(...)_generation_G(...); ProfilerStep#N; and names of a program's own that hold "step" or "iter"
-- with a number, or end in "step", such as "decode step 12". No step counts twice: molprof's go before the engines',
-- these before those of transformers' own loops, these before the profiler's, its before the program's, and of nested
-- steps the outermost counts. Forwards in a loop of the user's own are steps where nothing else is.
--
-- Example:
--   SELECT source, kind, COUNT() AS steps, SUM(tokens) AS tokens, SUM(dur) AS host_ns
--   FROM molprof_any_step
--   GROUP BY source, kind
--   ORDER BY source, kind;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.generate_phases;
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.tokens;

-- Annotations that are steps.
CREATE PERFETTO TABLE _molprof_step_annotation AS
WITH
  chosen AS (
    SELECT
      annotation.id,
      annotation.ts,
      annotation.dur,
      annotation.name,
      annotation.source,
      annotation.upid,
      annotation.tid,
      pattern.priority,
      MIN(pattern.priority) OVER () AS best,
      MAX(annotation.source = 'sglang') OVER () AS has_sglang,
      MAX(annotation.ts + annotation.dur) OVER (
        PARTITION BY pattern.priority, annotation.upid, annotation.tid
        ORDER BY annotation.ts, annotation.dur DESC, annotation.id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS covered_until
    FROM molprof_annotation AS annotation
    JOIN (SELECT DISTINCT source, priority FROM molprof_annotation_pattern WHERE role = 'step') AS pattern
      USING (source)
    WHERE
      annotation.role = 'step'
      -- Counts have fewer than 16 digits; sums of longer numbers would overflow.
      AND annotation.name NOT GLOB '*[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]*'
  )
SELECT
  id,
  ts,
  dur,
  name,
  source AS form,
  IIF(has_sglang AND source = 'vllm', 'sglang', source) AS source,
  upid,
  tid,
  _molprof_number!(name, 'context_') AS context,
  _molprof_number!(name, '_generation_') AS generation,
  _molprof_number!(REPLACE(name, 'sq', ''), '(') AS context_tokens,
  -- SGLang's EXTEND or DECODE.
  SUBSTR(name, 6, INSTR(name || ' ', ' ') - 6) AS mode,
  _molprof_number!(name, ' bs=') AS batch_size,
  _molprof_number!(name, ' toks=') AS extend_tokens
FROM chosen
WHERE
  priority = best
  AND (covered_until IS NULL OR ts + dur > covered_until)
  AND (
    source IN ('molprof', 'vllm', 'sglang')
    OR NOT EXISTS(SELECT 1 FROM molprof_generate_step WHERE part != 'model')
  );

-- The whole of an engine's steps, of which annotations mark the model's part: masks and sampling are outside. From one
-- schedule of the thread to the next, or, where the scheduler is not recorded, from one annotation to the next. The
-- last ends with the last phase.
CREATE PERFETTO TABLE _molprof_engine_step AS
WITH
  mark AS (
    SELECT id, upid, tid, ts, ts + dur AS ts_end, 1 AS is_step
    FROM _molprof_step_annotation
    WHERE source IN ('vllm', 'sglang')
    UNION ALL
    SELECT id, upid, tid, ts, ts + dur AS ts_end, 0 AS is_step
    FROM molprof_phase
    WHERE phase = 'schedule'
  ),
  found AS (
    SELECT
      id,
      upid,
      tid,
      IIF(LAG(is_step) OVER lane = 0, LAG(ts) OVER lane, ts) AS ts,
      ts_end,
      LEAD(ts) OVER lane AS next_ts,
      is_step,
      IFNULL(LAG(is_step) OVER lane = 0, FALSE) AS is_scheduled
    FROM mark
    WINDOW lane AS (PARTITION BY upid, tid ORDER BY ts, is_step, id)
  )
SELECT
  id,
  ts,
  IFNULL(
    next_ts,
    MAX(
      ts_end,
      IFNULL(
        (
          SELECT MAX(phase.ts + phase.dur)
          FROM molprof_phase AS phase
          WHERE phase.upid = found.upid AND phase.tid = found.tid AND phase.ts >= found.ts
        ),
        0
      )
    )
  ) - ts AS dur,
  is_scheduled
FROM found
WHERE is_step
ORDER BY id;

-- One row per step, in order of start. A step inside another of its thread has no row.
CREATE PERFETTO TABLE molprof_any_step(
  -- The annotation's slice; of transformers the function's that begins it.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event; of vllm and sglang that of the schedule before the annotation.
  ts TIMESTAMP,
  -- Time on the host to the end, of vllm and sglang to the next schedule, of transformers to the next step; profiler's
  -- cost included, ns.
  dur DURATION,
  -- Whether start and end are recorded. False for steps of vllm and sglang without the scheduler: they go from one
  -- annotation to the next, the last to the end of the last phase. And so for a loop of the user's own around a model of
  -- transformers: from one forward to the next.
  is_whole BOOL,
  -- Whose steps they are: molprof, vllm, sglang (where any step[...] is recorded), transformers, profiler or program.
  source STRING,
  -- The annotation, as recorded; of transformers the loop and the step.
  name STRING,
  -- prefill, decode, mixed (both at once) or idle, or another mode of the engine's in lower case; null for
  -- profiler, program and other loops of transformers than generate.
  kind STRING,
  -- Number of the step in its batch or call of generate, or of the profiler's step; null for all others.
  number LONG,
  -- Batch of molprof's step or call of generate, from 0; null for all others.
  batch LONG,
  -- Sequences whose prompt it read; null where not known.
  prompt_sequences LONG,
  -- Prompt tokens that it read; null where not known.
  prompt_tokens LONG,
  -- Generated tokens: one per generating sequence. The names of vllm and sglang do not show whether a prompt was read
  -- to its end, which gives its first token: a mixed step does not count those, and a prefill step is null, as any step
  -- whose name does not show the number. Of transformers in continuous batching alone.
  tokens LONG,
  -- Process of the step.
  upid JOINID(process.id),
  -- Thread number of the step.
  tid LONG
) AS
WITH
  generated AS (
    SELECT
      batch,
      step,
      COUNT() AS tokens
    FROM molprof_token
    GROUP BY batch, step
  )
SELECT
  step.id,
  IFNULL(whole.ts, step.ts) AS ts,
  IFNULL(whole.dur, step.dur) AS dur,
  IFNULL(whole.is_scheduled, TRUE) AS is_whole,
  step.source,
  step.name,
  CASE step.form
    WHEN 'molprof' THEN IIF(own.step = 0, 'prefill', 'decode')
    WHEN 'vllm' THEN CASE
      WHEN step.context > 0 AND step.generation > 0 THEN 'mixed'
      WHEN step.context > 0 THEN 'prefill'
      WHEN step.generation > 0 THEN 'decode'
      ELSE 'idle'
    END
    WHEN 'sglang' THEN IIF(step.mode = 'EXTEND', 'prefill', LOWER(REPLACE(step.mode, ']', '')))
  END AS kind,
  CASE step.form WHEN 'molprof' THEN own.step WHEN 'profiler' THEN _molprof_number!(step.name, '#') END AS number,
  own.batch,
  CASE
    WHEN step.form = 'vllm' THEN step.context
    WHEN step.form = 'sglang' AND step.mode = 'EXTEND' THEN step.batch_size
    WHEN step.form = 'sglang' AND step.mode = 'DECODE' THEN 0
  END AS prompt_sequences,
  CASE
    WHEN step.form = 'vllm' THEN step.context_tokens
    WHEN step.form = 'sglang' AND step.mode = 'EXTEND' THEN step.extend_tokens
    WHEN step.form = 'sglang' AND step.mode = 'DECODE' THEN 0
  END AS prompt_tokens,
  CASE
    WHEN step.form = 'molprof' THEN IIF(EXISTS(SELECT 1 FROM molprof_token), IFNULL(generated.tokens, 0), NULL)
    WHEN step.form = 'vllm' THEN IIF(step.context > 0 AND step.generation = 0, NULL, step.generation)
    WHEN step.form = 'sglang' AND step.mode = 'DECODE' THEN step.batch_size
  END AS tokens,
  step.upid,
  step.tid
FROM _molprof_step_annotation AS step
LEFT JOIN _molprof_engine_step AS whole ON whole.id = step.id
LEFT JOIN molprof_step AS own ON own.id = step.id
LEFT JOIN generated ON generated.batch = own.batch AND generated.step = own.step
UNION ALL
SELECT
  id,
  ts,
  dur,
  part != 'model' AS is_whole,
  'transformers' AS source,
  CASE part
    WHEN 'generate' THEN PRINTF('generate call=%d step=%d', call, step)
    WHEN 'continuous' THEN 'continuous batching'
    ELSE 'forward'
  END AS name,
  kind,
  step AS number,
  call AS batch,
  NULL AS prompt_sequences,
  NULL AS prompt_tokens,
  tokens,
  upid,
  tid
FROM molprof_generate_step
WHERE NOT EXISTS(SELECT 1 FROM _molprof_step_annotation)
ORDER BY 2, 1;
