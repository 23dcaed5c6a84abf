-- The time of each step: up to its end or the start of the next, on its thread or in its process.
--
-- Where all steps of a process are on one thread, the step open in the process counts for all its threads, such as the
-- one that runs backward passes; else the step open on the same thread.
--
-- Example:
--   SELECT upid, tid, COUNT() AS count, SUM(ts_end - ts) AS time_ns
--   FROM molprof_open_step
--   GROUP BY upid, tid
--   ORDER BY upid, tid;

-- One row per step.
CREATE PERFETTO VIEW molprof_open_step(
  -- The step's slice.
  id JOINID(slice.id),
  -- Its process.
  upid JOINID(process.id),
  -- Thread number; null where it counts for all threads of the process.
  tid LONG,
  -- Start, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- End, ns since the trace's earliest event.
  ts_end TIMESTAMP
) AS
SELECT
  id,
  upid,
  tid,
  ts,
  ts_end
FROM _molprof_fact_open_step
ORDER BY ts, id;
