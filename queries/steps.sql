-- Steps of any trace: annotations of molprof, engines, profiler or program; transformers' loops.
--
-- Names are those of molprof.annotations: molprof.step batch=B step=S; SGLang's step[MODE bs=N ...], with toks=T and
-- sums over sequences as c_sk=K g_sk=K; vLLM's execute_context_C(...)_generation_G(...) and
-- execute_N_context_C(...)_generation_G(...), with such sums as sqTskK; ProfilerStep#N; and names of a program's own
-- that hold "step" or "iter" with a number, or end in "step", such as "decode step 12". No step counts twice: molprof's
-- go before the engines', these before those of transformers' own loops, these before the profiler's, its before the
-- program's, and of nested steps the outermost counts. Forwards in a loop of the user's own are steps where nothing else
-- is.
--
-- Example:
--   SELECT source, kind, COUNT() AS steps, SUM(tokens) AS tokens, SUM(dur) AS host_ns
--   FROM molprof_any_step
--   GROUP BY source, kind
--   ORDER BY source, kind;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.generate_phases;
INCLUDE PERFETTO MODULE molprof.marked_phases;
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
      MAX(annotation.name GLOB 'step[[]TARGET_VERIFY*') OVER () AS has_drafts,
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
  _molprof_number!(REPLACE(SUBSTR(name, INSTR(name, '_generation_')), 'sq', ''), '(') AS generation_tokens,
  -- The first sk is the context's: sqsk follows it.
  IIF(source = 'vllm', _molprof_number!(name, 'sk'), _molprof_number!(name, ' c_sk=')) AS context_length,
  IIF(
    source = 'vllm',
    _molprof_number!(SUBSTR(name, INSTR(name, '_generation_')), 'sk'),
    _molprof_number!(name, ' g_sk=')
  ) AS generation_length,
  -- SGLang's EXTEND or DECODE.
  REPLACE(SUBSTR(name, 6, INSTR(name || ' ', ' ') - 6), ']', '') AS mode,
  has_drafts,
  _molprof_number!(name, ' bs=') AS batch_size,
  _molprof_number!(name, ' c=') AS mixed_context,
  _molprof_number!(name, ' g=') AS mixed_generation,
  IFNULL(_molprof_number!(name, ' toks='), _molprof_number!(name, ' c_sq=')) AS extend_tokens,
  _molprof_number!(name, ' g_sq=') AS verified_tokens
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

-- Sequences and tokens of steps, by their names.
CREATE PERFETTO TABLE _molprof_step_size AS
SELECT
  id,
  CASE
    WHEN form = 'vllm' THEN context
    WHEN mode = 'EXTEND' THEN batch_size
    WHEN mode = 'MIXED' THEN mixed_context
    WHEN mode = 'DECODE' THEN 0
  END AS prompt_sequences,
  CASE
    WHEN form = 'vllm' THEN context_tokens
    WHEN mode IN ('EXTEND', 'MIXED') THEN extend_tokens
    WHEN mode = 'DECODE' THEN 0
  END AS prompt_tokens,
  CASE
    WHEN form = 'vllm' THEN generation
    WHEN mode = 'EXTEND' THEN 0
    WHEN mode = 'MIXED' THEN mixed_generation
    WHEN mode IN ('DECODE', 'TARGET_VERIFY') THEN batch_size
  END AS generating_sequences,
  context_length,
  generation_length,
  -- Where several tokens of a sequence are computed, some are drafts, of which any number is accepted. Where drafts are
  -- verified, a DECODE may be of the draft model, and generate nothing.
  CASE
    WHEN form = 'vllm' THEN generation
    WHEN mode = 'EXTEND' OR mode GLOB 'DRAFT_*' OR mode = 'DECODE' AND has_drafts THEN 0
    WHEN mode = 'MIXED' THEN mixed_generation
    WHEN mode IN ('DECODE', 'TARGET_VERIFY') THEN batch_size
  END AS least_tokens,
  CASE
    WHEN form = 'vllm' THEN context + MAX(generation, generation_tokens)
    WHEN mode = 'EXTEND' THEN batch_size
    WHEN mode GLOB 'DRAFT_*' THEN 0
    WHEN mode = 'MIXED' THEN mixed_context + MAX(mixed_generation, IFNULL(verified_tokens, 0))
    WHEN mode = 'DECODE' THEN MAX(batch_size, IFNULL(verified_tokens, 0))
    WHEN mode = 'TARGET_VERIFY' THEN MAX(batch_size, verified_tokens)
  END AS most_tokens
FROM _molprof_step_annotation
WHERE form IN ('vllm', 'sglang')
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
  -- Sum of the lengths of those sequences after the step, what was read before included; null where not known.
  prompt_length LONG,
  -- Sequences that generate; null where not known.
  generating_sequences LONG,
  -- Sum of their lengths after the step, prompts included; null where not known.
  generating_length LONG,
  -- Generated tokens: one per generating sequence. The names of vllm and sglang do not show whether a prompt was read
  -- to its end, which gives its first token: a mixed step does not count those, and a prefill step is null, as any step
  -- whose name does not show the number: where drafts are verified, any number of them may be accepted. Of transformers
  -- as in molprof.generate_phases.
  tokens LONG,
  -- Fewest tokens that the step can have generated; null where not known.
  least_tokens LONG,
  -- Most tokens that it can have generated, with first tokens of prompts and all drafts; null where not known.
  most_tokens LONG,
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
    WHEN 'sglang' THEN IIF(step.mode = 'EXTEND', 'prefill', LOWER(step.mode))
  END AS kind,
  CASE step.form WHEN 'molprof' THEN own.step WHEN 'profiler' THEN _molprof_number!(step.name, '#') END AS number,
  own.batch,
  size.prompt_sequences,
  size.prompt_tokens,
  size.context_length AS prompt_length,
  size.generating_sequences,
  size.generation_length AS generating_length,
  CASE
    WHEN step.form = 'molprof' THEN IIF(EXISTS(SELECT 1 FROM molprof_token), IFNULL(generated.tokens, 0), NULL)
    WHEN size.prompt_sequences > 0 AND size.generating_sequences = 0 THEN NULL
    -- No drafts: what is not certain are the first tokens of prompts.
    WHEN size.most_tokens - IFNULL(size.prompt_sequences, 0) = size.least_tokens THEN size.least_tokens
  END AS tokens,
  IIF(
    step.form = 'molprof',
    IIF(EXISTS(SELECT 1 FROM molprof_token), IFNULL(generated.tokens, 0), NULL),
    size.least_tokens
  ) AS least_tokens,
  IIF(
    step.form = 'molprof',
    IIF(EXISTS(SELECT 1 FROM molprof_token), IFNULL(generated.tokens, 0), NULL),
    size.most_tokens
  ) AS most_tokens,
  step.upid,
  step.tid
FROM _molprof_step_annotation AS step
LEFT JOIN _molprof_engine_step AS whole ON whole.id = step.id
LEFT JOIN _molprof_step_size AS size ON size.id = step.id
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
  NULL AS prompt_length,
  NULL AS generating_sequences,
  NULL AS generating_length,
  tokens,
  least_tokens,
  most_tokens,
  upid,
  tid
FROM molprof_generate_step
WHERE NOT EXISTS(SELECT 1 FROM _molprof_step_annotation)
ORDER BY 2, 1;
