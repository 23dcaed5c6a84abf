-- Cost of the masks of constrained decoding in an engine: step by step, and percentiles.
--
-- Of steps and phases that molprof.phase_marks recognizes, also where molprof captured an engine with its functions;
-- times are on the host and include the profiler's cost. A phase belongs to the last step of its process that had begun.
-- Percentiles are by nearest rank, as in molprof.step_latency.
--
-- Example:
--   SELECT measure, per, count, time_ns, p50_ns, p90_ns, p99_ns, longest_ns
--   FROM molprof_mask_time
--   ORDER BY measure, per;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.call_phases;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.marked_phases;
INCLUDE PERFETTO MODULE molprof.memory_copies;
INCLUDE PERFETTO MODULE molprof.phase_marks;
INCLUDE PERFETTO MODULE molprof.phase_slices;
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.steps;
INCLUDE PERFETTO MODULE molprof.tokens;

-- Steps of engines, with the numbers of their masks and of the spans of steps that are alike.
CREATE PERFETTO TABLE _molprof_numbered_step AS
SELECT
  step.id,
  step.ts,
  step.dur,
  step.kind,
  IIF(step.source = 'molprof', generated.sequences, step.prompt_sequences + step.generating_sequences) AS sequences,
  step.least_tokens = step.most_tokens AS is_plain,
  found.masks,
  found.span,
  found.position
FROM molprof_any_step AS step
JOIN _molprof_fact_mask_step AS found ON found.step_id = step.id
LEFT JOIN (
  SELECT batch, step AS number, COUNT(DISTINCT sequence) AS sequences
  FROM molprof_token
  GROUP BY batch, step
) AS generated USING (batch, number)
WHERE step.source IN ('molprof', 'vllm', 'sglang', 'tensorrt_llm', 'transformers')
ORDER BY step.id;

-- Phases that are masks, with the part of each in which no device worked; all of it where no GPU work is recorded. Rows
-- that threads of their own fill are left out: the thread that waits for them counts.
CREATE PERFETTO TABLE _molprof_mask_phase AS
SELECT
  phase.id,
  phase.phase,
  phase.dur,
  IFNULL(own.own_ns, phase.dur) AS own_ns,
  IIF(recorded.gpu, IFNULL(bound.idle_ns, 0), IFNULL(own.own_ns, phase.dur)) AS exposed_ns,
  place.step_id
FROM _molprof_constraint_phase AS phase
CROSS JOIN (SELECT COUNT() > 0 AS gpu FROM molprof_gpu_work) AS recorded
LEFT JOIN _molprof_fact_phase_own AS own USING (id)
LEFT JOIN _molprof_fact_phase_bound AS bound ON bound.phase_id = phase.id
LEFT JOIN _molprof_fact_phase_step AS place ON place.phase_id = phase.id
WHERE
  phase.phase GLOB 'mask_*'
  AND (
    phase.phase != 'mask_fill_per_request'
    OR NOT EXISTS(SELECT 1 FROM _molprof_constraint_phase WHERE phase = 'mask_fill')
    OR (phase.upid, phase.tid) IN (SELECT upid, tid FROM _molprof_constraint_phase WHERE phase = 'mask_fill')
  )
ORDER BY phase.id;

-- Copies of masks: those of the host that a mask's phase started.
CREATE PERFETTO VIEW molprof_mask_copy(
  -- The copy's slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the device, ns.
  dur DURATION,
  -- HtoD: a mask to the device; DtoH: logits or tokens to the host.
  direction STRING,
  -- Memory of the host's side: Pageable or Pinned; null where not recorded.
  host_memory STRING,
  -- Bytes moved; null where not recorded.
  bytes LONG,
  -- The call that started it.
  call_id JOINID(slice.id),
  -- The phase's slice.
  phase_id JOINID(slice.id),
  -- The phase: mask_copy, mask_apply or another of masks.
  phase STRING
) AS
SELECT
  copy.id,
  copy.ts,
  copy.dur,
  copy.direction,
  IIF(copy.direction = 'HtoD', copy.source, copy.target) AS host_memory,
  copy.bytes,
  copy.call_id,
  phase.id AS phase_id,
  phase.phase
FROM molprof_memory_copy AS copy
JOIN molprof_call_phase AS place ON place.id = copy.call_id
JOIN molprof_phase AS phase ON phase.id = place.phase_id
WHERE copy.direction IN ('HtoD', 'DtoH') AND phase.phase GLOB 'mask_*'
ORDER BY copy.ts, copy.id;

