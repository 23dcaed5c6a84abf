-- What ran, in order: GPU work, or operators where none is recorded, each with its origin and step.
--
-- Example:
--   SELECT lane, ts, dur, class, operator, module, name
--   FROM molprof_sequence_item
--   ORDER BY lane, ts, id
--   LIMIT 100;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.kernel_classes;

INCLUDE PERFETTO MODULE molprof.origin;

INCLUDE PERFETTO MODULE molprof.step_placement;

-- Operators of a trace without GPU work.
CREATE PERFETTO TABLE _molprof_sequence_operator AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  IFNULL(slice.name, '(no name)') AS name,
  slice.track_id,
  thread.upid
FROM (
  SELECT
    1
  WHERE
    NOT EXISTS(SELECT 1 FROM molprof_gpu_work)
)
CROSS JOIN slice
JOIN thread_track
  ON thread_track.id = slice.track_id
JOIN thread
  USING (utid)
WHERE
  slice.category = 'cpu_op'
ORDER BY
  slice.id;

-- One row per kernel, copy and set; per operator where none of these is recorded.
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
  -- Track of an operator: those of one track are inside each other or one after the other; null for GPU work.
  track_id JOINID(thread_track.id),
  -- Innermost operator around the call that started the work; the operator itself where there is no GPU work; null where
  -- none is recorded.
  operator STRING,
  -- That operator's slice.
  operator_id JOINID(slice.id),
  -- Modules and ranges around it, the outermost first, with / between them; null where none is recorded.
  module STRING,
  -- Number of the layer, from 0; null outside any.
  layer LONG,
  -- Innermost Python function around it, as file(line): name; null where stacks are not recorded.
  source STRING,
  -- Phase of a captured run; null outside any.
  phase STRING,
  -- Step in which its call began, or a leaf operator; null outside any, for operators that call others, and where the
  -- call is not recorded.
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
  NULL AS track_id,
  origin.operator,
  call.operator_id,
  origin.module,
  origin.layer,
  origin.source,
  origin.phase,
  call.step_id,
  origin.call_id IS NOT NULL AS known
FROM molprof_origin AS origin
JOIN molprof_gpu_work AS work
  ON work.id = origin.id
LEFT JOIN molprof_work_class AS class
  ON class.category = origin.category AND class.name = origin.name
LEFT JOIN molprof_call_origin AS call
  ON call.call_id = origin.call_id
UNION ALL
SELECT
  item.id,
  item.ts,
  item.dur,
  item.name,
  'cpu_op',
  NULL,
  CAST(item.upid AS TEXT),
  item.track_id,
  item.name,
  item.id,
  origin.module,
  origin.layer,
  origin.source,
  origin.phase,
  step.step_id,
  1
FROM _molprof_sequence_operator AS item
LEFT JOIN molprof_operator_origin AS origin
  USING (id)
LEFT JOIN molprof_call_step AS step
  ON step.id = item.id
ORDER BY
  7,
  2,
  1;
