-- Times of each rank's devices: computing, exchanging data with other ranks, idle.
--
-- Example:
--   SELECT rank, device, span_ns, compute_ns, exposed_ns, hidden_ns, idle_ns, collectives
--   FROM molprof_rank
--   ORDER BY rank, device;

INCLUDE PERFETTO MODULE molprof.collectives;
INCLUDE PERFETTO MODULE molprof.gpu_work;

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
WITH
  work AS (
    SELECT
      work.id,
      work.rank,
      work.device,
      work.ts,
      work.ts + work.dur AS ts_end,
      work.category = 'kernel' AS is_kernel,
      work.call_id IS NULL AS is_alone,
      collective.id IS NOT NULL AS is_collective
    FROM molprof_gpu_work AS work
    LEFT JOIN molprof_collective AS collective ON collective.id = work.id
  ),
  -- What each piece adds to the union of all work, and to that of its kind: its part after all earlier ends.
  part AS (
    SELECT
      *,
      _molprof_added!(ts, ts_end, earlier) AS of_all,
      _molprof_added!(ts, ts_end, earlier_of_kind) AS of_kind
    FROM work
    WINDOW
      earlier AS (
        PARTITION BY device
        ORDER BY ts, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ),
      earlier_of_kind AS (
        PARTITION BY device, is_collective
        ORDER BY ts, id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      )
  ),
  total AS (
    SELECT
      rank,
      device,
      MAX(ts_end) - MIN(ts) AS span_ns,
      SUM(of_all) AS busy_ns,
      IFNULL(SUM(of_kind) FILTER (WHERE NOT is_collective), 0) AS compute_ns,
      IFNULL(SUM(of_kind) FILTER (WHERE is_collective), 0) AS communication_ns,
      COUNT() FILTER (WHERE is_kernel) AS kernels,
      IFNULL(SUM(ts_end - ts) FILTER (WHERE is_kernel), 0) AS kernel_time_ns,
      COUNT() FILTER (WHERE is_kernel AND is_alone) AS kernels_without_call,
      COUNT() FILTER (WHERE is_collective) AS collectives
    FROM part
    GROUP BY rank, device
  )
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
FROM total
ORDER BY rank, device;