-- One row per step of an engine, in order of start; none where nothing is filled, applied or accepted. Times are null
-- where nothing in the trace could mark them.
CREATE PERFETTO TABLE molprof_mask_step(
  -- The step's slice.
  step_id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time of the step on the host, ns.
  dur DURATION,
  -- prefill, decode and so on, as in molprof.steps.
  kind STRING,
  -- Number of the span of decode steps with as many sequences and masks, one after the other; null for other steps.
  span LONG,
  -- Number of the step in its span, from 0.
  position LONG,
  -- Sequences of the step; null where not known.
  sequences LONG,
  -- Masks that were filled: one for each constrained request, where drafts are verified one for each position. Null where
  -- nothing marks the filling of single ones.
  masks LONG,
  -- Sequences of a decode step that no mask was filled for; null where not known.
  unconstrained LONG,
  -- Time of filling masks, ns; without copying them.
  fill_ns DURATION,
  -- Part of it in which no device worked, ns; all of it where no GPU work is recorded.
  fill_exposed_ns DURATION,
  -- Time of accepting tokens, which advances the grammars, ns.
  accept_ns DURATION,
  -- Time in functions that copy masks, ns; in vllm part of applying.
  copy_ns DURATION,
  -- Time of applying masks to logits, ns.
  apply_ns DURATION,
  -- Time of all these, ns.
  mask_ns DURATION,
  -- Part of it in which no device worked, ns; all of it where no GPU work is recorded.
  mask_exposed_ns DURATION,
  -- Time of forwards, ns.
  forward_ns DURATION
) AS
WITH
  -- 0 of what something in the trace could mark, else null.
  zero AS (
    SELECT
      MAX(IIF(phase IN ('mask_fill', 'mask_fill_per_request'), 0 * time_ns, NULL)) AS fill_ns,
      MAX(IIF(phase = 'mask_accept_per_request', 0 * time_ns, NULL)) AS accept_ns,
      MAX(IIF(phase = 'mask_copy', 0 * time_ns, NULL)) AS copy_ns,
      MAX(IIF(phase = 'mask_apply', 0 * time_ns, NULL)) AS apply_ns,
      MAX(IIF(phase = 'forward', 0 * time_ns, NULL)) AS forward_ns
    FROM (
      SELECT phase, time_ns
      FROM molprof_phase_total
      WHERE program != 'molprof' OR phase = 'forward'
      UNION ALL
      -- Of an engine that is captured.
      SELECT mark.phase, 0 AS time_ns
      FROM molprof_phase_mark AS mark
      JOIN (SELECT DISTINCT program, part, kind FROM _molprof_marked_name) USING (program, part, kind)
      WHERE mark.program != 'transformers' AND mark.phase GLOB 'mask_*'
    )
  ),
  cost AS (
    SELECT
      step_id,
      SUM(IIF(phase IN ('mask_fill', 'mask_fill_per_request'), own_ns, NULL)) AS fill_ns,
      SUM(IIF(phase IN ('mask_fill', 'mask_fill_per_request'), exposed_ns, NULL)) AS fill_exposed_ns,
      SUM(IIF(phase = 'mask_accept_per_request', own_ns, NULL)) AS accept_ns,
      SUM(IIF(phase = 'mask_copy', own_ns, NULL)) AS copy_ns,
      SUM(IIF(phase = 'mask_apply', own_ns, NULL)) AS apply_ns,
      SUM(own_ns) AS mask_ns,
      SUM(exposed_ns) AS mask_exposed_ns
    FROM _molprof_mask_phase
    GROUP BY step_id
  ),
  forward AS (
    SELECT
      place.step_id,
      SUM(phase.dur) AS forward_ns
    FROM _molprof_fact_phase_step AS place
    JOIN molprof_phase AS phase ON phase.id = place.phase_id
    WHERE phase.phase IN ('forward', 'prefill')
    GROUP BY place.step_id
  ),
  step AS (
    SELECT
      step.*,
      IFNULL(cost.fill_ns, zero.fill_ns) AS fill_ns,
      IFNULL(cost.fill_exposed_ns, zero.fill_ns) AS fill_exposed_ns,
      IFNULL(cost.accept_ns, zero.accept_ns) AS accept_ns,
      IFNULL(cost.copy_ns, zero.copy_ns) AS copy_ns,
      IFNULL(cost.apply_ns, zero.apply_ns) AS apply_ns,
      IFNULL(cost.mask_ns, 0) AS mask_ns,
      IFNULL(cost.mask_exposed_ns, 0) AS mask_exposed_ns,
      IFNULL(forward.forward_ns, zero.forward_ns) AS forward_ns
    FROM _molprof_numbered_step AS step
    CROSS JOIN zero
    LEFT JOIN cost ON cost.step_id = step.id
    LEFT JOIN forward ON forward.step_id = step.id
    -- SGLang calls the filling without constraints too.
    WHERE EXISTS(SELECT 1 FROM _molprof_constraint_phase WHERE phase GLOB 'mask_*' AND phase != 'mask_fill')
  )
