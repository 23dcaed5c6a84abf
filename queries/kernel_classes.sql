-- GPU work by class: what each kernel, copy and set does.
--
-- Classes: attention, matmul, norm, elementwise, reduce, softmax, sort/top-k, copy, cat, fill, index/scatter/gather,
-- embedding/rotary, cache-write, optimizer, collective, perhaps communication, other; memcpy by direction; memset. The
-- name of a kernel decides, and where no pattern knows it that of the operator that launched the first of its kind. What
-- is of no class then is perhaps communication if most of its kernels run on streams of collectives, where nothing
-- computes, or are called inside a collective (record_param_comms, nccl:all_reduce); else other.
--
-- Example:
--   SELECT class, count, time_ns, time_ratio, names
--   FROM molprof_class_summary
--   ORDER BY time_ns DESC, class;

INCLUDE PERFETTO MODULE molprof.work_totals;

-- The class of every name that ran on the GPU.
CREATE PERFETTO VIEW molprof_work_class(
  -- kernel, gpu_memcpy or gpu_memset.
  category STRING,
  -- Name as recorded.
  name STRING,
  -- Class of the kernel, 'other' where no pattern matches; 'memcpy HtoD' and the like for copies; 'memset'.
  class STRING
) AS
SELECT
  work.category,
  work.name,
  part.class
FROM _molprof_fact_work_class AS part
JOIN _molprof_fact_work_total AS work USING (name_id)
ORDER BY work.category, work.name;

-- GPU work by class, longest total time first.
CREATE PERFETTO VIEW molprof_class_summary(
  -- Class of the work.
  class STRING,
  -- Kernels, copies or sets.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Share of all GPU work's time, 0 to 1; null where no time passed.
  time_ratio DOUBLE,
  -- Distinct names in the class.
  names LONG
) AS
SELECT
  class.class,
  SUM(work.count) AS count,
  SUM(work.time_ns) AS time_ns,
  1.0 * SUM(work.time_ns) / NULLIF(SUM(SUM(work.time_ns)) OVER (), 0) AS time_ratio,
  COUNT(DISTINCT work.name) AS names
FROM molprof_work_total AS work
JOIN molprof_work_class AS class ON class.category = work.category AND class.name = work.name
GROUP BY class.class
ORDER BY time_ns DESC, class.class;
