-- Kinds of kernels by name, across classes: elementwise ones, and those that can write a mask.
--
-- A kernel has one class, as in molprof.kernel_classes, and any number of kinds. torch makes direct copies, fills and
-- indexed writes with elementwise kernels, so most of these are elementwise by name and have a class of their own.
--
-- Example:
--   SELECT kind, name
--   FROM molprof_kernel_kind
--   ORDER BY kind, name;

INCLUDE PERFETTO MODULE molprof.work_totals;

-- Patterns of the names of each kind.
CREATE PERFETTO TABLE molprof_kind_pattern(
  -- elementwise, or masking: bitmask, index, fill, put, scatter, where.
  kind STRING,
  -- GLOB pattern for the name in lower case.
  pattern STRING,
  -- GLOB pattern of names that are not of the kind; '' for none.
  unless STRING
) AS
WITH
  data(kind, pattern, unless) AS (
    VALUES
      ('elementwise', '*elementwise*', ''),
      -- Of XGrammar, vLLM, SGLang and TensorRT-LLM.
      ('masking', '*bitmask*', ''),
      -- arange and the like number their elements, and mask nothing.
      ('masking', '*index*', '*with_index*'),
      ('masking', '*fill*', ''),
      -- Not output, input or compute.
      ('masking', '*[:_]put*', ''),
      ('masking', '*scatter*', ''),
      ('masking', '*where*', '')
  )
SELECT *
FROM data
ORDER BY kind, pattern;

-- The kinds of every kernel of the trace; a kernel of no kind has no row.
CREATE PERFETTO VIEW molprof_kernel_kind(
  -- elementwise or masking.
  kind STRING,
  -- Name as recorded.
  name STRING
) AS
WITH
  lowered AS MATERIALIZED (
    SELECT
      name,
      LOWER(name) AS lower_name
    FROM molprof_work_total
    WHERE category = 'kernel'
  )
SELECT DISTINCT
  pattern.kind,
  lowered.name
FROM lowered
JOIN molprof_kind_pattern AS pattern ON lower_name GLOB pattern.pattern AND NOT lower_name GLOB pattern.unless
ORDER BY pattern.kind, lowered.name;
