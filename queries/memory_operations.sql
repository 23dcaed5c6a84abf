-- Memory copies and sets by name. Copies made by kernels are in molprof.kernel_classes.
--
-- Example:
--   SELECT name, count, time_ns, bytes, bytes_per_second
--   FROM molprof_memory_operation
--   ORDER BY time_ns DESC, name;

INCLUDE PERFETTO MODULE molprof.gpu_work;

-- Memory copies and sets by direction, longest total time first.
CREATE PERFETTO VIEW molprof_memory_operation(
  -- The recorded name up to its first " (": Memcpy HtoD, Memcpy DtoH, Memcpy DtoD, Memset...
  name STRING,
  -- Operations.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Bytes moved or set; operations without recorded bytes count 0.
  bytes LONG,
  -- Mean rate, bytes per second; null where no time passed.
  bytes_per_second DOUBLE
) AS
SELECT
  _molprof_copy_name!(name) AS name,
  COUNT() AS count,
  SUM(dur) AS time_ns,
  IFNULL(SUM(bytes), 0) AS bytes,
  1e9 * IFNULL(SUM(bytes), 0) / NULLIF(SUM(dur), 0) AS bytes_per_second
FROM molprof_gpu_work
WHERE category != 'kernel'
GROUP BY 1
ORDER BY time_ns DESC, 1;
