-- Kernels that are shorter than their launch: candidates for fusion or a graph.
--
-- Example:
--   SELECT name, kernels, shorter, kernel_ns, call_ns
--   FROM molprof_short_kernel
--   ORDER BY shorter DESC, name
--   LIMIT 20;

INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Kernels with their own launch, by name, most short ones first. Kernels of graphs have none.
CREATE PERFETTO VIEW molprof_short_kernel(
  -- Kernel, as recorded.
  name STRING,
  -- Runs with a recorded launch.
  kernels LONG,
  -- Those that ran for less time than their launch took.
  shorter LONG,
  -- Time of those on the device, ns.
  kernel_ns DURATION,
  -- Time of their launches, ns.
  call_ns DURATION
) AS
WITH
  launched AS (
    SELECT
      work.name,
      work.dur AS kernel_ns,
      call.dur AS call_ns,
      work.dur < call.dur AS shorter
    FROM molprof_gpu_work AS work
    JOIN molprof_gpu_call AS call ON call.id = work.call_id
    WHERE work.category = 'kernel' AND call.kind = 'launch'
  )
SELECT
  name,
  COUNT() AS kernels,
  SUM(shorter) AS shorter,
  SUM(IIF(shorter, kernel_ns, 0)) AS kernel_ns,
  SUM(IIF(shorter, call_ns, 0)) AS call_ns
FROM launched
GROUP BY name
HAVING SUM(shorter) > 0
ORDER BY shorter DESC, name;
