-- Times of the host and the GPU that contradict each other.
--
-- GPU work cannot begin before its call, nor end after a device sync that waited for it.
--
-- Example:
--   SELECT early_work, earliest_ns, late_syncs, latest_ns
--   FROM molprof_clock
--   ORDER BY early_work;

-- Device syncs with the last GPU work that they waited for: of launches that ended between the sync before and this one.
-- Only of processes whose work is on one device: a device sync waits for the current one, whose number is not recorded.
CREATE PERFETTO VIEW molprof_device_sync(
  -- The call's slice.
  id JOINID(slice.id),
  -- From the end of that work to the end of the sync, ns; below 0 where the clocks disagree.
  slack DURATION
) AS
SELECT
  id,
  slack
FROM _molprof_fact_device_sync
ORDER BY id;

-- Contradictions, one row.
CREATE PERFETTO VIEW molprof_clock(
  -- GPU work that begins before its call does.
  early_work LONG,
  -- The largest time by which it does, ns; 0 where none does.
  earliest_ns DURATION,
  -- Device syncs that end before GPU work that they waited for.
  late_syncs LONG,
  -- The largest time by which they do, ns; 0 where none does.
  latest_ns DURATION,
  -- Shortest time from a call's start to its work's start, ns: the GPU's clock is ahead by no more; null without calls.
  least_delay_ns DURATION,
  -- Shortest time from the end of work to the end of a device sync that waited for it, ns: the GPU's clock is behind by
  -- no more; null without such a sync.
  least_slack_ns DURATION,
  -- Mean time from a call's start to its work's start, ns; null without calls.
  mean_delay_ns DOUBLE
) AS
SELECT
  early_work,
  earliest_ns,
  late_syncs,
  latest_ns,
  least_delay_ns,
  least_slack_ns,
  mean_delay_ns
FROM _molprof_fact_clock;
