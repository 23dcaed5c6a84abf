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

-- The calls with their tracks. What an XPU's runtime asks of the driver (zeCommandListAppendLaunchKernel) is the
-- runtime's call once more, and is none.
CREATE PERFETTO VIEW _molprof_call AS
SELECT
  id,
  ts,
  dur,
  name,
  _molprof_kind!(name) AS kind,
  -- 0 stands for no number (ROCm/roctracer#100).
  NULLIF(EXTRACT_ARG(arg_set_id, 'args.correlation'), 0) AS correlation,
  _molprof_rank!(slice.track_id) AS rank,
  track_id
FROM slice
WHERE category IN ('cuda_runtime', 'cuda_driver') AND id NOT IN (SELECT id FROM _molprof_fact_repeated_call);

CREATE PERFETTO VIEW _molprof_launch_call AS
SELECT *
FROM _molprof_call
WHERE kind = 'launch';

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
FROM _molprof_call
ORDER BY ts, id;
