-- Phases and steps of transformers: generate, continuous batching, the user's own loops around a model.
--
-- A single forward outside generate is no loop, and has no phases. In generate, a step goes from preparing its inputs, or
-- fetching drafts, to the next. What has no function of its own is a stretch between functions: setup from the start of
-- generate to its first step, sampling from the last logits processor to the end of the stopping criteria, bookkeeping
-- from there to the next step.
--
-- Example:
--   SELECT call, step, phase, ts, dur
--   FROM molprof_generate_phase
--   ORDER BY ts, id;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.phase_slices;

-- Marks of the loops, without those inside drafts (an assistant generates there) and inside processors (some run a
-- model), with the call of generate that they are in.
CREATE PERFETTO TABLE _molprof_loop_mark AS
WITH
  shown AS (
    SELECT
      *,
      MAX(IIF(phase = 'draft', ts + dur, NULL)) OVER earlier AS draft_until,
      MAX(IIF(phase = 'processor', ts + dur, NULL)) OVER earlier AS processor_until
    FROM _molprof_outer_slice
    WHERE
      program = 'transformers'
      AND NOT EXISTS(SELECT 1 FROM molprof_annotation WHERE role = 'phase')
      AND (
        SELECT COUNT() > 1 OR MAX(part IN ('generate', 'continuous'))
        FROM _molprof_outer_slice
        WHERE program = 'transformers' AND (part IN ('generate', 'continuous') OR phase = 'forward')
      )
    WINDOW
      earlier AS (
        PARTITION BY upid, tid
        ORDER BY ts, dur DESC, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      )
  )
SELECT
  id,
  ts,
  dur,
  ts + dur AS ts_end,
  name,
  part,
  phase,
  upid,
  tid,
  -- Slices are numbered in order of their start, and calls of a thread do not overlap.
  IIF(
    ts < MAX(IIF(phase = 'generate', ts + dur, NULL)) OVER past,
    MAX(IIF(phase = 'generate', id, NULL)) OVER past,
    NULL
  ) AS call_id,
  -- A slice of its own, and not only a border of a stretch.
  part != 'generate' OR phase IN ('generate', 'draft', 'prepare') AS is_slice
FROM shown
WHERE
  (draft_until IS NULL OR ts >= draft_until)
  AND (processor_until IS NULL OR ts >= processor_until OR phase GLOB 'mask_*')
WINDOW
  past AS (
    PARTITION BY upid, tid
    ORDER BY ts, dur DESC, id
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  )
ORDER BY ts, id;

-- The marks inside generate with their step, from 0; null before the first.
CREATE PERFETTO TABLE _molprof_generate_mark AS
WITH
  turn AS (
    SELECT
      id,
      phase,
      LAG(phase) OVER in_order AS last_phase,
      LAG(phase, 2) OVER in_order AS phase_before
    FROM _molprof_loop_mark
    WHERE call_id IS NOT NULL AND phase IN ('draft', 'prepare', 'processor', 'sampling')
    WINDOW
      in_order AS (PARTITION BY call_id ORDER BY ts, id)
  ),
  -- Inputs are prepared several times for a prompt in chunks, and after drafts. Older versions evaluate the stopping
  -- criteria of drafts.
  started AS (
    SELECT
      id,
      phase IN ('draft', 'prepare')
      AND (
        last_phase IS NULL
        OR last_phase = 'processor'
        OR last_phase = 'sampling' AND phase_before IS NOT 'draft'
      ) AS is_start,
      phase = 'sampling' AND last_phase IS 'draft' AS is_of_drafts
    FROM turn
  )
SELECT
  mark.*,
  IFNULL(started.is_start, 0) AS is_start,
  NULLIF(SUM(IFNULL(started.is_start, 0)) OVER (PARTITION BY mark.call_id ORDER BY mark.ts, mark.id), 0) - 1 AS step
