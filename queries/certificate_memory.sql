-- Memory events: allocations that torch.profiler records with profile_memory.
--
-- Example:
--   SELECT events
--   FROM molprof_memory_event_count
--   ORDER BY events;

-- One row.
CREATE PERFETTO VIEW molprof_memory_event_count(
  -- Events named [memory]; 0 where none is recorded.
  events LONG
) AS
SELECT COUNT() AS events
FROM slice
WHERE name = '[memory]';
