-- Copies, cats, attention, elementwise, masking, memcpy by direction: in the trace and in steps.
--
-- Copy, cat and attention are classes of molprof.kernel_classes, elementwise and masking kinds of molprof.kernel_kinds.
-- Kinds overlap classes, so the rows do not add up. Steps are those of molprof.steps; work belongs to the step of its
-- launch.
--
-- Example:
--   SELECT kind, count, time_ns, step_count, step_time_ns
--   FROM molprof_work_kind
--   ORDER BY kind;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.kernel_classes;
INCLUDE PERFETTO MODULE molprof.kernel_kinds;
INCLUDE PERFETTO MODULE molprof.work_totals;
INCLUDE PERFETTO MODULE molprof.step_placement;
INCLUDE PERFETTO MODULE molprof.steps;

-- Times outside any step, of each track of threads: few, so that calls are searched in them and not looked at one by one.
-- No rows without steps.
CREATE PERFETTO TABLE _molprof_outside_lane AS
WITH
  bound AS (
    SELECT
      track.id AS track_id,
      lane.ts,
      MAX(lane.ts, lane.ts_end) AS ts_end
    FROM _molprof_step_lane AS lane
    JOIN _molprof_thread_track AS track
      ON track.upid = lane.upid AND (lane.tid IS NULL OR track.tid = lane.tid)
    UNION ALL
    SELECT
      id AS track_id,
      -1 AS ts,
      0 AS ts_end
    FROM _molprof_thread_track
    WHERE EXISTS(SELECT 1 FROM molprof_call_step)
  )
SELECT
  track_id,
  ts_end AS ts,
  LEAD(ts, 1, 1 << 62) OVER (PARTITION BY track_id ORDER BY ts) AS ts_end
FROM bound;

-- Work whose launch is in no step, in a trace with steps: mostly little, so that little is written. The engine groups the
-- rows of a table much faster than those of a join.
CREATE PERFETTO TABLE _molprof_other_work AS
SELECT
  slice.id,
  slice.stack_id,
  work.dur
FROM _molprof_work AS work
CROSS JOIN _molprof_numbered_slice AS slice
WHERE EXISTS(SELECT 1 FROM molprof_call_step) AND work.call_id IS NULL AND slice.id = work.id
UNION ALL
SELECT
  slice.id,
  slice.stack_id,
  work.dur
FROM _molprof_outside_lane AS outside
CROSS JOIN _molprof_call AS call
CROSS JOIN _molprof_work AS work
CROSS JOIN _molprof_numbered_slice AS slice
WHERE
  call.ts >= outside.ts
  AND call.ts < outside.ts_end
  AND call.track_id = outside.track_id
  AND work.call_id = call.id
  AND slice.id = work.id;

-- One row per kind. Those that every trace is asked for are there with 0 too.
CREATE PERFETTO TABLE molprof_work_kind(
  -- copy, cat, attention, elementwise, masking; 'memcpy HtoD' and the like; memset.
  kind STRING,
  -- Kernels, copies or sets of the trace.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Of these, those whose launch is in a step; null for a trace without steps.
  step_count LONG,
  -- Sum of their times, ns; null as above.
  step_time_ns DURATION
) AS
WITH
  asked(kind) AS (
    VALUES
      ('copy'),
      ('cat'),
      ('attention'),
      ('elementwise'),
      ('masking'),
      ('memcpy HtoD'),
      ('memcpy DtoH'),
      ('memcpy DtoD'),
      ('memset')
  ),
  named AS (
    SELECT
      category,
      name,
      class AS kind
    FROM molprof_work_class
    WHERE category != 'kernel' OR class IN ('copy', 'cat', 'attention')
    UNION ALL
    SELECT
      'kernel' AS category,
      name,
      kind
    FROM molprof_kernel_kind
  ),
  other AS (
    SELECT
      slice.category,
      IFNULL(slice.name, '(no name)') AS name,
      SUM(stack.count) AS count,
      SUM(stack.time_ns) AS time_ns
    FROM (SELECT id, COUNT() AS count, SUM(dur) AS time_ns FROM _molprof_other_work GROUP BY stack_id) AS stack
    JOIN slice USING (id)
    GROUP BY slice.category, IFNULL(slice.name, '(no name)')
  ),
  found AS (
    SELECT
      named.kind,
      work.count,
      work.time_ns,
      IIF(steps.found, work.count - IFNULL(other.count, 0), 0) AS step_count,
      IIF(steps.found, work.time_ns - IFNULL(other.time_ns, 0), 0) AS step_time_ns
    FROM (SELECT COUNT() > 0 AS found FROM molprof_call_step) AS steps
    CROSS JOIN named
    JOIN molprof_work_total AS work ON work.category = named.category AND work.name = named.name
    LEFT JOIN other ON other.category = named.category AND other.name = named.name
    UNION ALL
    SELECT
      kind,
      0,
      0,
      0,
      0
    FROM asked
  )
SELECT
  kind,
  SUM(count) AS count,
  SUM(time_ns) AS time_ns,
  IIF(EXISTS(SELECT 1 FROM molprof_any_step), SUM(step_count), NULL) AS step_count,
  IIF(EXISTS(SELECT 1 FROM molprof_any_step), SUM(step_time_ns), NULL) AS step_time_ns
FROM found
GROUP BY kind
ORDER BY kind;
