-- Modules (nn.Module) in Python stacks, which torch.profiler records with with_stack=True.
--
-- Example:
--   SELECT class, depth, COUNT(DISTINCT name) AS modules, COUNT() AS calls, SUM(dur) AS time_ns
--   FROM molprof_module
--   GROUP BY class, depth
--   ORDER BY depth, time_ns DESC, class;

-- Whether a Python function is a module.
CREATE PERFETTO MACRO _molprof_is_module(function Expr)
RETURNS Expr AS (
  $function GLOB 'nn.Module: *'
);

-- The name of a module: class and number, such as Linear_3.
CREATE PERFETTO MACRO _molprof_module_name(function Expr)
RETURNS Expr AS (
  SUBSTR($function, 12)
);

-- The class of a module, such as Linear of Linear_3: torch numbers the modules of each class.
CREATE PERFETTO MACRO _molprof_module_class(name Expr)
RETURNS Expr AS (
  IIF(
    $name GLOB '*_*[0-9]' AND RTRIM($name, '0123456789') GLOB '*_',
    SUBSTR($name, 1, LENGTH(RTRIM($name, '0123456789')) - 1),
    $name
  )
);

-- One row per call of a module, in order of start. With all that is around them they are in molprof.origin.
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
  -- Modules around it.
  depth LONG
) AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  _molprof_module_name!(slice.name) AS name,
  _molprof_module_class!(_molprof_module_name!(slice.name)) AS class,
  (
    SELECT COUNT()
    FROM ancestor_slice(slice.id) AS outer
    WHERE outer.category = 'python_function' AND _molprof_is_module!(outer.name)
  ) AS depth
FROM slice
WHERE slice.category = 'python_function' AND _molprof_is_module!(slice.name)
ORDER BY slice.ts, slice.id;
