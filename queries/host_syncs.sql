-- Host syncs: calls that make the CPU wait for the GPU.
--
-- Counted: *Synchronize (device, stream, event, context); copies that return when done (a Memcpy without Async, such as
-- cudaMemcpy or hipMemcpyWithStream); asynchronous copies from the device into pageable host memory, which wait for
-- their end. Not counted: cudaStreamWaitEvent, where a stream waits, and cudaEventQuery, which does not wait.
-- tensor.item() and .tolist() are one host sync each: such a copy, and the cudaStreamSynchronize right after it, inside
-- aten::_local_scalar_dense or aten::copy_.
--
-- Example:
--   SELECT name, operator, count, time_ns, longest_ns
--   FROM molprof_host_sync_summary
--   ORDER BY time_ns DESC, name, operator;

-- One row per host sync, in order of start.
CREATE PERFETTO TABLE molprof_host_sync(
  -- The call's slice.
  id JOINID(slice.id),
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Time in the call, ns: the wait and the call itself; also in the one right after a copy, which waits again.
  dur DURATION,
  -- Name of the runtime or driver function.
  name STRING,
  -- Innermost enclosing operator (cpu_op) of the call; null where there is none.
  operator STRING,
  -- The slice of the innermost phase of its thread in which it started; null where it is in none.
  phase_id JOINID(slice.id)
) AS
SELECT
  call.id,
  call.ts,
  call.dur + IFNULL(rest.dur, 0) AS dur,
  call.name,
  (
    SELECT ancestor.name
    FROM ancestor_slice(call.id) AS ancestor
    WHERE ancestor.category = 'cpu_op'
    ORDER BY ancestor.depth DESC
    LIMIT 1
  ) AS operator,
  sync.phase_id
FROM _molprof_fact_host_sync AS sync
CROSS JOIN slice AS call
LEFT JOIN _molprof_fact_repeated_sync AS again ON again.copy_id = call.id
LEFT JOIN slice AS rest ON rest.id = again.id
WHERE call.id = sync.id AND call.id NOT IN (SELECT id FROM _molprof_fact_repeated_sync)
ORDER BY call.ts, call.id;

-- Host syncs by name and operator, longest total time first.
CREATE PERFETTO VIEW molprof_host_sync_summary(
  name STRING,
  -- Innermost enclosing operator of the calls; null where there is none.
  operator STRING,
  -- Calls.
  count LONG,
  -- Time in the calls, ns.
  time_ns DURATION,
  -- Longest single call, ns.
  longest_ns DURATION
) AS
SELECT
  name,
  operator,
  COUNT() AS count,
  SUM(dur) AS time_ns,
  MAX(dur) AS longest_ns
FROM molprof_host_sync
GROUP BY name, operator
ORDER BY time_ns DESC, name, operator;
