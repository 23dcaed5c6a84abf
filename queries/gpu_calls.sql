-- CPU calls into the CUDA or HIP runtime and driver, and which of them are launches.
--
-- Example:
--   SELECT name, kind, COUNT() AS count, SUM(dur) AS time_ns
--   FROM molprof_gpu_call
--   GROUP BY name, kind
--   ORDER BY time_ns DESC, name;

INCLUDE PERFETTO MODULE molprof.process_ranks;

-- The kind of a call of a name. Devices other than NVIDIA's and AMD's have runtimes with names of their own, such as
-- urEnqueueKernelLaunch (XPU), cnInvokeKernel (MLU) and that of MTIA.
CREATE PERFETTO MACRO _molprof_kind(name Expr)
RETURNS Expr AS (
  CASE
    WHEN $name GLOB '*Launch*'
    THEN CASE
      WHEN $name GLOB '*Launch*Kernel*' OR $name GLOB '*KernelLaunch*' THEN 'launch'
      WHEN $name GLOB '*GraphLaunch*' THEN 'graph_launch'
    END
    WHEN $name GLOB '*InvokeKernel*' OR $name = 'runFunction - job_prep_and_submit_for_execution' THEN 'launch'
  END
);

-- The calls with their tracks. With types, so that text in place of a number is refused.
CREATE PERFETTO TABLE _molprof_call(
  id JOINID(slice.id),
  ts TIMESTAMP,
  dur DURATION,
  name STRING,
  kind STRING,
  correlation LONG,
  rank LONG,
  track_id JOINID(track.id)
) AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  slice.name,
  _molprof_kind!(slice.name) AS kind,
  EXTRACT_ARG(slice.arg_set_id, 'args.correlation') AS correlation,
  _molprof_rank!(slice.track_id) AS rank,
  slice.track_id
FROM slice
WHERE
  slice.category IN ('cuda_runtime', 'cuda_driver')
  AND (
    slice.category = 'cuda_runtime'
    OR NOT slice.name GLOB 'ze*'
    -- What an XPU's runtime asks of the driver (zeCommandListAppendLaunchKernel) is the runtime's call once more.
    OR NOT EXISTS(SELECT 1 FROM slice AS caller WHERE caller.id = slice.parent_id AND caller.category = 'cuda_runtime')
  )
ORDER BY slice.ts, slice.id;

-- The engine searches for calls by their number.
CREATE PERFETTO INDEX _molprof_call_correlation ON _molprof_call(correlation);

-- One row where the numbers of calls rise from each to the next, as in most traces; else none. Then no calls share a
-- number, and no call began before one with a lower number.
CREATE PERFETTO TABLE _molprof_rising_number AS
SELECT TRUE AS rises
WHERE
  NOT EXISTS(SELECT 1 FROM _molprof_call WHERE correlation IS NULL)
  AND NOT EXISTS(
    SELECT 1
    FROM _molprof_call AS next
    CROSS JOIN _molprof_call AS last
    WHERE last._auto_id = next._auto_id - 1 AND last.correlation >= next.correlation
  );

CREATE PERFETTO VIEW _molprof_launch_call AS
SELECT *
FROM _molprof_call
WHERE kind = 'launch';

CREATE PERFETTO VIEW _molprof_graph_call AS
SELECT *
FROM _molprof_call
WHERE kind = 'graph_launch';

-- One row per slice of category cuda_runtime or cuda_driver (HIP traces use the same), in order of start.
CREATE PERFETTO VIEW molprof_gpu_call(
  -- The slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time in the call, ns.
  dur DURATION,
  -- Name of the runtime or driver function.
  name STRING,
  -- launch: starts a kernel; graph_launch: starts a graph; null: any other call.
  kind STRING,
  -- Correlation number, which the GPU work that it started has too; null where not recorded.
  correlation LONG,
  -- Rank; null unless the trace is of several ranks.
  rank LONG
) AS
SELECT
  id,
  ts,
  dur,
  name,
  kind,
  correlation,
  rank
FROM _molprof_call;
