-- GPU work: every kernel, memory copy and memory set.
--
-- Example:
--   SELECT device, stream, category, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_gpu_work
--   GROUP BY device, stream, category
--   ORDER BY device, stream, category;

INCLUDE PERFETTO MODULE molprof.process_ranks;

-- Every kernel, copy and set with its call, in order of start: what modules ask of all of them, read once. With types,
-- so that text in place of a number is refused.
CREATE PERFETTO TABLE _molprof_work(
  id JOINID(slice.id),
  ts TIMESTAMP,
  dur DURATION,
  ts_end TIMESTAMP,
  category STRING,
  device STRING,
  stream LONG,
  bytes LONG,
  call_id JOINID(slice.id)
) AS
SELECT
  slice.id,
  slice.ts,
  IFNULL(overrun.dur, slice.dur) AS dur,
  slice.ts + MAX(0, IFNULL(overrun.dur, slice.dur)) AS ts_end,
  slice.category,
  _molprof_device!(slice.track_id, slice.arg_set_id) AS device,
  EXTRACT_ARG(slice.arg_set_id, 'args.stream') AS stream,
  CASE
    WHEN slice.category = 'kernel' THEN NULL
    -- Text is kept, and refused later: CAST would read its first digits.
    WHEN TYPEOF(EXTRACT_ARG(slice.arg_set_id, 'args.bytes')) = 'text' THEN EXTRACT_ARG(slice.arg_set_id, 'args.bytes')
    WHEN CAST(EXTRACT_ARG(slice.arg_set_id, 'args.bytes') AS INT) >= 0
    THEN CAST(EXTRACT_ARG(slice.arg_set_id, 'args.bytes') AS INT)
  END AS bytes,
  work.call_id
FROM _molprof_fact_work AS work
CROSS JOIN slice
LEFT JOIN _molprof_fact_overrun AS overrun ON overrun.id = slice.id
WHERE slice.id = work.id;

-- The engine searches for work by its call.
CREATE PERFETTO INDEX _molprof_work_call ON _molprof_work(call_id);

-- What the name of a copy or set says before its kinds of memory: Memcpy DtoH of "Memcpy DtoH (Device -> Pageable)".
CREATE PERFETTO MACRO _molprof_copy_name(name Expr)
RETURNS Expr AS (
  SUBSTR($name, 1, INSTR($name || ' (', ' (') - 1)
);

-- One row per slice of category kernel, gpu_memcpy or gpu_memset, in order of start.
CREATE PERFETTO VIEW molprof_gpu_work(
  -- The slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the device, ns; of work that cannot have lasted as long as the file says, until its latest possible end.
  dur DURATION,
  -- Name as recorded; '(no name)' for an empty or missing one.
  name STRING,
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- Device number as text; the number or text of its process where the event names no device. In a trace of several
  -- ranks rank and device, such as 3:0.
  device STRING,
  -- Stream number; null where not recorded.
  stream LONG,
  -- Correlation number, which the call that started it has too; null where not recorded.
  correlation LONG,
  -- Bytes moved or set; null for kernels, and where not recorded or below 0.
  bytes LONG,
  -- Rank; null unless the trace is of several ranks.
  rank LONG,
  -- The call that started it, as in molprof.work_calls; null where it is not recorded, or ambiguous.
  call_id JOINID(slice.id)
) AS
SELECT
  work.id,
  work.ts,
  work.dur,
  IFNULL(slice.name, '(no name)') AS name,
  work.category,
  work.device,
  work.stream,
  -- 0 stands for no number (ROCm/roctracer#100).
  NULLIF(EXTRACT_ARG(slice.arg_set_id, 'args.correlation'), 0) AS correlation,
  work.bytes,
  _molprof_rank!(slice.track_id) AS rank,
  work.call_id
-- Names are read from the slices: to write one for each piece of work takes longer.
FROM _molprof_work AS work
CROSS JOIN slice
WHERE slice.id = work.id;
