-- Phases and steps of transformers: generate, continuous batching, the user's own loops around a model.
--
-- A single forward outside generate is no loop, and has no phases. In generate, a step goes from preparing its inputs, or
-- fetching drafts, to the next. What has no function of its own is a span between functions: setup from the start of
-- generate to its first step, sampling from the last logits processor to the end of the stopping criteria, bookkeeping
-- from there to the next step.
--
-- Example:
--   SELECT call, step, phase, ts, dur
--   FROM molprof_generate_phase
--   ORDER BY ts, id;

INCLUDE PERFETTO MODULE molprof.phase_slices;

-- One row per phase of transformers, in order of start. Phases may contain others.
CREATE PERFETTO TABLE molprof_generate_phase(
  -- The slice that marks it; of a span one at its end or inside.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host, profiler's cost included, ns.
  dur DURATION,
  -- Name of the phase.
  phase STRING,
  -- Call of generate, from 0; null outside generate.
  call LONG,
  -- Step of the call, from 0; null outside steps.
  step LONG,
  -- Process of the phase.
  upid JOINID(process.id),
  -- Thread number of the phase.
  tid LONG
) AS
SELECT
  found.id,
  found.ts,
  found.dur,
  mark.phase,
  found.call,
  found.step,
  mark.upid,
  mark.tid
FROM _molprof_fact_loop_phase AS found
JOIN molprof_phase_slice AS mark USING (id)
ORDER BY found.ts, found.id;

-- Rows of the batch in steps of generate, by the sizes of what argmax or multinomial chooses from; and how many criteria
-- end sequences. Beams choose by topk, and of drafts any number is accepted: no row for those.
CREATE PERFETTO TABLE _molprof_step_choice AS
WITH
  size AS (
    SELECT
      choice.call,
      choice.step,
      choice.criteria,
      IFNULL(EXTRACT_ARG(arg_set_id, 'args.Input Dims[0][0]'), EXTRACT_ARG(arg_set_id, 'args.Input Dims.0.0')) AS rows,
      IFNULL(EXTRACT_ARG(arg_set_id, 'args.Input Dims[0][1]'), EXTRACT_ARG(arg_set_id, 'args.Input Dims.0.1')) AS columns,
      IFNULL(EXTRACT_ARG(arg_set_id, 'args.Input Dims[0][2]'), EXTRACT_ARG(arg_set_id, 'args.Input Dims.0.2')) AS further
    FROM _molprof_fact_step_choice AS choice
    JOIN slice ON slice.id = choice.operator_id
  )
SELECT
  call,
  step,
  MIN(rows) AS batch_rows,
  MAX(criteria) AS criteria
FROM size
WHERE columns > 0 AND further IS NULL
GROUP BY call, step
HAVING COUNT() = 1
ORDER BY call, step;

-- One row per step, in order of start.
CREATE PERFETTO TABLE molprof_generate_step(
  -- The slice that begins it.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host to the next step of its loop, or to the end of its last phase, ns.
  dur DURATION,
  -- The loop: generate, continuous or model.
  part STRING,
  -- prefill or decode, as far as the start of generate is recorded; null outside generate.
  kind STRING,
  -- Call of generate, from 0; null outside generate.
  call LONG,
  -- Step of the call, from 0; null outside generate.
  step LONG,
  -- Tokens that requests got. In continuous batching functions show it; in generate the sizes of operators, where they
  -- are recorded: all rows get one in the first step, and where nothing but the length ends a sequence. Null where not
  -- known, as for beams and drafts.
  tokens LONG,
  -- Fewest tokens: one where rows may have ended before; null where not known.
  least_tokens LONG,
  -- Most tokens: one for each row; null where not known.
  most_tokens LONG,
  -- Process of the step.
  upid JOINID(process.id),
  -- Thread number of the step.
  tid LONG
) AS
WITH
  step AS (
    SELECT
      found.*,
      choice.batch_rows,
      -- The list of criteria, and the one of the length in it: all rows of the batch go on.
      found.is_prefill OR choice.criteria <= 2 AS is_full
    FROM _molprof_fact_loop_step AS found
    LEFT JOIN _molprof_step_choice AS choice ON choice.call = found.call AND choice.step = found.step
  )
SELECT
  step.id,
  mark.ts,
  step.dur,
  step.part,
  IIF(step.part = 'generate', IIF(step.is_prefill, 'prefill', 'decode'), NULL) AS kind,
  step.call,
  step.step,
  CASE step.part
    WHEN 'generate' THEN IIF(step.is_full, step.batch_rows, NULL)
    WHEN 'continuous' THEN step.outputs
  END AS tokens,
  CASE step.part
    WHEN 'generate' THEN IIF(step.is_full, step.batch_rows, MIN(1, step.batch_rows))
    WHEN 'continuous' THEN step.outputs
  END AS least_tokens,
  CASE step.part WHEN 'generate' THEN step.batch_rows WHEN 'continuous' THEN step.outputs END AS most_tokens,
  mark.upid,
  mark.tid
FROM step
JOIN molprof_phase_slice AS mark USING (id)
ORDER BY mark.ts, step.id;
