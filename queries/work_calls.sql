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

INCLUDE PERFETTO MODULE molprof.gpu_calls;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- The call of each number that work is linked to: of several the first launch, else the first. The lowest id is the
-- earliest slice. Bit 48 puts calls that launch nothing behind launches. Ranking by a window takes twice as long.
CREATE PERFETTO TABLE _molprof_first_call AS
SELECT
  IFNULL(rank, -1) AS rank,
  correlation,
  MIN((kind IS NULL) << 48 | id) & ((1 << 48) - 1) AS call_id,
  COUNT() AS calls
FROM molprof_gpu_call
WHERE
  correlation IS NOT NULL
GROUP BY
  1,
  correlation
ORDER BY
  1,
  correlation;

-- Numbers of which it cannot be told which call started the work: calls of several processes have them, or launches at
-- different times. The trace was merged from several, whose ranks its processes do not tell.
CREATE PERFETTO TABLE molprof_ambiguous_call(
  -- Rank; null unless the trace is of several ranks.
  rank LONG,
  -- Correlation number.
  correlation LONG,
  -- Calls with it.
  calls LONG
)
AS
SELECT
  call.rank,
  call.correlation,
  COUNT() AS calls
FROM _molprof_first_call AS first
JOIN molprof_gpu_call AS call
  ON call.correlation = first.correlation AND IFNULL(call.rank, -1) = first.rank
JOIN slice
  ON slice.id = call.id
JOIN thread_track
  ON thread_track.id = slice.track_id
JOIN thread
  USING (utid)
WHERE
  first.calls > 1
GROUP BY
  first.rank,
  first.correlation
HAVING
  COUNT(DISTINCT thread.upid) > 1
  OR MAX(IIF(call.kind IS NOT NULL, call.ts, NULL)) > MIN(IIF(call.kind IS NOT NULL, call.ts + call.dur, NULL))
ORDER BY
  call.rank,
  call.correlation;

-- Which call started which GPU work; work whose call is not recorded, or cannot be told, has no row.
-- Of several calls with the number, launches go first, then the earliest.
CREATE PERFETTO TABLE molprof_gpu_work_call(
  -- The kernel, copy or set.
  work_id JOINID(slice.id),
  -- The call that started it; a graph launch starts many.
  call_id JOINID(slice.id),
  -- From the start of the call to the start of the work, ns; below 0 only if clocks disagree.
  delay DURATION
)
AS
SELECT
  work.id AS work_id,
  first.call_id,
  work.ts - call.ts AS delay
FROM molprof_gpu_work AS work
JOIN _molprof_first_call AS first
  ON first.correlation = work.correlation AND first.rank = IFNULL(work.rank, -1)
JOIN slice AS call
  ON call.id = first.call_id
WHERE
  first.calls = 1
  OR (first.correlation, first.rank) NOT IN (SELECT correlation, IFNULL(rank, -1) FROM molprof_ambiguous_call)
ORDER BY
  work.id;
