-- Steps of any trace, by annotations, functions of engines, and loops of transformers.
--
-- Names are those of molprof.annotations: molprof.step batch=B step=S; SGLang's step[MODE bs=N ...], with toks=T and
-- sums over sequences as c_sk=K g_sk=K; vLLM's execute_context_C(...)_generation_G(...) and
-- execute_N_context_C(...)_generation_G(...), with such sums as sqTskK; ProfilerStep#N; and names of a program's own
-- that hold "step" or "iter" with a number, or end in "step", such as "decode step 12". Where no annotation of an engine
-- shows more, its functions are steps. No step counts twice: molprof.step_marks has the order in which marks are tried,
-- and of nested steps the outermost counts.
--
-- Example:
--   SELECT source, kind, COUNT() AS steps, SUM(tokens) AS tokens, SUM(dur) AS host_ns
--   FROM molprof_any_step
--   GROUP BY source, kind
--   ORDER BY source, kind;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.generate_phases;
INCLUDE PERFETTO MODULE molprof.marked_phases;
INCLUDE PERFETTO MODULE molprof.step_marks;
INCLUDE PERFETTO MODULE molprof.tokens;

-- Annotations that may be steps. Some programs write two for each, one inside the other.
CREATE PERFETTO TABLE _molprof_step_annotation AS
SELECT
  step.id,
  mark.name,
  mark.source AS form,
  IIF(
    mark.source = 'vllm' AND EXISTS(SELECT 1 FROM molprof_step_mark WHERE source = 'sglang' AND form = 'annotation'),
    'sglang',
    mark.source
  ) AS source,
  _molprof_number!(mark.name, 'context_') AS context,
  _molprof_number!(mark.name, '_generation_') AS generation,
  _molprof_number!(REPLACE(mark.name, 'sq', ''), '(') AS context_tokens,
  _molprof_number!(REPLACE(SUBSTR(mark.name, INSTR(mark.name, '_generation_')), 'sq', ''), '(') AS generation_tokens,
  -- The first sk is the context's: sqsk follows it.
  IIF(mark.source = 'vllm', _molprof_number!(mark.name, 'sk'), _molprof_number!(mark.name, ' c_sk=')) AS context_length,
  IIF(
    mark.source = 'vllm',
    _molprof_number!(SUBSTR(mark.name, INSTR(mark.name, '_generation_')), 'sk'),
    _molprof_number!(mark.name, ' g_sk=')
  ) AS generation_length,
  -- Sums over the sequences: the square of what is computed of each, and that times its length.
  IIF(mark.source = 'vllm', _molprof_number!(mark.name, 'sqsq'), _molprof_number!(mark.name, ' c_sqsq=')) AS context_squares,
  IIF(mark.source = 'vllm', _molprof_number!(mark.name, 'sqsk'), _molprof_number!(mark.name, ' c_sqsk=')) AS context_pairs,
  IIF(
    mark.source = 'vllm',
    _molprof_number!(SUBSTR(mark.name, INSTR(mark.name, '_generation_')), 'sqsk'),
    _molprof_number!(mark.name, ' g_sqsk=')
  ) AS generation_pairs,
  -- SGLang's EXTEND or DECODE.
  REPLACE(SUBSTR(mark.name, 6, INSTR(mark.name || ' ', ' ') - 6), ']', '') AS mode,
  EXISTS(SELECT 1 FROM molprof_annotation WHERE role = 'step' AND name GLOB 'step[[]TARGET_VERIFY*') AS has_drafts,
  _molprof_number!(mark.name, ' bs=') AS batch_size,
  _molprof_number!(mark.name, ' c=') AS mixed_context,
  _molprof_number!(mark.name, ' g=') AS mixed_generation,
  IFNULL(_molprof_number!(mark.name, ' toks='), _molprof_number!(mark.name, ' c_sq=')) AS extend_tokens,
  _molprof_number!(mark.name, ' g_sq=') AS verified_tokens
