-- Device time that launches without recorded GPU work may have taken.
--
-- Example:
--   SELECT place, device, inside_ns, outside_ns
--   FROM molprof_missing_time
--   ORDER BY place, device;

INCLUDE PERFETTO MODULE molprof.certificate_launches;
INCLUDE PERFETTO MODULE molprof.devices;
INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Device time without recorded work since the first launch without work: what the missing work may have taken.
CREATE PERFETTO VIEW molprof_missing_time(
  -- Place of the launches, as in molprof_missing_work.
  place STRING,
  -- Device number as text.
  device STRING,
  -- Idle time of the device between its recorded work, ns.
  inside_ns DURATION,
  -- Time before its first and after its last recorded work, ns.
  outside_ns DURATION
) AS
WITH
  trace AS (
    SELECT MAX(ts + MAX(dur, 0)) AS ts_end
    FROM slice
    WHERE
      category IN ('cpu_op', 'cuda_runtime', 'cuda_driver', 'kernel', 'gpu_memcpy', 'gpu_memset', 'user_annotation')
  ),
  device AS (
    SELECT
      device,
      MIN(ts) AS ts,
      MAX(ts_end) AS ts_end
    FROM _molprof_work
    GROUP BY device
  )
SELECT
  missing.place,
  device.device,
  (
    SELECT IFNULL(SUM(MAX(0, idle.ts + idle.dur - MAX(idle.ts, missing.first_ts))), 0)
    FROM _molprof_device_gap AS idle
    WHERE IFNULL(idle.device, (SELECT device FROM _molprof_only_device)) = device.device
  ) AS inside_ns,
  MAX(0, device.ts - missing.first_ts) + MAX(0, trace.ts_end - MAX(device.ts_end, missing.first_ts)) AS outside_ns
FROM molprof_missing_work AS missing
CROSS JOIN device
CROSS JOIN trace
ORDER BY missing.place, device.device;
