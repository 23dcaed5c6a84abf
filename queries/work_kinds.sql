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

INCLUDE PERFETTO MODULE molprof.kernel_classes;
INCLUDE PERFETTO MODULE molprof.kernel_kinds;
INCLUDE PERFETTO MODULE molprof.step_placement;
INCLUDE PERFETTO MODULE molprof.steps;

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
  found AS (
    SELECT
      named.kind,
      work.count,
      work.time_ns,
      IIF(steps.found, work.count - IFNULL(other.count, 0), 0) AS step_count,
      IIF(steps.found, work.time_ns - IFNULL(other.time_ns, 0), 0) AS step_time_ns
    FROM (SELECT COUNT() > 0 AS found FROM molprof_call_step) AS steps
    CROSS JOIN named
    JOIN _molprof_fact_work_total AS work ON work.category = named.category AND work.name = named.name
    LEFT JOIN _molprof_fact_work_outside_steps AS other USING (name_id)
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
