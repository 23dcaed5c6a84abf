-- Host work that was running when the profiler started, so that only a part of it was recorded.
--
-- Example:
--   SELECT name, category, before_ns, dur
--   FROM molprof_work_over_start
--   ORDER BY before_ns DESC, name
--   LIMIT 10;

INCLUDE PERFETTO MODULE molprof.profiler_runs;

-- Operators, annotations and GPU calls that begin before the profiler's first run and end after its start. Empty where
-- the trace has no span of the profiler.
CREATE PERFETTO VIEW molprof_work_over_start(
  -- The slice.
  id JOINID(slice.id),
  -- Name as recorded.
  name STRING,
  -- cpu_op, user_annotation, cuda_runtime or cuda_driver.
  category STRING,
  -- From its start to the profiler's start, ns.
  before_ns DURATION,
  -- Time as recorded, ns.
  dur DURATION,
  -- Whether no other of these calls it: 1 or 0.
  is_outermost LONG
) AS
SELECT
  slice.id,
  slice.name,
  slice.category,
  run.ts - slice.ts AS before_ns,
  slice.dur,
  NOT EXISTS(
    SELECT 1
    FROM slice AS parent
    WHERE
      parent.id = slice.parent_id
      AND parent.category IN ('cpu_op', 'user_annotation', 'cuda_runtime', 'cuda_driver')
  ) AS is_outermost
FROM molprof_profiler_run AS run
JOIN slice ON slice.ts < run.ts AND slice.ts + slice.dur > run.ts
WHERE run.number = 1 AND slice.category IN ('cpu_op', 'user_annotation', 'cuda_runtime', 'cuda_driver')
ORDER BY slice.ts, slice.id;
