-- Modules (nn.Module) in Python stacks, which torch.profiler records with with_stack=True.
--
-- Example:
--   SELECT class, depth, COUNT(DISTINCT name) AS modules, COUNT() AS calls, SUM(dur) AS time_ns
--   FROM molprof_module
--   GROUP BY class, depth
--   ORDER BY depth, time_ns DESC, class;

INCLUDE PERFETTO MODULE molprof.python_functions;

-- One row per call of a module, in order of start. molprof.origin has them with all enclosing frames.
CREATE PERFETTO VIEW molprof_module(
  -- The slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time in the module, ns.
  dur DURATION,
  -- Class and number, such as Linear_3.
  name STRING,
  -- Class, such as Linear.
  class STRING,
  -- Number of enclosing modules.
  depth LONG
) AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  _molprof_module_name!(slice.name) AS name,
  _molprof_module_class!(_molprof_module_name!(slice.name)) AS class,
  call.depth
FROM _molprof_fact_module AS call
CROSS JOIN slice
WHERE slice.id = call.id
ORDER BY slice.ts, slice.id;