FROM _molprof_loop_mark AS mark
LEFT JOIN started USING (id)
WHERE mark.call_id IS NOT NULL AND NOT IFNULL(started.is_of_drafts, 0)
ORDER BY mark.ts, mark.id;

-- Steps of generate, by the slice that begins them.
CREATE PERFETTO TABLE _molprof_generate_step AS
WITH
  call AS (
    SELECT
      id AS call_id,
      ts_end,
      ROW_NUMBER() OVER (ORDER BY ts, id) - 1 AS call
    FROM _molprof_loop_mark
    WHERE id = call_id
  ),
  -- Calls whose start is recorded.
  whole AS (
    SELECT DISTINCT call_id
    FROM _molprof_generate_mark
    WHERE phase = 'setup' AND step IS NULL
  ),
  ended AS (
    SELECT
      call_id,
      step,
      MAX(ts_end) AS ts_end
    FROM _molprof_generate_mark
    WHERE step IS NOT NULL
    GROUP BY call_id, step
  )
SELECT
  mark.id,
  mark.call_id,
  call.call,
  mark.step,
  IIF(mark.step = 0 AND whole.call_id IS NOT NULL, 'prefill', 'decode') AS kind,
  mark.ts,
  LEAD(mark.ts) OVER (PARTITION BY mark.call_id ORDER BY mark.step) AS next_ts,
  ended.ts_end,
  mark.upid,
  mark.tid
FROM _molprof_generate_mark AS mark
JOIN call USING (call_id)
JOIN ended ON ended.call_id = mark.call_id AND ended.step = mark.step
LEFT JOIN whole ON whole.call_id = mark.call_id
WHERE mark.is_start
ORDER BY mark.ts, mark.id;