SELECT
  id AS step_id,
  ts,
  dur,
  kind,
  IIF(kind = 'decode', span, NULL) AS span,
  IIF(kind = 'decode', position, NULL) AS position,
  sequences,
  masks,
  IIF(kind = 'decode' AND is_plain AND masks <= sequences, sequences - masks, NULL) AS unconstrained,
  fill_ns,
  fill_exposed_ns,
  accept_ns,
  copy_ns,
  apply_ns,
  mask_ns,
  mask_exposed_ns,
  forward_ns
FROM step
ORDER BY ts, step_id;

-- Times of masks in steps and of single requests, with percentiles. What did not occur has no row.
CREATE PERFETTO VIEW molprof_mask_time(
  -- fill, accept, copy, apply, all of these, compile (of a grammar), or forward, to compare with.
  measure STRING,
  -- step, or request: one constrained request in one step, a whole one for compile.
  per STRING,
  -- Steps or requests in which it occurred.
  count LONG,
  -- Sum, ns.
  time_ns DURATION,
  -- 50th percentile, ns.
  p50_ns DURATION,
  -- 90th percentile, ns; null for fewer than 10.
  p90_ns DURATION,
  -- 99th percentile, ns; null for fewer than 100.
  p99_ns DURATION,
  -- Longest, ns.
  longest_ns DURATION
) AS
WITH
  value AS (
    SELECT 'fill' AS measure, 'step' AS per, fill_ns AS dur FROM molprof_mask_step
    UNION ALL
    SELECT 'accept', 'step', accept_ns FROM molprof_mask_step
    UNION ALL
    SELECT 'copy', 'step', copy_ns FROM molprof_mask_step
    UNION ALL
    SELECT 'apply', 'step', apply_ns FROM molprof_mask_step
    UNION ALL
    SELECT 'all', 'step', mask_ns FROM molprof_mask_step
    UNION ALL
    SELECT 'forward', 'step', forward_ns FROM molprof_mask_step
    UNION ALL
    SELECT 'fill', 'request', dur FROM _molprof_constraint_phase WHERE phase = 'mask_fill_per_request'
    UNION ALL
    SELECT 'accept', 'request', dur FROM _molprof_constraint_phase WHERE phase = 'mask_accept_per_request'
    UNION ALL
    SELECT 'compile', 'request', dur FROM _molprof_constraint_phase WHERE phase = 'grammar_compile'
  )
SELECT
  measure,
  per,
  count,
  time_ns,
  p50_ns,
  p90_ns,
  p99_ns,
  longest_ns
FROM _molprof_spread!((SELECT * FROM value WHERE dur > 0), (measure, per))
ORDER BY measure, per;

-- Steps by kind, sequences and masks, the most steps first: what constrained requests cost the others of their steps.
CREATE PERFETTO VIEW molprof_mask_mix(
  -- prefill, decode and so on, as in molprof.steps.
  kind STRING,
  -- Sequences of the step; null where not known.
  sequences LONG,
  -- Masks that were filled; null where nothing marks single ones.
  masks LONG,
  -- Sequences without; null where not known.
  unconstrained LONG,
  -- Steps that are alike in these.
  steps LONG,
  -- Mean time of a step on the host, ns.
  mean_ns DOUBLE,
  -- Mean time of filling masks in a step, ns; null where nothing in the trace could mark it.
  mean_fill_ns DOUBLE,
  -- Mean time of all that is done for masks in a step, ns.
  mean_mask_ns DOUBLE
) AS
SELECT
  kind,
  sequences,
  masks,
  unconstrained,
  COUNT() AS steps,
  AVG(dur) AS mean_ns,
  AVG(fill_ns) AS mean_fill_ns,
  AVG(mask_ns) AS mean_mask_ns
FROM molprof_mask_step
GROUP BY kind, sequences, masks, unconstrained
ORDER BY steps DESC, kind, sequences, masks;
