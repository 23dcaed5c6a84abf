-- Launches whose GPU work is not recorded, and GPU work whose call is not recorded.
--
-- A launch inside a stream capture runs nothing: it becomes a node of a graph.
--
-- Example:
--   SELECT place, launches, first_ts, last_ts
--   FROM molprof_missing_work
--   ORDER BY first_ts;

INCLUDE PERFETTO MODULE molprof.devices;

INCLUDE PERFETTO MODULE molprof.gpu_calls;

INCLUDE PERFETTO MODULE molprof.gpu_work;

INCLUDE PERFETTO MODULE molprof.step_placement;

-- Launches and the calls that begin or end a capture, with the number of captures open in their process.
CREATE PERFETTO TABLE _molprof_capture_depth AS
WITH
  item AS (
    SELECT
      call.id,
      call.ts,
      call.kind,
      call.correlation,
      thread.upid,
      (call.name GLOB '*StreamBeginCapture*') - (call.name GLOB '*StreamEndCapture*') AS opened
    FROM molprof_gpu_call AS call
    JOIN slice
      USING (id)
    JOIN thread_track
      ON thread_track.id = slice.track_id
    JOIN thread
      USING (utid)
    WHERE
      call.kind = 'launch' OR call.name GLOB '*StreamBeginCapture*' OR call.name GLOB '*StreamEndCapture*'
  ),
  depth AS (
    SELECT
      id,
      ts,
      kind,
      correlation,
      upid,
      SUM(opened) OVER (PARTITION BY upid ORDER BY ts, id) AS depth
    FROM item
  )
SELECT
  id,
  ts,
  kind,
  correlation,
  -- Below 0 where a capture was open when the recording began.
  depth - MIN(0, MIN(depth) OVER (PARTITION BY upid)) AS depth
FROM depth;

-- Launches that start a kernel at once, in order of start. Graph launches are in molprof.certificate_graphs.
CREATE PERFETTO TABLE molprof_certified_launch(
  -- The call's slice.
  id JOINID(slice.id),
  -- Start of the call, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Whether GPU work with its correlation number is recorded: 1 or 0.
  has_work LONG
)
AS
SELECT
  id,
  ts,
  correlation IN (SELECT correlation FROM molprof_gpu_work WHERE correlation IS NOT NULL) AS has_work
FROM _molprof_capture_depth
WHERE
  kind = 'launch' AND depth = 0 AND correlation IS NOT NULL
ORDER BY
  ts,
  id;

-- Launches without GPU work by place, in order of start.
CREATE PERFETTO TABLE molprof_missing_work(
  -- start: before the first launch that has work; end: after the last one; middle: between them; all: none has work.
  place STRING,
  -- Launches.
  launches LONG,
  -- Of these, launches in steps of molprof.steps.
  in_steps LONG,
  -- Start of the first of them, ns since the trace's earliest event.
  first_ts TIMESTAMP,
  -- Start of the last of them, ns since the trace's earliest event.
  last_ts TIMESTAMP
)
AS
WITH
  known AS (
    SELECT
      MIN(ts) FILTER (WHERE has_work) AS first_ts,
      MAX(ts) FILTER (WHERE has_work) AS last_ts
    FROM molprof_certified_launch
  ),
  placed AS (
    SELECT
      CASE
        WHEN known.first_ts IS NULL THEN 'all'
        WHEN launch.ts < known.first_ts THEN 'start'
        WHEN launch.ts > known.last_ts THEN 'end'
        ELSE 'middle'
      END AS place,
      launch.ts,
      launch.id IN (SELECT id FROM molprof_call_step) AS in_step
    FROM molprof_certified_launch AS launch
    CROSS JOIN known
    WHERE
      NOT launch.has_work
  )
SELECT
  place,
  COUNT() AS launches,
  SUM(in_step) AS in_steps,
  MIN(ts) AS first_ts,
  MAX(ts) AS last_ts
FROM placed
GROUP BY
  place
ORDER BY
  first_ts,
  place;

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
)
AS
WITH
  trace AS (
    SELECT
      MAX(ts + MAX(dur, 0)) AS ts_end
    FROM slice
    WHERE
      category IN ('cpu_op', 'cuda_runtime', 'cuda_driver', 'kernel', 'gpu_memcpy', 'gpu_memset', 'user_annotation')
  ),
  device AS (
    SELECT
      device,
      MIN(ts) AS ts,
      MAX(ts_end) AS ts_end
    FROM molprof_device_work
    GROUP BY
      device
  )
SELECT
  missing.place,
  device.device,
  (
    SELECT
      IFNULL(SUM(MAX(0, idle.ts + idle.dur - MAX(idle.ts, missing.first_ts))), 0)
    FROM molprof_device_idle AS idle
    WHERE
      idle.device = device.device
  ) AS inside_ns,
  MAX(0, device.ts - missing.first_ts) + MAX(0, trace.ts_end - MAX(device.ts_end, missing.first_ts)) AS outside_ns
FROM molprof_missing_work AS missing
CROSS JOIN device
CROSS JOIN trace
ORDER BY
  missing.place,
  device.device;

-- GPU work without a call of its correlation number, by place.
CREATE PERFETTO VIEW molprof_missing_call(
  -- start: its number is below that of any recorded call, so it was launched before the recording; later: its number is
  -- not; all: no GPU work has a call; unnumbered: it has no number.
  place STRING,
  -- Kernels.
  kernels LONG,
  -- Distinct correlation numbers of kernels, copies and sets: the calls that lack.
  calls LONG,
  -- Sum of the times of kernels, ns.
  kernel_time_ns DURATION,
  -- Start of the first, ns since the trace's earliest event.
  first_ts TIMESTAMP
)
AS
WITH
  work AS (
    SELECT
      ts,
      dur,
      category,
      correlation,
      correlation IN (SELECT correlation FROM molprof_gpu_call WHERE correlation IS NOT NULL) AS has_call
    FROM molprof_gpu_work
  ),
  known AS (
    SELECT
      (SELECT MAX(has_call) FROM work) AS any_call,
      (SELECT MIN(correlation) FROM molprof_gpu_call) AS least
  )
SELECT
  CASE
    WHEN work.correlation IS NULL THEN 'unnumbered'
    WHEN NOT IFNULL(known.any_call, 0) THEN 'all'
    WHEN work.correlation < known.least THEN 'start'
    ELSE 'later'
  END AS place,
  SUM(work.category = 'kernel') AS kernels,
  COUNT(DISTINCT work.correlation) AS calls,
  IFNULL(SUM(work.dur) FILTER (WHERE work.category = 'kernel'), 0) AS kernel_time_ns,
  MIN(work.ts) AS first_ts
FROM work
CROSS JOIN known
WHERE
  NOT IFNULL(work.has_call, 0)
GROUP BY
  1
ORDER BY
  first_ts,
  place;