FROM molprof_step_mark AS step
JOIN molprof_annotation AS mark USING (id)
WHERE step.form = 'annotation'
ORDER BY step.id;

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
  -- Null where the name has no sums of a kind of sequences that the step has.
  IIF(form = 'vllm', context_tokens, IIF(mode = 'DECODE', 0, extend_tokens)) AS context_tokens,
  IIF(form = 'vllm', generation_tokens, IIF(mode = 'EXTEND', 0, IFNULL(verified_tokens, batch_size))) AS generation_tokens,
  IIF(mode = 'DECODE', 0, context_squares) AS context_squares,
  IIF(mode = 'DECODE', 0, context_pairs) AS context_pairs,
  IIF(mode = 'EXTEND', 0, generation_pairs) AS generation_pairs,
  -- What an engine chooses a graph by: vllm the tokens of the batch, sglang its sequences.
  IIF(form = 'vllm', context_tokens + generation_tokens, batch_size) AS graph_size,
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
  -- The slice of the annotation or function; of transformers the function's that begins it.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event; of vllm and sglang that of the schedule before the annotation.
  ts TIMESTAMP,
  -- Time on the host to the end, of vllm and sglang to the next schedule, of transformers to the next step; profiler's
  -- cost included, ns.
  dur DURATION,
  -- True if start and end are recorded. False for steps of vllm and sglang without the scheduler: they go from one
  -- annotation or function to the next, the last to the end of the last phase. And so for a loop of the user's own around a model of
  -- transformers: from one forward to the next.
  is_whole BOOL,
  -- Whose steps they are: molprof, vllm, sglang (where any step[...] is recorded), tensorrt_llm, transformers, profiler
  -- or program.
  source STRING,
  -- The annotation or function, as recorded; of transformers the loop and the step.
  name STRING,
  -- prefill, decode, mixed (both at once) or idle, or another mode of the engine's in lower case; null for
  -- profiler, program and other loops of transformers than generate. Of functions it goes by their GPU time, on a CPU by
  -- their length: those that take twice as long as all others, or longer, are prefills, the others decode; null where
  -- there is no such gap.
  kind STRING,
  -- True if the kind is inferred from the length of the step.
  kind_is_inferred BOOL,
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
  fact.id,
  fact.ts,
  fact.dur,
  -- Of a loop of the user's own a step goes from one forward to the next.
  IIF(loop.part = 'model', FALSE, fact.is_whole) AS is_whole,
  COALESCE(step.source, mark.source) AS source,
  CASE
    WHEN step.id IS NOT NULL THEN step.name
    WHEN loop.part = 'generate' THEN PRINTF('generate call=%d step=%d', loop.call, loop.step)
    WHEN loop.part = 'continuous' THEN 'continuous batching'
    WHEN loop.part = 'model' THEN 'forward'
    ELSE function.name
  END AS name,
  CASE
    WHEN step.form = 'molprof' THEN IIF(own.step = 0, 'prefill', 'decode')
    WHEN step.form = 'vllm' AND step.context > 0 AND step.generation > 0 THEN 'mixed'
    WHEN step.form = 'vllm' AND step.context > 0 THEN 'prefill'
    WHEN step.form = 'vllm' AND step.generation > 0 THEN 'decode'
    WHEN step.form = 'vllm' THEN 'idle'
    WHEN step.form = 'sglang' THEN IIF(step.mode = 'EXTEND', 'prefill', LOWER(step.mode))
    WHEN loop.id IS NOT NULL THEN loop.kind
    ELSE fact.kind
  END AS kind,
  fact.kind IS NOT NULL AS kind_is_inferred,
  CASE
    WHEN step.form = 'molprof' THEN own.step
    WHEN step.form = 'profiler' THEN _molprof_number!(step.name, '#')
    ELSE loop.step
  END AS number,
  IFNULL(own.batch, loop.call) AS batch,
  size.prompt_sequences,
  size.prompt_tokens,
  size.context_length AS prompt_length,
  size.generating_sequences,
  size.generation_length AS generating_length,
  CASE
    WHEN loop.id IS NOT NULL THEN loop.tokens
    WHEN step.form = 'molprof' THEN IIF(EXISTS(SELECT 1 FROM molprof_token), IFNULL(generated.tokens, 0), NULL)
    WHEN size.prompt_sequences > 0 AND size.generating_sequences = 0 THEN NULL
    -- No drafts: what is not certain are the first tokens of prompts.
    WHEN size.most_tokens - IFNULL(size.prompt_sequences, 0) = size.least_tokens THEN size.least_tokens
  END AS tokens,
  CASE
    WHEN loop.id IS NOT NULL THEN loop.least_tokens
    WHEN step.form = 'molprof' THEN IIF(EXISTS(SELECT 1 FROM molprof_token), IFNULL(generated.tokens, 0), NULL)
    ELSE size.least_tokens
  END AS least_tokens,
  CASE
    WHEN loop.id IS NOT NULL THEN loop.most_tokens
    WHEN step.form = 'molprof' THEN IIF(EXISTS(SELECT 1 FROM molprof_token), IFNULL(generated.tokens, 0), NULL)
    ELSE size.most_tokens
  END AS most_tokens,
  mark.upid,
  mark.tid
FROM _molprof_fact_step AS fact
JOIN molprof_step_mark AS mark ON mark.id = fact.id AND mark.rank = fact.rank
LEFT JOIN _molprof_step_annotation AS step ON step.id = fact.id
LEFT JOIN slice AS function ON function.id = fact.id
LEFT JOIN molprof_generate_step AS loop ON mark.form = 'loop' AND loop.id = fact.id
LEFT JOIN _molprof_step_size AS size ON size.id = fact.id
LEFT JOIN molprof_step AS own ON own.id = fact.id
LEFT JOIN generated ON generated.batch = own.batch AND generated.step = own.step
ORDER BY fact.ts, fact.id;
