-- Slices that mark phases of an engine or of transformers, by the table of molprof.phase_marks.
--
-- Example:
--   SELECT program, part, phase, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_phase_slice
--   GROUP BY program, part, phase
--   ORDER BY program, part, phase;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.phase_marks;

-- Names of functions and scopes that mark phases. Each name is matched once, however often it occurs; of marks of
-- transformers a call of any file counts last.
CREATE PERFETTO TABLE _molprof_marked_name AS
WITH
  named AS (
    SELECT
      category,
      name,
      mark.program,
      -- The other columns are those of its row.
      MAX(mark.part) AS part,
      mark.phase,
      mark.kind
    FROM (
      SELECT category, name
      FROM slice
      WHERE category IN ('python_function', 'user_annotation')
      GROUP BY category, name
    )
    JOIN molprof_phase_mark AS mark
      ON category = IIF(mark.kind = 'scope', 'user_annotation', 'python_function') AND name GLOB mark.pattern
    WHERE
      mark.phase IS NOT NULL
      OR NOT EXISTS(
        SELECT 1
        FROM molprof_unmarked_file AS unmarked
        WHERE name GLOB unmarked.pattern || ': *'
      )
    GROUP BY category, name
  )
SELECT *
FROM named
-- Engines run models of transformers' names.
WHERE
  program != 'transformers'
  OR (SELECT COUNT() = 0 FROM named WHERE program != 'transformers')
  AND (SELECT COUNT() > 0 FROM named WHERE part IN ('generate', 'continuous') OR phase = 'forward')
ORDER BY category, name;

-- One row per slice that marks a phase, also of those inside another of the same phase, in order of start.
CREATE PERFETTO TABLE molprof_phase_slice(
  -- The slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host, profiler's cost included, ns.
  dur DURATION,
  -- Function or scope, as recorded.
  name STRING,
  -- vllm, sglang, tensorrt_llm or transformers.
  program STRING,
  -- The part of the program.
  part STRING,
  -- The phase; null as in molprof_phase_mark.
  phase STRING,
  -- Process in which it ran.
  upid JOINID(process.id),
  -- Thread number.
  tid LONG
) AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  slice.name,
  named.program,
  named.part,
  named.phase,
  track.upid,
  track.tid
-- In this order, the engine finds the slices of each name.
FROM _molprof_marked_name AS named
CROSS JOIN slice
JOIN _molprof_thread_track AS track ON track.id = slice.track_id
WHERE slice.name = named.name AND slice.category = named.category
ORDER BY slice.ts, slice.id;
