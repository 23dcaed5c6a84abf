-- What ran on the GPU: every kernel, memory copy and memory set.
--
-- Example:
--   SELECT device, stream, category, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_gpu_work
--   GROUP BY device, stream, category
--   ORDER BY device, stream, category;

INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.process_ranks;

-- Numbers of several calls, with the call that their work is linked to: the first launch, else the first call. The
-- lowest id is the earliest slice.
CREATE PERFETTO TABLE _molprof_shared_number AS
WITH
  shared AS (
    SELECT
      IFNULL(rank, -1) AS rank,
      correlation
    FROM _molprof_call
    WHERE correlation IS NOT NULL
    GROUP BY correlation, rank
    HAVING COUNT() > 1
    -- Calls are not grouped where all numbers differ: to find that is quicker. Several ranks use the same numbers.
    LIMIT IIF(
      (SELECT COUNT() FROM _molprof_rising_number) = 0
      AND ((SELECT COUNT() FROM molprof_track_rank) > 0 OR EXISTS(
        SELECT 1
        FROM _molprof_call AS call
        CROSS JOIN _molprof_call AS other
        WHERE other.correlation = call.correlation AND other.id != call.id
      )),
      -1,
      0
    )
  )
SELECT
  shared.rank,
  shared.correlation,
  -- Bit 48 puts calls that launch nothing behind launches.
  MIN((call.kind IS NULL) << 48 | call.id) & ((1 << 48) - 1) AS call_id
FROM shared
CROSS JOIN molprof_gpu_call AS call
WHERE call.correlation = shared.correlation AND IFNULL(call.rank, -1) = shared.rank
GROUP BY shared.correlation, shared.rank;

-- Numbers of which it cannot be told which call started the work: calls of several processes have them, or launches at
-- different times. The trace was merged from several, whose ranks its processes do not tell.
CREATE PERFETTO TABLE _molprof_ambiguous_number AS
SELECT
  call.rank,
  call.correlation,
  COUNT() AS calls
FROM _molprof_shared_number AS first
-- In this order, only the few calls with such a number are looked up.
CROSS JOIN _molprof_call AS call
CROSS JOIN thread_track
CROSS JOIN thread
WHERE
  call.correlation = first.correlation
  AND IFNULL(call.rank, -1) = first.rank
  AND thread_track.id = call.track_id
  AND thread.utid = thread_track.utid
GROUP BY first.rank, first.correlation
HAVING
  COUNT(DISTINCT thread.upid) > 1
  OR MAX(IIF(call.kind IS NOT NULL, call.ts, NULL))
  > MIN(IIF(call.kind IS NOT NULL, call.ts + call.dur, NULL))
ORDER BY call.rank, call.correlation;

-- One row where a number alone tells the call: there are no ranks, and no shared numbers. Else none.
CREATE PERFETTO TABLE _molprof_plain_number AS
SELECT TRUE AS is_plain
WHERE NOT EXISTS(SELECT 1 FROM molprof_track_rank) AND NOT EXISTS(SELECT 1 FROM _molprof_shared_number);

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
  correlation LONG,
  bytes LONG,
  call_id JOINID(slice.id),
  call_ts TIMESTAMP,
  queued_ts TIMESTAMP
) AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  slice.ts + IIF(slice.dur > 0, slice.dur, 0) AS ts_end,
  slice.category,
  IIF((SELECT COUNT() FROM molprof_track_rank) > 0, IFNULL(slice.rank || ':', '') || slice.device, slice.device) AS device,
  EXTRACT_ARG(slice.arg_set_id, 'args.stream') AS stream,
  -- The same number, without a search in the args of the work.
  IFNULL(call.correlation, slice.correlation) AS correlation,
  CASE
    WHEN slice.category = 'kernel' THEN NULL
    -- Text is kept, and refused later: CAST would read its first digits.
    WHEN TYPEOF(EXTRACT_ARG(slice.arg_set_id, 'args.bytes')) = 'text' THEN EXTRACT_ARG(slice.arg_set_id, 'args.bytes')
    WHEN CAST(EXTRACT_ARG(slice.arg_set_id, 'args.bytes') AS INT) >= 0
    THEN CAST(EXTRACT_ARG(slice.arg_set_id, 'args.bytes') AS INT)
  END AS bytes,
  call.id AS call_id,
  call.ts AS call_ts,
  -- Queued from its call on; clocks may disagree.
  IIF(call.ts < slice.ts, call.ts, slice.ts) AS queued_ts
