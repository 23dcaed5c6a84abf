-- How many kernels, copies and sets ran concurrently on each device, and for how long.
--
-- Example:
--   SELECT device, running, time_ns, span_ratio
--   FROM molprof_concurrency
--   ORDER BY device, running;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Time of each device by the number of kernels, copies and sets that run, from its first work to the end of its last.
-- The row with 0 is the idle time; the rows of a device add up to its span.
CREATE PERFETTO VIEW molprof_concurrency(
  -- Device number as text.
  device STRING,
  -- Kernels, copies and sets that run at the same time.
  running LONG,
  -- Time with exactly that many, ns.
  time_ns DURATION,
  -- Share of the device's span, 0 to 1.
  span_ratio DOUBLE
) AS
WITH
  change AS (
    SELECT
      device,
      ts,
      1 AS change
    FROM molprof_gpu_work
    UNION ALL
    SELECT
      device,
      ts + dur AS ts,
      -1 AS change
    FROM molprof_gpu_work
  ),
  moment AS (
    SELECT
      device,
      ts,
      SUM(change) AS change
    FROM change
    GROUP BY device, ts
  ),
  stretch AS (
    SELECT
      device,
      SUM(change) OVER (PARTITION BY device ORDER BY ts) AS running,
      LEAD(ts) OVER (PARTITION BY device ORDER BY ts) - ts AS dur
    FROM moment
  ),
  total AS (
    SELECT
      device,
      running,
      SUM(dur) AS time_ns
    FROM stretch
    WHERE dur IS NOT NULL
    GROUP BY device, running
  )
SELECT
  device,
  running,
  time_ns,
  1.0 * time_ns / SUM(time_ns) OVER (PARTITION BY device) AS span_ratio
FROM total
ORDER BY device, running;
