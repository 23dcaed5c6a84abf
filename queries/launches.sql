-- Launches and the GPU work that they started, matched by rank and correlation number.
--
-- Example:
--   SELECT name, kind, count, time_ns, kernels, mean_delay_ns
--   FROM molprof_launch_summary
--   ORDER BY count DESC, name, kind;

INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.work_totals;

-- Whether a call started more than one piece of work, as graph launches do: one row, else none.
CREATE PERFETTO TABLE _molprof_call_of_many AS
SELECT work.call_id
FROM _molprof_work AS work
CROSS JOIN _molprof_work AS other
WHERE work.call_id IS NOT NULL AND other.call_id = work.call_id AND other.id != work.id
LIMIT 1;

-- What each call started, in order of call. Nothing is added up where each started one piece of work.
CREATE PERFETTO TABLE _molprof_started AS
SELECT *
FROM (
  SELECT
    call_id,
    category = 'kernel' AS kernels,
    dur AS gpu_ns,
    ts
  FROM _molprof_work
  WHERE call_id IS NOT NULL
  ORDER BY call_id
  LIMIT IIF((SELECT COUNT() FROM _molprof_call_of_many) > 0, 0, -1)
)
UNION ALL
SELECT *
FROM (
  SELECT
    call_id,
    SUM(category = 'kernel') AS kernels,
    SUM(dur) AS gpu_ns,
    MIN(ts) AS ts
  FROM _molprof_work
  WHERE call_id IS NOT NULL
  GROUP BY call_id
  LIMIT IIF((SELECT COUNT() FROM _molprof_call_of_many) > 0, -1, 0)
);

-- What each call started; a call that started nothing has no row.
CREATE PERFETTO VIEW molprof_call_work(
  -- The call; a graph launch starts many.
  call_id JOINID(slice.id),
  -- Device of the work, as text; of several the first by that text.
  device STRING,
  -- Kernels.
  kernels LONG,
  -- Copies and sets.
  memory_operations LONG,
  -- Sum of their times, ns; concurrent work counts each.
  gpu_ns DURATION,
  -- From the first start to the last end of them, ns.
  span_ns DURATION,
  -- From the start of the call to the start of the first of them, ns; below 0 only if clocks disagree.
  delay DURATION
) AS
SELECT
  call_id,
  -- Subqueries, unlike joins, run only where their column is read.
  (SELECT MIN(work.device) FROM _molprof_work AS work WHERE work.call_id = started.call_id) AS device,
  kernels,
  (SELECT COUNT() FROM _molprof_work AS work WHERE work.call_id = started.call_id) - kernels AS memory_operations,
  gpu_ns,
  (SELECT MAX(work.ts_end) FROM _molprof_work AS work WHERE work.call_id = started.call_id) - ts AS span_ns,
  ts - (SELECT call.ts FROM _molprof_call AS call WHERE call.id = started.call_id) AS delay
FROM _molprof_started AS started;

-- Calls of one kind by name.
CREATE PERFETTO MACRO _molprof_call_summary(kind Expr, calls TableOrSubquery)
RETURNS TableOrSubquery AS (
  SELECT
    call.name,
    $kind AS kind,
    COUNT() AS count,
    SUM(call.dur) AS time_ns,
    IFNULL(SUM(started.kernels), 0) AS kernels,
    AVG(started.ts - call.ts) AS mean_delay_ns
  FROM $calls AS call
  LEFT JOIN _molprof_started AS started ON started.call_id = call.id
  GROUP BY call.name
);

-- Launching calls by name, most calls first.
CREATE PERFETTO VIEW molprof_launch_summary(
  -- Name of the runtime or driver function.
  name STRING,
  -- launch or graph_launch.
  kind STRING,
  -- Calls.
  count LONG,
  -- Time in the calls, ns.
  time_ns DURATION,
  -- Kernels that they started.
  kernels LONG,
  -- Mean time from a call's start to its first work's start, ns, over calls that started any; null where no work is
  -- linked.
  mean_delay_ns DOUBLE
) AS
SELECT * FROM _molprof_call_summary!('launch', _molprof_launch_call)
UNION ALL
SELECT * FROM _molprof_call_summary!('graph_launch', _molprof_graph_call)
ORDER BY count DESC, name, kind;

-- Numbers of several calls that work has: calls with one of them have work, whichever call that is linked to.
CREATE PERFETTO VIEW _molprof_shared_work AS
SELECT
  shared.rank,
  shared.correlation
FROM _molprof_work AS work
CROSS JOIN _molprof_shared_number AS shared
WHERE
  (SELECT COUNT() FROM _molprof_shared_number) > 0
  AND shared.correlation = work.correlation
  AND shared.rank = IFNULL(_molprof_work_rank!(work.id), -1);

-- Launches that started nothing.
CREATE PERFETTO TABLE _molprof_idle_launch AS
SELECT
  call.id,
  call.ts,
  IFNULL(call.rank, -1) AS rank,
  call.correlation
FROM _molprof_launch_call AS call
LEFT JOIN _molprof_started AS started ON started.call_id = call.id
WHERE started.call_id IS NULL
ORDER BY call.id;

-- The trace's counts, one row.
CREATE PERFETTO TABLE molprof_launch_count(
  -- Calls that start a kernel; 0 also where no calls are recorded.
  launches LONG,
  -- Calls that start a graph; they are not launches.
  graph_launches LONG,
  kernels LONG,
  -- Sum of kernel times, ns; concurrent kernels count each.
  kernel_time_ns DURATION,
  -- Distinct kernel names.
  kernel_names LONG,
  -- Launches without GPU work of the same correlation number; a missing number counts as a number.
  launches_without_gpu_work LONG,
  -- Kernels with a call of the same correlation number, by the same rule.
  kernels_with_call LONG,
  -- Kernels without such a call.
  kernels_without_call LONG
) AS
WITH
  total AS (
    SELECT
      (SELECT COUNT() FROM _molprof_launch_call) AS launches,
      (SELECT COUNT() FROM _molprof_graph_call) AS graph_launches,
      IFNULL(SUM(count), 0) AS kernels,
      IFNULL(SUM(time_ns), 0) AS time_ns,
      COUNT() AS names
    FROM molprof_work_total
    WHERE category = 'kernel'
  ),
  launch AS (
    SELECT COUNT() AS without_work
    FROM _molprof_idle_launch
    WHERE
      IIF(
        correlation IS NULL,
        (SELECT COUNT() FROM _molprof_work WHERE correlation IS NULL) = 0,
        (rank, correlation) NOT IN (SELECT rank, correlation FROM _molprof_shared_work)
      )
  ),
  -- Kernels with a call: linked ones, and those without number where a call has none either.
  kernel AS (
    SELECT
      (SELECT COUNT() FROM _molprof_work WHERE category = 'kernel' AND call_id IS NOT NULL) + IIF(
        (SELECT COUNT() FROM _molprof_call WHERE correlation IS NULL) > 0,
        (SELECT COUNT() FROM _molprof_work WHERE category = 'kernel' AND correlation IS NULL),
        0
      ) AS with_call
  )
SELECT
  total.launches,
  total.graph_launches,
  total.kernels,
  total.time_ns AS kernel_time_ns,
  total.names AS kernel_names,
  launch.without_work AS launches_without_gpu_work,
  kernel.with_call AS kernels_with_call,
  (SELECT COUNT() FROM _molprof_work WHERE category = 'kernel') - kernel.with_call AS kernels_without_call
FROM total
CROSS JOIN launch
CROSS JOIN kernel;
