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

-- Which call started which GPU work; work whose call is not recorded has no row.
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
WITH
  -- The lowest id is the earliest slice. Bit 48 puts calls that launch nothing behind launches. Ranking by a window
  -- takes twice as long.
  first AS MATERIALIZED (
    SELECT
      IFNULL(rank, -1) AS rank,
      correlation,
      MIN((kind IS NULL) << 48 | id) & ((1 << 48) - 1) AS call_id
    FROM molprof_gpu_call
    WHERE
      correlation IS NOT NULL
    GROUP BY
      1,
      correlation
  )
SELECT
  work.id AS work_id,
  first.call_id,
  work.ts - call.ts AS delay
FROM molprof_gpu_work AS work
JOIN first
  ON first.correlation = work.correlation AND first.rank = IFNULL(work.rank, -1)
JOIN slice AS call
  ON call.id = first.call_id
ORDER BY
  work.id;
