-- Each memory copy and set with its direction, the kinds of memory, bytes and bandwidth.
--
-- Example:
--   SELECT direction, source, target, count, bytes, time_ns, bytes_per_second
--   FROM molprof_memory_direction
--   ORDER BY time_ns DESC, direction, source, target;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- One row per memory copy or set, in order of start.
CREATE PERFETTO VIEW molprof_memory_copy(
  -- The slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the device, ns.
  dur DURATION,
  -- HtoD, DtoH, DtoD, HtoH, PtoP or another word after Memcpy in the name; 'set' for a memory set.
  direction STRING,
  -- Source memory, such as Pageable, Pinned or Device; null for a set, and where not recorded.
  source STRING,
  -- Target memory; null where not recorded.
  target STRING,
  -- Bytes moved or set; null where not recorded.
  bytes LONG,
  -- Rate, bytes per second; null where bytes are not recorded or no time passed.
  bytes_per_second DOUBLE,
  -- Device number as text.
  device STRING,
  -- Stream number; null where not recorded.
  stream LONG,
  -- The call that started it; null where it is not recorded.
  call_id JOINID(slice.id)
) AS
WITH
  -- Names are like "Memcpy DtoH (Device -> Pageable)" and "Memset (Device)".
  operation AS (
    SELECT
      *,
      category = 'gpu_memset' AS is_set,
      _molprof_copy_name!(name) AS head,
      IIF(name GLOB '* (*)', SUBSTR(name, INSTR(name, ' (') + 2, LENGTH(name) - INSTR(name, ' (') - 2), NULL) AS places
    FROM molprof_gpu_work
    WHERE category != 'kernel'
  )
SELECT
  id,
  ts,
  dur,
  IIF(is_set, 'set', REPLACE(head, 'Memcpy ', '')) AS direction,
  IIF(places GLOB '* -> *', SUBSTR(places, 1, INSTR(places, ' -> ') - 1), NULL) AS source,
  IIF(places GLOB '* -> *', SUBSTR(places, INSTR(places, ' -> ') + 4), IIF(is_set, places, NULL)) AS target,
  bytes,
  1e9 * bytes / NULLIF(dur, 0) AS bytes_per_second,
  device,
  stream,
  call_id
FROM operation
ORDER BY ts, id;

-- The same by direction and kinds of memory, longest total time first.
CREATE PERFETTO VIEW molprof_memory_direction(
  -- Direction of the copies, or set.
  direction STRING,
  -- Source memory; null as above.
  source STRING,
  target STRING,
  -- Copies or sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Bytes moved or set; null where none are recorded.
  bytes LONG,
  -- Mean rate over those with recorded bytes, bytes per second; null without any or where no time passed.
  bytes_per_second DOUBLE
) AS
SELECT
  direction,
  source,
  target,
  COUNT() AS count,
  SUM(dur) AS time_ns,
  SUM(bytes) AS bytes,
  1e9 * SUM(bytes) / NULLIF(SUM(IIF(bytes IS NULL, 0, dur)), 0) AS bytes_per_second
FROM molprof_memory_copy
GROUP BY direction, source, target
ORDER BY time_ns DESC, direction, source, target;
