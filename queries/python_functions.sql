-- Python functions by name, which torch.profiler records with with_stack=True, and their kind.
--
-- Example:
--   SELECT kind, name, count, time_ns
--   FROM molprof_python_function
--   ORDER BY time_ns DESC, name
--   LIMIT 20;

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
-- only wraps another function), of which the function that called it says more; molprof's own marks and checks, which
-- are nothing of the program; a function; null for a built-in one. Processors and loops of molprof are functions.
CREATE PERFETTO MACRO _molprof_function_kind(function Expr)
RETURNS Expr AS (
  CASE
    WHEN _molprof_is_module!($function) THEN 'module'
    WHEN $function GLOB '<built-in *' OR NOT $function GLOB '*([0-9]*): *' THEN NULL
    WHEN $function GLOB '*profiler/recording/*.py(*'
      OR $function GLOB '*profiler/capture/*.py(*'
      OR $function GLOB '*profiler/constraints/own.py(*'
      OR $function GLOB '*profiler/engines/runner.py(*'
      OR $function GLOB '*molprof/common/*.py(*'
      OR $function GLOB '*molprof/commands/*.py(*'
      OR $function GLOB '*molprof/cli.py(*'
      OR $function GLOB '*molprof/api.py(*' THEN 'molprof'
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

-- Python functions and modules by name, longest total time first.
CREATE PERFETTO VIEW molprof_python_function(
  -- As file(line): name, where the line is that of its beginning; '<built-in ...' or 'nn.Module: ' before others.
  name STRING,
  -- module, function, library (of torch, triton or Python itself) or molprof (its marks); null for a built-in one.
  kind STRING,
  -- Calls.
  count LONG,
  -- Sum of their times with all that they call, ns.
  time_ns DURATION
) AS
SELECT
  name,
  _molprof_function_kind!(name) AS kind,
  COUNT() AS count,
  SUM(dur) AS time_ns
FROM slice
WHERE category = 'python_function'
GROUP BY name
ORDER BY time_ns DESC, name;
