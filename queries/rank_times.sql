-- Times of each rank's devices: computing, exchanging data with other ranks, idle.
--
-- Example:
--   SELECT rank, device, span_ns, compute_ns, exposed_ns, hidden_ns, idle_ns, collectives
--   FROM molprof_rank
--   ORDER BY rank, device;

-- One row per rank and device. span_ns = compute_ns + exposed_ns + idle_ns.
CREATE PERFETTO VIEW molprof_rank(
  -- Rank; null unless the trace is of several ranks.
  rank LONG,
  -- Device, as in molprof.gpu_work.
  device STRING,
  -- From the first start to the last end of its work, ns.
  span_ns DURATION,
  -- Time with a kernel other than a collective, a copy or a set running, ns.
  compute_ns DURATION,
  -- Time with a collective running, ns: waiting for other ranks and moving data.
  communication_ns DURATION,
  -- Part of communication_ns in which nothing else ran, ns.
  exposed_ns DURATION,
  -- The rest of communication_ns, hidden behind other work, ns.
  hidden_ns DURATION,
  -- Time in which nothing ran, ns.
  idle_ns DURATION,
  -- Kernels, collectives among them.
  kernels LONG,
  -- Sum of their times, ns; concurrent kernels count each.
  kernel_time_ns DURATION,
  -- Kernels whose call is not recorded.
  kernels_without_call LONG,
  -- Collectives.
  collectives LONG
) AS
SELECT
  rank,
  device,
  span_ns,
  compute_ns,
  communication_ns,
  busy_ns - compute_ns AS exposed_ns,
  communication_ns + compute_ns - busy_ns AS hidden_ns,
  span_ns - busy_ns AS idle_ns,
  kernels,
  kernel_time_ns,
  kernels_without_call,
  collectives
FROM _molprof_fact_rank_device
ORDER BY rank, device;
