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

-- What a Python function is: a module; of a library (torch, triton, Python itself, code that a compiler wrote, and what
-- only wraps another function), of which the function that called it says more; a function; null for a built-in one.
CREATE PERFETTO MACRO _molprof_function_kind(function Expr)
RETURNS Expr AS (
  CASE
    WHEN _molprof_is_module!($function) THEN 'module'
    WHEN $function GLOB '<built-in *' OR NOT $function GLOB '*([0-9]*): *' THEN NULL
    WHEN $function GLOB 'torch/*'
      OR $function GLOB '*/site-packages/torch/*'
      OR $function GLOB '*/torchinductor_*/*'
      OR $function GLOB 'triton/*'
      OR $function GLOB '*/triton/runtime/*'
      OR $function GLOB '*/triton/backends/*'
      OR $function GLOB '<*'
      OR $function GLOB 'contextlib.py(*'
      OR $function GLOB 'functools.py(*'
      OR $function GLOB 'enum.py(*'
      OR $function GLOB 'typing*.py(*'
      OR $function GLOB 'threading.py(*'
      OR $function GLOB 'jit/*'
      OR $function GLOB '*/jit/core.py(*'
      OR $function GLOB '*: wrapper'
      OR $function GLOB '*: wrapped'
      OR $function GLOB '*: wrapped_*'
      OR $function GLOB '*: _wrapper'
      OR $function GLOB '*: decorate_context'
      OR $function GLOB '*: __torch_function__' THEN 'library'
    ELSE 'function'
  END
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
