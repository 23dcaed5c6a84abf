-- The recorded span: from the first operator, call, annotation or GPU work to the end of the last.
--
-- The profiler's span is the event of category Trace, or what the frames say in which it was stopped. Calls of other
-- threads are recorded until the file is written: what comes after that span is no time of the program, nor is what
-- comes before it. GPU work that was launched by its end and goes on is time of the program, until it ends.
--
-- Example:
--   SELECT rank, ts, ts_end
--   FROM molprof_recorded
--   ORDER BY rank;

-- One row per rank; one row where the trace is not of several.
CREATE PERFETTO VIEW molprof_recorded(
  -- Rank; null unless the trace is of several ranks.
  rank LONG,
  -- The first recorded moment, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- The last recorded moment, ns since the trace's earliest event.
  ts_end TIMESTAMP
) AS
SELECT
  rank,
  ts,
  ts_end
FROM _molprof_fact_recorded
ORDER BY rank;
