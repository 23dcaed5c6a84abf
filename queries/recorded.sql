-- The recorded span: from the first operator, call, annotation or GPU work to the end of the last.
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