-- One row per phase of transformers, in order of start. Phases may contain others.
CREATE PERFETTO TABLE molprof_generate_phase(
  -- The slice that marks it; of a stretch one at its end or inside.
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
WITH
  -- What came before each mark in its step.
  past AS (
    SELECT
      *,
      MAX(IIF(phase = 'processor' OR phase = 'forward' AND is_slice, ts_end, NULL)) OVER step_past AS chosen_from,
      MAX(IIF(phase = 'sampling', ts_end, NULL)) OVER step_past AS sampled_at,
      MAX(IIF(phase = 'prepare', ts_end, NULL)) OVER step_past AS prepared_at,
      MAX(phase = 'forward') OVER step_past AS has_forward
    FROM _molprof_generate_mark
    WINDOW
      step_past AS (
        PARTITION BY call_id, step
        ORDER BY ts, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      )
  ),
  -- The end is checked before each step: the first time after the criteria counts.
  bordered AS (
    SELECT
      *,
      ROW_NUMBER() OVER (PARTITION BY call_id, step, phase, sampled_at IS NULL ORDER BY ts, id) AS number
    FROM past
  ),
  stretch AS (
    SELECT
      border.id,
      CASE border.phase
        WHEN 'setup' THEN call.ts
        WHEN 'sampling' THEN IFNULL(border.chosen_from, border.ts)
        WHEN 'bookkeeping' THEN border.sampled_at
        WHEN 'forward' THEN border.prepared_at
        ELSE border.ts
      END AS ts,
      CASE border.phase
        WHEN 'setup' THEN opening.ts
        WHEN 'bookkeeping' THEN IFNULL(step.next_ts, border.ts_end)
        WHEN 'forward' THEN border.ts
        ELSE border.ts_end
      END AS ts_end,
      border.phase,
      border.call_id,
      border.step,
      border.upid,
      border.tid
    FROM bordered AS border
    JOIN _molprof_loop_mark AS call ON call.id = border.call_id
    LEFT JOIN _molprof_generate_step AS opening ON opening.call_id = border.call_id AND opening.step = 0
    LEFT JOIN _molprof_generate_step AS step ON step.call_id = border.call_id AND step.step = border.step
    WHERE
      NOT border.is_slice
      AND CASE border.phase
        WHEN 'setup' THEN border.step IS NULL
        WHEN 'bookkeeping' THEN border.sampled_at IS NOT NULL AND border.number = 1
        WHEN 'forward' THEN NOT border.has_forward AND border.chosen_from IS NULL AND border.prepared_at IS NOT NULL
        ELSE TRUE
      END
  ),
  found AS (
    SELECT id, ts, ts_end, phase, call_id, step, upid, tid
    FROM stretch
    WHERE ts_end IS NOT NULL
    UNION ALL
    SELECT mark.id, mark.ts, mark.ts_end, mark.phase, mark.call_id, inside.step, mark.upid, mark.tid
    FROM _molprof_loop_mark AS mark
    LEFT JOIN _molprof_generate_mark AS inside USING (id)
    WHERE mark.is_slice
  )
SELECT
  found.id,
  found.ts,
  found.ts_end - found.ts AS dur,
  found.phase,
  step.call,
  found.step,
  found.upid,
  found.tid
FROM found
LEFT JOIN _molprof_generate_step AS step ON step.call_id = found.call_id AND step.step = IFNULL(found.step, 0)
ORDER BY found.ts, found.id;

-- Rows of the batch in steps of generate, by the sizes of what argmax or multinomial chooses from; and how many criteria
-- end sequences. Beams choose by topk, and of drafts any number is accepted: no row for those.
CREATE PERFETTO TABLE _molprof_step_choice AS
WITH
  sampling AS (
    SELECT
      phase.call,
      phase.step,
      phase.ts,
      phase.ts + phase.dur AS ts_end,
      IFNULL(step.next_ts, step.ts_end) AS step_end,
      phase.upid,
      phase.tid,
      ROW_NUMBER() OVER (ORDER BY phase.ts, phase.id) AS number
    FROM molprof_generate_phase AS phase
    JOIN _molprof_generate_step AS step ON step.call = phase.call AND step.step = phase.step
    WHERE
      phase.phase = 'sampling'
      AND phase.call NOT IN (SELECT call FROM molprof_generate_phase WHERE phase = 'draft' AND call IS NOT NULL)
  ),
  event AS (
    SELECT ts, 0 AS id, 'sampling' AS name, NULL AS arg_set_id, upid, tid, number
    FROM sampling
    UNION ALL
    SELECT slice.ts, slice.id, slice.name, slice.arg_set_id, track.upid, track.tid, NULL
    FROM slice
    JOIN _molprof_thread_track AS track ON track.id = slice.track_id
    WHERE
      slice.category = 'cpu_op'
      AND slice.name IN ('aten::argmax', 'aten::multinomial', 'aten::topk')
      AND EXISTS(SELECT 1 FROM sampling)
    UNION ALL
    SELECT ts, id, 'criterion', NULL, upid, tid, NULL
    FROM molprof_phase_slice
    WHERE program = 'transformers' AND IFNULL(phase, 'sampling') = 'sampling'
  ),
  placed AS (
    SELECT
      id,
      ts,
      name,
      arg_set_id,
      MAX(number) OVER (PARTITION BY upid, tid ORDER BY ts, id) AS number
    FROM event
  ),
  found AS (
    SELECT
      sampling.call,
      sampling.step,
      SUM(placed.name = 'aten::topk') AS topks,
      SUM(placed.name = 'criterion' AND placed.ts < sampling.ts_end) AS criteria,
      -- The other column is that of its row.
      MIN(IIF(placed.name IN ('aten::argmax', 'aten::multinomial') AND placed.ts < sampling.ts_end, placed.ts, NULL)),
      placed.arg_set_id
    FROM placed
    JOIN sampling ON sampling.number = placed.number AND placed.ts < sampling.step_end
    GROUP BY sampling.number
  )
SELECT
  call,
  step,
  MIN(
    IFNULL(EXTRACT_ARG(arg_set_id, 'args.Input Dims[0][0]'), EXTRACT_ARG(arg_set_id, 'args.Input Dims.0.0'))
  ) AS batch_rows,
  MAX(criteria) AS criteria
FROM found
WHERE
  topks = 0
  AND IFNULL(EXTRACT_ARG(arg_set_id, 'args.Input Dims[0][1]'), EXTRACT_ARG(arg_set_id, 'args.Input Dims.0.1')) > 0
  AND IFNULL(EXTRACT_ARG(arg_set_id, 'args.Input Dims[0][2]'), EXTRACT_ARG(arg_set_id, 'args.Input Dims.0.2')) IS NULL
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
  -- Tokens that requests got. In continuous batching functions tell it; in generate the sizes of operators, where they
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
  -- Where steps of other loops begin: with a batch, or with a forward of the only model, which is not trained.
  start AS (
    SELECT id, upid, tid, ts, part
    FROM _molprof_loop_mark
    WHERE part = 'continuous' AND phase = 'prepare'
    UNION ALL
    SELECT id, upid, tid, ts, part
    FROM _molprof_loop_mark
    WHERE
      part = 'model'
      AND phase = 'forward'
      AND NOT EXISTS(SELECT 1 FROM _molprof_loop_mark WHERE part IN ('generate', 'continuous') OR phase = 'backward')
      AND (
        SELECT COUNT(DISTINCT name) = 1 AND COUNT() > 1
        FROM _molprof_loop_mark
        WHERE phase = 'forward'
      )
  ),
  -- Each phase with the last start of its thread before it.
  placed AS (
    SELECT
      mark.ts_end,
      mark.phase,
      mark.part,
      MAX(start.id) OVER (
        PARTITION BY mark.upid, mark.tid
        ORDER BY mark.ts, mark.dur DESC, mark.id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
      ) AS start_id
    FROM _molprof_loop_mark AS mark
    LEFT JOIN start USING (id)
  ),
  other AS (
    SELECT
      start.id,
      start.ts,
      MAX(placed.ts_end) AS ts_end,
      LEAD(start.ts) OVER (PARTITION BY start.upid, start.tid ORDER BY start.ts, start.id) AS next_ts,
      start.part,
      SUM(placed.phase = 'output_per_request') AS tokens,
      -- A batch without requests runs nothing.
      MAX(placed.phase IN ('output', 'bookkeeping', 'forward')) AS has_run,
      start.upid,
      start.tid
    FROM start
    JOIN placed ON placed.start_id = start.id
    GROUP BY start.id
  )
SELECT
  step.id,
  step.ts,
  IFNULL(step.next_ts, step.ts_end) - step.ts AS dur,
  'generate' AS part,
  step.kind,
  step.call,
  step.step,
  IIF(step.kind = 'prefill' OR choice.criteria <= 2, choice.batch_rows, NULL) AS tokens,
  -- The list of criteria, and the one of the length in it.
  IIF(step.kind = 'prefill' OR choice.criteria <= 2, choice.batch_rows, MIN(1, choice.batch_rows)) AS least_tokens,
  choice.batch_rows AS most_tokens,
  step.upid,
  step.tid
FROM _molprof_generate_step AS step
LEFT JOIN _molprof_step_choice AS choice ON choice.call = step.call AND choice.step = step.step
UNION ALL
SELECT
  id,
  ts,
  IIF(part = 'model', IFNULL(next_ts, ts_end), ts_end) - ts AS dur,
  part,
  NULL AS kind,
  NULL AS call,
  NULL AS step,
  IIF(part = 'continuous', tokens, NULL) AS tokens,
  IIF(part = 'continuous', tokens, NULL) AS least_tokens,
  IIF(part = 'continuous', tokens, NULL) AS most_tokens,
  upid,
  tid
FROM other
WHERE has_run
ORDER BY 2, 1;
