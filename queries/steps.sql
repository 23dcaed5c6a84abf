-- Steps of any trace, from annotations of molprof, vLLM, SGLang, torch's profiler or the program.
--
-- Names: molprof.step batch=B step=S; SGLang's step[MODE bs=N] and step[MODE bs=N toks=T]; vLLM's
-- execute_context_C(...)_generation_G(...) and execute_N_context_C(...)_generation_G(...); ProfilerStep#N; and names of
-- a program's own that hold "step" or "iter" with a number, or end in "step", such as "decode step 12". No step counts
-- twice: molprof's go before the engines', these before the profiler's, its before the program's, and of nested steps
-- the outermost counts.
--
-- Example:
--   SELECT source, kind, COUNT() AS steps, SUM(tokens) AS tokens, SUM(dur) AS host_ns
--   FROM molprof_any_step
--   GROUP BY source, kind
--   ORDER BY source, kind;

INCLUDE PERFETTO MODULE molprof.annotations;

INCLUDE PERFETTO MODULE molprof.phases;

INCLUDE PERFETTO MODULE molprof.tokens;

-- Annotations that are steps, with the parts of their names.
CREATE PERFETTO TABLE _molprof_step_annotation AS
WITH
  annotation AS (
    SELECT
      id,
      ts,
      dur,
      name,
      CASE
        WHEN name GLOB 'molprof.step batch=* step=*' THEN 1
        WHEN name GLOB 'step[[][A-Z]*]' THEN 2
        WHEN name GLOB 'execute_*context_[0-9]*_generation_[0-9]*' THEN 2
        WHEN name GLOB 'ProfilerStep#[0-9]*' THEN 3
        -- Phases.
        WHEN name GLOB 'molprof.*' THEN NULL
        WHEN LOWER(name) GLOB '*step[0-9]*' THEN 4
        WHEN LOWER(name) GLOB '*step[-_ #:=][0-9]*' THEN 4
        WHEN LOWER(name) GLOB '*iter[-_ #:=][0-9]*' THEN 4
        WHEN LOWER(name) GLOB '*iteration[-_ #:=][0-9]*' THEN 4
        -- Not Optimizer.step#SGD.step.
        WHEN LOWER(name) GLOB '*step' AND LOWER(name) NOT GLOB '*.step' AND name != 'ProfilerStep' THEN 4
      END AS choice,
      name GLOB 'step[[]*' AS is_sglang,
      upid,
      tid
    FROM molprof_annotation
    WHERE
      -- Counts have fewer than 16 digits; sums of longer numbers would overflow.
      name NOT GLOB '*[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]*'
  ),
  chosen AS (
    SELECT
      id,
      ts,
      dur,
      name,
      choice,
      is_sglang,
      MAX(is_sglang) OVER () AS has_sglang,
      upid,
      tid,
      MIN(choice) OVER () AS best,
      MAX(ts + dur) OVER (
        PARTITION BY choice, upid, tid
        ORDER BY ts, dur DESC, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS covered_until
    FROM annotation
    WHERE
      choice IS NOT NULL
  )
SELECT
  id,
  ts,
  dur,
  name,
  CASE choice
    WHEN 1 THEN 'molprof'
    WHEN 2 THEN IIF(has_sglang, 'sglang', 'vllm')
    WHEN 3 THEN 'profiler'
    ELSE 'program'
  END AS source,
  CASE choice WHEN 1 THEN 'molprof' WHEN 2 THEN IIF(is_sglang, 'step', 'execute') WHEN 3 THEN 'profiler' END AS form,
  upid,
  tid,
  -- CAST reads the leading digits.
  CAST(SUBSTR(name, INSTR(name, 'context_') + 8) AS INT) AS context,
  CAST(SUBSTR(name, INSTR(name, '_generation_') + 12) AS INT) AS generation,
  CAST(REPLACE(SUBSTR(name, INSTR(name, '(') + 1), 'sq', '') AS INT) AS context_tokens,
  SUBSTR(name, 6, INSTR(name || ' ', ' ') - 6) AS mode,
  IIF(INSTR(name, ' bs=') > 0, CAST(SUBSTR(name, INSTR(name, ' bs=') + 4) AS INT), NULL) AS batch_size,
  IIF(INSTR(name, ' toks=') > 0, CAST(SUBSTR(name, INSTR(name, ' toks=') + 6) AS INT), NULL) AS extend_tokens,
  CAST(SUBSTR(name, INSTR(name, '#') + 1) AS INT) AS number
FROM chosen
WHERE
  choice = best AND (covered_until IS NULL OR ts + dur > covered_until);

-- One row per step, in order of start. A step inside another of its thread has no row.
CREATE PERFETTO TABLE molprof_any_step(
  -- The annotation's slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host, profiler's cost included, ns.
  dur DURATION,
  -- Whose steps they are: molprof, vllm, sglang (where any step[...] is recorded), profiler or program.
  source STRING,
  -- The annotation, as recorded.
  name STRING,
  -- prefill, decode, mixed (both at once) or idle, or another mode of the engine's in lower case; null for
  -- profiler and program.
  kind STRING,
  -- Number of the step in its batch, or of the profiler's step; null for all others.
  number LONG,
  -- Batch of molprof's step, from 0; null for all others.
  batch LONG,
  -- Sequences whose prompt it read; null where not known.
  prompt_sequences LONG,
  -- Prompt tokens that it read; null where not known.
  prompt_tokens LONG,
  -- Generated tokens: one per generating sequence. The names of vllm and sglang do not show whether a prompt was read
  -- to its end, which gives its first token: a mixed step does not count those, and a prefill step is null, as any step
  -- whose name does not show the number.
  tokens LONG,
  -- Process of the step.
  upid JOINID(process.id),
  -- Thread number of the step.
  tid LONG
)
AS
WITH
  generated AS (
    SELECT
      batch,
      step,
      COUNT() AS tokens
    FROM molprof_token
    GROUP BY
      batch,
      step
  )
SELECT
  step.id,
  step.ts,
  step.dur,
  step.source,
  step.name,
  CASE step.form
    WHEN 'molprof' THEN IIF(own.step = 0, 'prefill', 'decode')
    WHEN 'execute' THEN CASE
      WHEN step.context > 0 AND step.generation > 0 THEN 'mixed'
      WHEN step.context > 0 THEN 'prefill'
      WHEN step.generation > 0 THEN 'decode'
      ELSE 'idle'
    END
    WHEN 'step' THEN IIF(step.mode = 'EXTEND', 'prefill', LOWER(REPLACE(step.mode, ']', '')))
  END AS kind,
  CASE step.form WHEN 'molprof' THEN own.step WHEN 'profiler' THEN step.number END AS number,
  own.batch,
  CASE
    WHEN step.form = 'execute' THEN step.context
    WHEN step.form = 'step' AND step.mode = 'EXTEND' THEN step.batch_size
    WHEN step.form = 'step' AND step.mode = 'DECODE' THEN 0
  END AS prompt_sequences,
  CASE
    WHEN step.form = 'execute' THEN step.context_tokens
    WHEN step.form = 'step' AND step.mode = 'EXTEND' THEN step.extend_tokens
    WHEN step.form = 'step' AND step.mode = 'DECODE' THEN 0
  END AS prompt_tokens,
  CASE
    WHEN step.form = 'molprof' THEN IFNULL(generated.tokens, 0)
    WHEN step.form = 'execute' THEN IIF(step.context > 0 AND step.generation = 0, NULL, step.generation)
    WHEN step.form = 'step' AND step.mode = 'DECODE' THEN step.batch_size
  END AS tokens,
  step.upid,
  step.tid
FROM _molprof_step_annotation AS step
LEFT JOIN molprof_step AS own
  ON own.id = step.id
LEFT JOIN generated
  ON generated.batch = own.batch AND generated.step = own.step
ORDER BY
  step.ts,
  step.id;
