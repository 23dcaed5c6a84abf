-- Operations that are short and frequent: where a launch costs more than the work.
--
-- Example (below_ns=100000, more_than=1000):
--   SELECT category, name, count, time_ns, mean_ns
--   FROM molprof_small_operations($below_ns, $more_than)
--   ORDER BY count DESC, category, name;

INCLUDE PERFETTO MODULE molprof.operation_totals;

-- GPU work, operators and calls below a mean time and above a count, most first.
CREATE PERFETTO FUNCTION molprof_small_operations(
  -- Mean time below this, ns; 100000 is a usual choice.
  below_ns DURATION,
  -- Count above this; 1000 is a usual choice.
  more_than LONG
)
RETURNS TABLE(
  -- Category as recorded: kernel, cpu_op, cuda_runtime...
  category STRING,
  -- Name as recorded.
  name STRING,
  -- Runs.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Mean time, ns.
  mean_ns DOUBLE
) AS
SELECT
  *,
  1.0 * time_ns / count AS mean_ns
FROM molprof_operation_total
WHERE 1.0 * time_ns / count < $below_ns AND count > $more_than
ORDER BY count DESC, category, name;
