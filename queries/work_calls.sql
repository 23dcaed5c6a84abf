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

-- Calls in order of their number, in which the engine searches.
CREATE PERFETTO TABLE molprof_numbered_call(
  -- The call's slice.
  id JOINID(slice.id),
  -- Rank; -1 unless the trace is of several ranks.
  rank LONG,
  -- Correlation number.
  correlation LONG,
  -- Place among the calls with the number: launches go first, then by slice.
  place LONG
)
AS
SELECT
  id,
  IFNULL(rank, -1) AS rank,
  correlation,
  -- Bit 48 puts calls that launch nothing behind launches.
  (kind IS NULL) << 48 | id AS place
FROM molprof_gpu_call
WHERE
  correlation IS NOT NULL
ORDER BY
  correlation;

-- GPU work in order of its number.
CREATE PERFETTO TABLE molprof_numbered_work(
  -- The kernel, copy or set.
  id JOINID(slice.id),
  -- Rank; -1 unless the trace is of several ranks.
  rank LONG,
  -- Correlation number.
  correlation LONG
)
AS
SELECT
  id,
  IFNULL(rank, -1) AS rank,
  correlation
FROM molprof_gpu_work
WHERE
  correlation IS NOT NULL
ORDER BY
  correlation;

-- Numbers of several calls, with the call that their work is linked to: the first launch, else the first call. The
-- lowest id is the earliest slice. Ranking by a window takes twice as long.
CREATE PERFETTO TABLE _molprof_shared_number AS
SELECT
  rank,
  correlation,
  MIN(place) & ((1 << 48) - 1) AS call_id,
  COUNT() AS calls
FROM molprof_numbered_call
GROUP BY
  correlation,
  rank
HAVING
  COUNT() > 1;

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
FROM _molprof_shared_number AS first
-- In this order, only the few calls with such a number are looked up.
CROSS JOIN molprof_numbered_call AS numbered
CROSS JOIN molprof_gpu_call AS call
CROSS JOIN slice
CROSS JOIN thread_track
CROSS JOIN thread
WHERE
  numbered.correlation = first.correlation
  AND numbered.rank = first.rank
  AND call.id = numbered.id
  AND slice.id = call.id
  AND thread_track.id = slice.track_id
  AND thread.utid = thread_track.utid
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
  numbered.id AS call_id,
  work.ts - call.ts AS delay
FROM molprof_gpu_work AS work
JOIN molprof_numbered_call AS numbered
  ON numbered.correlation = work.correlation AND numbered.rank = IFNULL(work.rank, -1)
JOIN slice AS call
  ON call.id = numbered.id
WHERE
  (SELECT COUNT() FROM _molprof_shared_number) = 0
  OR (
    IFNULL(
      (
        SELECT
          call_id
        FROM _molprof_shared_number AS shared
        WHERE
          shared.correlation = numbered.correlation AND shared.rank = numbered.rank
      ),
      numbered.id
    ) = numbered.id
    AND (numbered.correlation, numbered.rank) NOT IN (SELECT correlation, IFNULL(rank, -1) FROM molprof_ambiguous_call)
  )
ORDER BY
  work.id;
