-- Annotations: named spans of the host's time, and whose steps or phases they mark.
--
-- Example:
--   SELECT source, role, name, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_annotation
--   GROUP BY source, role, name
--   ORDER BY time_ns DESC, name
--   LIMIT 20;

-- Tracks with process and thread number: few rows, where a join of the engine's own tables is slow. A sub-track has the
-- number of the thread that its slices belong to, which all of them hold.
CREATE PERFETTO TABLE _molprof_thread_track AS
SELECT
  thread_track.id,
  thread.upid,
  COALESCE(
    IIF(
      thread.name GLOB '* (lane *)',
      (
        SELECT EXTRACT_ARG(slice.arg_set_id, 'args.molprof_tid')
        FROM slice
        WHERE slice.track_id = thread_track.id
        LIMIT 1
      ),
      NULL
    ),
    thread.tid
  ) AS tid
FROM thread_track
JOIN thread USING (utid)
ORDER BY thread_track.id;

-- The number behind a key in a name, such as 12 behind ' step='; null without the key. CAST reads the leading digits.
CREATE PERFETTO MACRO _molprof_number(name Expr, key Expr)
RETURNS Expr AS (
  IIF(INSTR($name, $key) > 0, CAST(SUBSTR($name, INSTR($name, $key) + LENGTH($key)) AS INT), NULL)
);

CREATE PERFETTO MACRO _molprof_same(name ColumnName)
RETURNS ColumnName AS $name;

-- Durations (dur) by their keys, a list of columns: number, sum, percentiles, extremes and mean. Percentiles are by nearest
-- rank, the least rank that reaches them.
CREATE PERFETTO MACRO _molprof_spread(durations TableOrSubquery, keys ColumnNameList)
RETURNS TableOrSubquery AS (
  SELECT
    __intrinsic_token_apply!(_molprof_same, $keys),
    size AS count,
    SUM(dur) AS time_ns,
    MAX(IIF(number = (50 * size + 99) / 100, dur, NULL)) AS p50_ns,
    MAX(IIF(size >= 10 AND number = (90 * size + 99) / 100, dur, NULL)) AS p90_ns,
    MAX(IIF(size >= 100 AND number = (99 * size + 99) / 100, dur, NULL)) AS p99_ns,
    MAX(dur) AS longest_ns,
    MIN(dur) AS shortest_ns,
    AVG(dur) AS mean_ns
  FROM (
    SELECT
      *,
      ROW_NUMBER() OVER (PARTITION BY __intrinsic_token_apply!(_molprof_same, $keys) ORDER BY dur) AS number,
      COUNT() OVER (PARTITION BY __intrinsic_token_apply!(_molprof_same, $keys)) AS size
    FROM $durations
  )
  GROUP BY __intrinsic_token_apply!(_molprof_same, $keys)
);

-- Names by which programs mark steps and phases. The first pattern that matches decides.
CREATE PERFETTO TABLE molprof_annotation_pattern(
  -- Lower numbers are tried first. Of the steps that a trace marks, those of the lowest number count.
  priority LONG,
  -- Whose names they are: molprof, vllm, sglang, profiler (torch's), or program for any other.
  source STRING,
  -- Kind of their mark: step or phase; null for neither.
  role STRING,
  -- GLOB pattern for the name; of source program for the name in lower case.
  pattern STRING,
  -- GLOB pattern of names that are not meant; '' for none.
  unless STRING
) AS
WITH
  data(priority, source, role, pattern, unless) AS (
    VALUES
      (1, 'molprof', 'step', 'molprof.step batch=* step=*', ''),
      (2, 'molprof', 'phase', 'molprof.*', 'molprof.step *'),
      (3, 'sglang', 'step', 'step[[][A-Z]*]', ''),
      (3, 'vllm', 'step', 'execute_*context_[0-9]*_generation_[0-9]*', ''),
      (4, 'profiler', 'step', 'ProfilerStep#[0-9]*', ''),
      (5, 'profiler', NULL, 'ProfilerStep', ''),
      (6, 'molprof', NULL, 'molprof.*', ''),
      (7, 'program', 'step', '*step[0-9]*', ''),
      (7, 'program', 'step', '*step[-_ #:=][0-9]*', ''),
      (7, 'program', 'step', '*iter[-_ #:=][0-9]*', ''),
      (7, 'program', 'step', '*iteration[-_ #:=][0-9]*', ''),
      -- Not Optimizer.step#SGD.step.
      (7, 'program', 'step', '*step', '*.step')
  )
SELECT *
FROM data
ORDER BY priority, source, pattern;

-- The first pattern that matches each name: looked for once, however often the name occurs.
CREATE PERFETTO TABLE _molprof_annotation_name AS
SELECT
  name,
  (
    SELECT pattern._auto_id
    FROM molprof_annotation_pattern AS pattern
    WHERE
      IIF(pattern.source = 'program', lower_name, name) GLOB pattern.pattern
      AND NOT IIF(pattern.source = 'program', lower_name, name) GLOB pattern.unless
    LIMIT 1
  ) AS pattern
FROM (SELECT name, LOWER(name) AS lower_name FROM slice WHERE category = 'user_annotation' GROUP BY name)
ORDER BY name;

-- One row per slice of category user_annotation, in order of start.
CREATE PERFETTO TABLE molprof_annotation(
  -- The slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time on the host, profiler's cost included, ns.
  dur DURATION,
  -- Name as recorded.
  name STRING,
  -- Process in which it ran.
  upid JOINID(process.id),
  -- Thread number, also of slices that the reader moved to a sub-track.
  tid LONG,
  -- Whose name it is, as in molprof_annotation_pattern; null where no pattern matches.
  source STRING,
  -- Kind of its mark: step or phase; null for neither.
  role STRING
) AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  slice.name,
  track.upid,
  track.tid,
  pattern.source,
  pattern.role
FROM slice
JOIN _molprof_thread_track AS track ON track.id = slice.track_id
LEFT JOIN _molprof_annotation_name AS named ON named.name = slice.name
LEFT JOIN molprof_annotation_pattern AS pattern ON pattern._auto_id = named.pattern
WHERE slice.category = 'user_annotation'
ORDER BY slice.ts, slice.id;
