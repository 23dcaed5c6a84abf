-- GPU work that begins before the work ahead of it on its stream has ended.
--
-- A stream runs its work in order. So either recorded times are too long, or the work ran at once on purpose (dependent
-- launches of Hopper and Blackwell, branches of a graph): the true time is between the union and the sum.
--
-- Example:
--   SELECT device, stream, overlaps, overlap_ns, longest_ns, time_ns, union_ns
--   FROM molprof_stream_overlap
--   ORDER BY overlap_ns DESC;

INCLUDE PERFETTO MODULE molprof.devices;
INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Devices with work that begins before earlier work has ended.
CREATE PERFETTO TABLE _molprof_overlap_device AS
SELECT DISTINCT next.device
FROM _molprof_device_start AS next
CROSS JOIN _molprof_device_end AS last
CROSS JOIN _molprof_device_start AS before
WHERE
  last._auto_id = next._auto_id - 1
  AND next.ts < last.ts_end
  AND before._auto_id = last._auto_id
  AND before.device = next.device
UNION ALL
SELECT device
FROM _molprof_only_device
WHERE
  -- Where all work but the first comes after a gap, none is looked at.
  (SELECT COUNT() FROM _molprof_device_gap) + 1 < (SELECT COUNT() FROM _molprof_work)
  AND EXISTS(
    SELECT 1
    FROM _molprof_work AS next
    CROSS JOIN _molprof_device_end AS last
    WHERE last._auto_id = next._auto_id - 1 AND next.ts < last.ts_end
  );

-- Work with a stream number in order of start, of these devices: on others, nothing on a stream overlaps.
CREATE PERFETTO TABLE _molprof_stream_work AS
SELECT
  device,
  stream,
  ts,
  ts_end,
  dur
FROM _molprof_work
WHERE stream IS NOT NULL AND device IN (SELECT device FROM _molprof_overlap_device)
ORDER BY device, stream, ts, id;

-- Streams with overlaps, the most overlapping time first. Work without a stream number is left out.
CREATE PERFETTO VIEW molprof_stream_overlap(
  -- Device number as text.
  device STRING,
  -- Stream number.
  stream LONG,
  -- Kernels, copies and sets that begin before the end of earlier work on the stream.
  overlaps LONG,
  -- Sum of times minus time with any of them running, ns.
  overlap_ns DURATION,
  -- Longest single overlap, ns.
  longest_ns DURATION,
  -- Sum of the times of all work on the stream, ns.
  time_ns DURATION,
  -- Time with any work on the stream running, ns.
  union_ns DURATION
) AS
WITH
  -- Whether work ends before work that began earlier on its stream.
  nested AS MATERIALIZED (
    SELECT
      EXISTS(
        SELECT 1
        FROM _molprof_stream_work AS next
        CROSS JOIN _molprof_stream_work AS last
        WHERE
          last._auto_id = next._auto_id - 1
          AND last.ts_end > next.ts_end
          AND last.stream = next.stream
          AND last.device = next.device
      ) AS found
  ),
  busy AS (
    -- If not, the work just before is the last of all earlier work to end.
    SELECT
      next.device,
      next.stream,
      next.ts,
      next.ts_end,
      last.ts_end AS busy_until
    FROM nested
    CROSS JOIN _molprof_stream_work AS next
    CROSS JOIN _molprof_stream_work AS last
    WHERE
      NOT nested.found
      AND last._auto_id = next._auto_id - 1
      AND last.ts_end > next.ts
      AND last.stream = next.stream
      AND last.device = next.device
    UNION ALL
    SELECT
      work.device,
      work.stream,
      work.ts,
      work.ts_end,
      MAX(work.ts_end) OVER (
        PARTITION BY work.device, work.stream
        ORDER BY work._auto_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS busy_until
    FROM nested
    CROSS JOIN _molprof_stream_work AS work
    WHERE nested.found
  ),
  overlap AS (
    SELECT
      device,
      stream,
      COUNT() AS overlaps,
      SUM(MIN(ts_end, busy_until) - ts) AS overlap_ns,
      MAX(MIN(ts_end, busy_until) - ts) AS longest_ns
    FROM busy
    WHERE MIN(ts_end, busy_until) > ts
    GROUP BY device, stream
  ),
  total AS (
    SELECT
      device,
      stream,
      SUM(dur) AS time_ns
    FROM _molprof_stream_work
    GROUP BY device, stream
  )
SELECT
  device,
  stream,
  overlap.overlaps,
  overlap.overlap_ns,
  overlap.longest_ns,
  total.time_ns,
  total.time_ns - overlap.overlap_ns AS union_ns
FROM overlap
JOIN total USING (device, stream)
ORDER BY overlap.overlap_ns DESC, device, stream;
