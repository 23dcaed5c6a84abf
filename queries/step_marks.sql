-- Marks of steps, by rank: annotations, functions of engines, loops of transformers.
--
-- The steps of a trace are the marks of the lowest rank that it has, so that none counts twice: molprof's annotations
-- (10), those of engines (30), their functions where no annotation shows more (31 and 32), loops of transformers (35),
-- the profiler's ProfilerStep#N (40), annotations of the program's own (70), and forwards in a loop of the user's (80).
--
-- Example:
--   SELECT rank, source, form, COUNT() AS count
--   FROM molprof_step_mark
--   GROUP BY rank, source, form
--   ORDER BY rank, source;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.generate_phases;

-- Functions of engines that run one step each, by the end of their file's path and their name, as in
-- molprof.phase_marks. A new version of an engine is a row of this table.
CREATE PERFETTO TABLE molprof_step_function(
  -- Where a trace has functions of a lower number, those of higher ones run inside them.
  rank LONG,
  -- vllm, sglang or tensorrt_llm.
  source STRING,
  -- GLOB pattern of the slice's name, such as vllm/v1/worker/gpu_model_runner.py(1002): execute_model.
  pattern STRING
) AS
WITH
  data(rank, source, path, name) AS (
    VALUES
      -- Of both model runners of V1 (gpu_model_runner.py, gpu/model_runner.py), and of V0.
      (31, 'vllm', 'vllm/v1/worker/*model_runner.py', 'execute_model'),
      (31, 'vllm', 'vllm/worker/*model_runner.py', 'execute_model'),
      (31, 'sglang', 'sglang/srt/managers/scheduler.py', 'run_batch'),
      (31, 'tensorrt_llm', 'tensorrt_llm/_torch/pyexecutor/py_executor.py', '_forward_step'),
      (32, 'sglang', 'sglang/srt/model_executor/model_runner.py', 'forward')
  )
SELECT rank, source, '*' || path || '([0-9]*): ' || name AS pattern
FROM data
ORDER BY rank, source, pattern;

-- One row per slice that may be a step, in order of start.
CREATE PERFETTO TABLE molprof_step_mark(
  -- The slice; of loops the function's that begins the step.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host, profiler's cost included, ns.
  dur DURATION,
  -- Whose step it marks: molprof, vllm, sglang, tensorrt_llm, transformers, profiler or program.
  source STRING,
  -- annotation, function or loop.
  form STRING,
  -- Steps are the marks of the lowest rank.
  rank LONG,
  -- Process in which it ran.
  upid JOINID(process.id),
  -- Thread number.
  tid LONG
) AS
WITH
  named AS (
    SELECT function.name, step.source, MIN(step.rank) AS rank
    FROM (SELECT name FROM slice WHERE category = 'python_function' GROUP BY name) AS function
    JOIN molprof_step_function AS step ON function.name GLOB step.pattern
    GROUP BY function.name
  )
SELECT annotation.id, annotation.ts, annotation.dur, annotation.source, 'annotation' AS form,
  10 * pattern.priority AS rank, annotation.upid, annotation.tid
FROM molprof_annotation AS annotation
JOIN (SELECT DISTINCT source, priority FROM molprof_annotation_pattern WHERE role = 'step') AS pattern USING (source)
WHERE
  annotation.role = 'step'
  -- Counts have fewer than 16 digits; sums of longer numbers would overflow.
  AND annotation.name NOT GLOB '*[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]*'
UNION ALL
SELECT slice.id, slice.ts, slice.dur, named.source, 'function', named.rank, track.upid, track.tid
FROM named
CROSS JOIN slice
JOIN _molprof_thread_track AS track ON track.id = slice.track_id
WHERE slice.name = named.name AND slice.category = 'python_function'
UNION ALL
SELECT id, ts, dur, 'transformers', 'loop', IIF(part = 'model', 80, 35), upid, tid
FROM molprof_generate_step
ORDER BY 2, 1;
