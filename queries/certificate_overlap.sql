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
)
AS
WITH
  ordered AS (
    SELECT
      device,
      stream,
      ts,
      dur,
      MAX(ts + dur) OVER (
        PARTITION BY device, stream
        ORDER BY ts, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS busy_until
    FROM molprof_gpu_work
    WHERE
      stream IS NOT NULL
      -- Where all work but the first of each device comes after a gap, none is looked at.
      AND (SELECT COUNT() FROM _molprof_device_gap) + (SELECT COUNT() FROM molprof_device)
      < (SELECT COUNT() FROM _molprof_work)
      -- Where nothing on a device overlaps, nothing on its streams does.
      AND device IN (
        SELECT
          next.device
        FROM _molprof_device_start AS next
        CROSS JOIN _molprof_device_end AS last
        CROSS JOIN _molprof_device_start AS before
        WHERE
          last._auto_id = next._auto_id - 1
          AND next.ts < last.ts_end
          AND before._auto_id = last._auto_id
          AND before.device = next.device
      )
  ),
  part AS (
    SELECT
      device,
      stream,
      dur,
      -- The part of it that earlier work covers.
      MAX(0, MIN(ts + dur, busy_until) - ts) AS covered_ns
    FROM ordered
  )
SELECT
  device,
  stream,
  SUM(covered_ns > 0) AS overlaps,
  SUM(covered_ns) AS overlap_ns,
  MAX(covered_ns) AS longest_ns,
  SUM(dur) AS time_ns,
  SUM(dur) - SUM(covered_ns) AS union_ns
FROM (SELECT device, stream, dur, IFNULL(covered_ns, 0) AS covered_ns FROM part)
GROUP BY
  device,
  stream
HAVING
  SUM(covered_ns) > 0
ORDER BY
  overlap_ns DESC,
  device,
  stream;