FROM (
  SELECT
    id,
    ts,
    -- A subquery, unlike a join, does not slow the search for the call; mostly the table is empty.
    IFNULL((SELECT overrun.dur FROM _molprof_fact_overrun AS overrun WHERE overrun.id = slice.id), dur) AS dur,
    category,
    arg_set_id,
    CAST(
      COALESCE(
        EXTRACT_ARG(arg_set_id, 'args.device'),
        -- A subquery, unlike a join, runs only where it is needed.
        (
          -- A number that the reader made stands for what is no number in the file.
          SELECT IIF(process.pid < 1 << 31, process.pid, IFNULL(process.name, 'not recorded'))
          FROM thread_track
          JOIN thread USING (utid)
          JOIN process USING (upid)
          WHERE thread_track.id = slice.track_id
        )
      ) AS TEXT
    ) AS device,
    EXTRACT_ARG(arg_set_id, 'args.correlation') AS correlation,
    _molprof_rank!(slice.track_id) AS rank
  FROM slice
  WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset')
) AS slice
LEFT JOIN _molprof_call AS call
  -- Not by a number that tells no call: all calls with it would be tried for all work with it.
  ON call.correlation = IIF(
    (SELECT COUNT() FROM _molprof_plain_number) > 0
    OR (slice.correlation, IFNULL(slice.rank, -1)) NOT IN (SELECT correlation, IFNULL(rank, -1) FROM _molprof_ambiguous_number),
    slice.correlation,
    NULL
  )
  AND (
    (SELECT COUNT() FROM _molprof_plain_number) > 0
    OR (
      -- The sign keeps the engine from searching for two columns.
      +call.rank IS slice.rank
      AND IFNULL(
        (
          SELECT call_id
          FROM _molprof_shared_number AS shared
          WHERE shared.correlation = call.correlation AND shared.rank = IFNULL(call.rank, -1)
        ),
        call.id
      ) = call.id
    )
  )
ORDER BY slice.ts, slice.id;

-- The engine searches for work by its call.
CREATE PERFETTO INDEX _molprof_work_call ON _molprof_work(call_id);

-- The device, where all work is on one: then no text is compared. Else no row.
CREATE PERFETTO TABLE _molprof_only_device AS
SELECT device
FROM (SELECT device FROM _molprof_work LIMIT 1) AS first
WHERE
  NOT EXISTS(SELECT 1 FROM _molprof_work AS work WHERE work.device != first.device)
  AND NOT EXISTS(SELECT 1 FROM _molprof_work AS work WHERE work.device IS NULL);

-- What the name of a copy or set says before its kinds of memory: Memcpy DtoH of "Memcpy DtoH (Device -> Pageable)".
CREATE PERFETTO MACRO _molprof_copy_name(name Expr)
RETURNS Expr AS (
  SUBSTR($name, 1, INSTR($name || ' (', ' (') - 1)
);

-- The rank of work; null unless the trace is of several ranks.
CREATE PERFETTO MACRO _molprof_work_rank(id Expr)
RETURNS Expr AS (
  _molprof_rank!((SELECT slice.track_id FROM slice WHERE slice.id = $id))
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
  -- The call that started it, as in molprof.work_calls; null where it is not recorded, or cannot be told.
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
  work.correlation,
  work.bytes,
  _molprof_rank!(slice.track_id) AS rank,
  work.call_id
-- Names are read from the slices: to write one for each piece of work takes longer.
FROM _molprof_work AS work
CROSS JOIN slice
WHERE slice.id = work.id;
