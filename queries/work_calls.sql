-- The call that started each piece of GPU work, matched by rank and correlation number.
--
-- Each rank counts its correlation numbers itself. Only a trace of several ranks has a rank here.
--
-- Example:
--   SELECT work.name, call.name AS call, link.delay
--   FROM molprof_gpu_work_call AS link
--   JOIN molprof_gpu_work AS work
--     ON work.id = link.work_id
--   JOIN molprof_gpu_call AS call
--     ON call.id = link.call_id
--   ORDER BY link.delay DESC, link.work_id
--   LIMIT 10;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Ambiguous numbers, of which the call that started the work is unknown: their work is linked to none.
CREATE PERFETTO VIEW molprof_ambiguous_call(
  -- Rank; null unless the trace is of several ranks.
  rank LONG,
  -- Correlation number.
  correlation LONG,
  -- Calls with it.
  calls LONG
) AS
SELECT
  rank,
  correlation,
  calls
FROM _molprof_fact_shared_number
WHERE is_ambiguous
ORDER BY rank, correlation;

-- The call that started each piece of GPU work; work whose call is not recorded, or ambiguous, has no row.
-- Of several calls with the number, launches go first, then the earliest.
CREATE PERFETTO VIEW molprof_gpu_work_call(
  -- The kernel, copy or set.
  work_id JOINID(slice.id),
  -- The call that started it; a graph launch starts many.
  call_id JOINID(slice.id),
  -- From the start of the call to the start of the work, ns; below 0 only if clocks disagree.
  delay DURATION
) AS
SELECT
  work.id AS work_id,
  work.call_id,
  work.ts - call.ts AS delay
FROM _molprof_work AS work
CROSS JOIN slice AS call
WHERE call.id = work.call_id;
