-- What ran, in order: GPU work, or leaf operators where no GPU work is recorded, each with its origin and step.
--
-- Example:
--   SELECT lane, ts, dur, class, operator, module, name
--   FROM molprof_sequence_item
--   ORDER BY lane, ts, id
--   LIMIT 100;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.kernel_classes;

INCLUDE PERFETTO MODULE molprof.operators;

INCLUDE PERFETTO MODULE molprof.origin;

INCLUDE PERFETTO MODULE molprof.step_placement;

-- Leaf operators of a trace without GPU work.
CREATE PERFETTO TABLE _molprof_sequence_operator AS
SELECT
  leaf.id,
  leaf.ts,
  leaf.dur,
  leaf.name,
  thread.upid
FROM (
  SELECT
    1
  WHERE
    NOT EXISTS(SELECT 1 FROM molprof_gpu_work)
)
CROSS JOIN molprof_leaf_operator AS leaf
JOIN slice
  USING (id)
JOIN thread_track
  ON thread_track.id = slice.track_id
JOIN thread
  USING (utid)
ORDER BY
  leaf.id;

-- One row per kernel, copy and set; per leaf operator where none of these is recorded.
CREATE PERFETTO VIEW molprof_sequence_item(
  -- The slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time of the work or operator, ns.
  dur DURATION,
  -- Name as recorded.
  name STRING,
  -- kernel, gpu_memcpy, gpu_memset or cpu_op.
  category STRING,
  -- Class of GPU work; null for operators.
  class STRING,
  -- What runs one after the other: the device, or for operators the process.
  lane STRING,
  -- Innermost operator around the call that started the work; the operator itself where there is no GPU work; null where
  -- none is recorded.
  operator STRING,
  -- Sizes of that operator's inputs; null where not recorded, or not read.
  shape STRING,
  -- Modules and ranges around it, the outermost first, with / between them; null where none is recorded.
  module STRING,
  -- Number of the layer, from 0; null outside any.
  layer LONG,
  -- Innermost Python function around it, as file(line): name; null where stacks are not recorded.
  source STRING,
  -- Phase of a captured run; null outside any.
  phase STRING,
  -- Step in which it began, or in which its call did; null outside any, and where the call is not recorded.
  step_id JOINID(slice.id),
  -- Whether the call that started it is recorded; operators need none.
  known BOOL
)
AS
SELECT
  origin.id,
  origin.ts,
  origin.dur,
  origin.name,
  origin.category,
  class.class,
  work.device AS lane,
  origin.operator,
  EXTRACT_ARG(operator.arg_set_id, 'args.Input Dims') AS shape,
  origin.module,
  origin.layer,
  origin.source,
  origin.phase,
  step.step_id,
  origin.call_id IS NOT NULL AS known
FROM molprof_origin AS origin
JOIN molprof_gpu_work AS work
  ON work.id = origin.id
LEFT JOIN molprof_work_class AS class
  ON class.category = origin.category AND class.name = origin.name
LEFT JOIN _molprof_origin_stack AS stack
  ON stack.id = origin.call_id
LEFT JOIN slice AS operator
  ON operator.id = stack.operator_id
LEFT JOIN molprof_call_step AS step
  ON step.id = origin.call_id
UNION ALL
SELECT
  item.id,
  item.ts,
  item.dur,
  item.name,
  'cpu_op',
  NULL,
  CAST(item.upid AS TEXT),
  item.name,
  EXTRACT_ARG(slice.arg_set_id, 'args.Input Dims'),
  stack.path,
  layer.layer,
  function.name,
  phase.phase,
  step.step_id,
  1
FROM _molprof_sequence_operator AS item
JOIN slice
  USING (id)
LEFT JOIN _molprof_origin_stack AS stack
  ON stack.id = item.id
LEFT JOIN _molprof_origin_layer AS layer
  ON layer.path = stack.path
LEFT JOIN slice AS function
  ON function.id = stack.function_id
LEFT JOIN molprof_call_phase AS place
  ON place.id = item.id
LEFT JOIN molprof_phase AS phase
  ON phase.id = place.phase_id
LEFT JOIN molprof_call_step AS step
  ON step.id = item.id
ORDER BY
  7,
  2,
  1;
