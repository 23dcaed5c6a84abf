-- Attention: its kernels and its operators, whose names show the backend.
--
-- Example:
--   SELECT kind, name, count, time_ns, time_ratio
--   FROM molprof_attention
--   ORDER BY kind, time_ns DESC, name;

INCLUDE PERFETTO MODULE molprof.host_totals;
INCLUDE PERFETTO MODULE molprof.top_operations;

-- Attention kernels and operators by name, longest total time first. Do not add up rows of kind operator: their times
-- include the operators that they call.
CREATE PERFETTO VIEW molprof_attention(
  -- kernel or operator.
  kind STRING,
  -- Name as recorded.
  name STRING,
  -- Kernels or calls.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Share of all GPU work's time, 0 to 1; null for operators, and where no time passed.
  time_ratio DOUBLE
) AS
SELECT
  'kernel' AS kind,
  name,
  count,
  time_ns,
  time_ratio
FROM molprof_top_gpu_operation
WHERE class = 'attention'
UNION ALL
SELECT
  'operator' AS kind,
  name,
  count,
  time_ns,
  NULL AS time_ratio
FROM molprof_attention_operator
ORDER BY kind, time_ns DESC, name;
