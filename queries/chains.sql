-- Each chain of kernels that one library kernel can replace (molprof.fused_chains has their sums).
--
-- Example:
--   SELECT chain, ts, kernels, time_ns, saved_ns
--   FROM molprof_chain
--   ORDER BY ts, id
--   LIMIT 20;

-- Each chain of the trace, in order of device, stream and start.
CREATE PERFETTO VIEW molprof_chain(
  -- Name of the chain.
  chain STRING,
  -- Its first kernel.
  id JOINID(slice.id),
  -- Start of that, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Kernels in it.
  kernels LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Most that one kernel in their place could save, ns: all but the longest of them.
  saved_ns DURATION
) AS
SELECT
  chain,
  id,
  ts,
  kernels,
  time_ns,
  saved_ns
FROM _molprof_fact_chain;
