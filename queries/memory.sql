-- Memory that torch allocated and freed (profile_memory): where, what for, and how much lived then.
--
-- An event belongs to all that is open on its thread: phase, module, Python function, operator. What was allocated before
-- the recording began has no allocation here. On a CPU torch counts from there on alone.
--
-- Example:
--   SELECT category, operator, COUNT() AS allocations, SUM(bytes) AS allocated_bytes
--   FROM molprof_memory_event
--   WHERE bytes > 0
--   GROUP BY category, operator
--   ORDER BY allocated_bytes DESC, category, operator;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.call_phases;
INCLUDE PERFETTO MODULE molprof.origin;
INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.steps;

-- Memory events with what they record, each behind the one before it at the same address.
CREATE PERFETTO TABLE _molprof_memory_recorded AS
WITH
  recorded AS (
    SELECT
      slice.id,
      slice.ts,
      track.upid,
      IIF(
        EXTRACT_ARG(slice.arg_set_id, 'args.Device Type') = 0,
        'cpu',
        CAST(EXTRACT_ARG(slice.arg_set_id, 'args.Device Id') AS TEXT)
      ) AS device,
      EXTRACT_ARG(slice.arg_set_id, 'args.Bytes') AS bytes,
      EXTRACT_ARG(slice.arg_set_id, 'args.Addr') AS address,
      EXTRACT_ARG(slice.arg_set_id, 'args.Total Allocated') AS total_bytes,
      EXTRACT_ARG(slice.arg_set_id, 'args.Total Reserved') AS reserved_bytes
    FROM slice
    JOIN _molprof_thread_track AS track ON track.id = slice.track_id
    WHERE slice.category = 'cpu_instant_event' AND slice.name = '[memory]'
  )
SELECT
  *,
  LAG(id) OVER here AS before_id,
  LAG(bytes) OVER here AS before_bytes,
  LEAD(bytes) OVER here AS next_bytes,
  LEAD(ts) OVER here AS next_ts,
  total_bytes - bytes - LAG(total_bytes) OVER (PARTITION BY upid, device ORDER BY ts, id) AS unexplained_bytes
FROM recorded
WINDOW here AS (PARTITION BY upid, device, address ORDER BY ts, id)
ORDER BY id;

-- Ends of layers, and of the models around them. What a layer hands on is freed before the second after it ends; where
-- nothing is trained, what outlives that is kept in a cache.
CREATE PERFETTO TABLE _molprof_memory_layer_end AS
SELECT DISTINCT slice.ts + slice.dur AS ts_end
FROM _molprof_origin_stack AS stack
JOIN _molprof_origin_module AS module USING (path)
JOIN slice USING (id)
WHERE
  stack.kind = 'module'
  AND (module.layer IS NOT NULL OR module.parent_path = '')
  AND NOT EXISTS (SELECT 1 FROM slice WHERE name GLOB 'autograd::engine::*')
ORDER BY ts_end;

-- Each event, in order of time.
CREATE PERFETTO TABLE molprof_memory_event(
  -- The event's slice.
  id JOINID(slice.id),
  -- Time, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Process.
  upid JOINID(process.id),
  -- Device number as text; cpu for memory of the host.
  device STRING,
  -- Bytes allocated; below 0: freed.
  bytes LONG,
  -- Bytes that live then on the device, as recorded.
  total_bytes LONG,
  -- Bytes that torch holds of the device, as recorded; 0 on a CPU.
  reserved_bytes LONG,
  -- By how much the recorded total differs from the one before and this event's bytes; null for the first of a device.
  unexplained_bytes LONG,
  -- Of what is freed, the event that allocated it; null for an allocation, and for one before the recording.
  allocation_id JOINID(slice.id),
  -- When what is allocated is freed, ns; null for a free, and where it lives on.
  freed_ts TIMESTAMP,
  -- cache (keys and values; what outlives the next two layers, where modules are recorded), masks, logits (and what is made of them to choose a token) or activations, by the function,
  -- operator and phase that allocates; null for a free.
  category STRING,
  -- Innermost frame around it; null where there is none.
  frame_id JOINID(slice.id),
  -- Innermost operator around it; null where there is none.
  operator STRING,
  -- Modules and ranges around it, the outermost first, with / between them; null where none is recorded.
  module STRING,
  -- Innermost Python function around it, as file(line): name; null where stacks are not recorded.
  source STRING,
  -- Phase of a captured run in which it is; null outside any.
  phase STRING,
  -- Number of its step; null outside any, and for steps without a number.
  step LONG,
  -- That step, a row of molprof_any_step; null outside any.
  step_id JOINID(slice.id)
) AS
SELECT
  event.id,
  event.ts,
  event.upid,
  event.device,
  event.bytes,
  event.total_bytes,
  event.reserved_bytes,
  event.unexplained_bytes,
  IIF(event.bytes < 0 AND event.before_bytes = -event.bytes, event.before_id, NULL) AS allocation_id,
  IIF(event.bytes > 0 AND event.next_bytes = -event.bytes, event.next_ts, NULL) AS freed_ts,
  CASE
    WHEN event.bytes < 0 THEN NULL
    -- A cache that grows is concatenated anew, and outlives the forward, or the step where phases are not known.
    WHEN
      origin.source GLOB '*cache_utils.py(*'
      OR origin.operator GLOB '*kv_cache*'
      OR origin.operator = 'aten::cat'
      AND IFNULL(origin.phase IN ('prefill', 'forward'), TRUE)
      AND IFNULL(event.next_ts, 9e18) >= IFNULL(phase.ts + phase.dur, step.ts + step.dur)
      OR origin.layer IS NOT NULL
      AND IFNULL(event.next_ts, 9e18) > (
        SELECT MAX(ts_end)
        FROM (SELECT ts_end FROM _molprof_memory_layer_end WHERE ts_end > event.ts ORDER BY ts_end LIMIT 3)
      ) THEN 'cache'
    WHEN
      origin.source GLOB '*mask_utils.py(*'
      OR origin.source GLOB '*masking_utils.py(*'
      OR origin.source GLOB '*): *mask*'
      OR origin.phase GLOB 'mask*' THEN 'masks'
    WHEN origin.phase IN ('processor', 'sampling') THEN 'logits'
    ELSE 'activations'
  END AS category,
  origin.frame_id,
  origin.operator,
  origin.module,
  origin.source,
  origin.phase,
  origin.step,
  origin.step_id
FROM _molprof_memory_recorded AS event
LEFT JOIN _molprof_origin_known AS origin USING (id)
LEFT JOIN molprof_any_step AS step ON step.id = origin.step_id
LEFT JOIN molprof_call_phase AS place ON place.id = event.id
LEFT JOIN molprof_phase AS phase ON phase.id = place.phase_id
ORDER BY event.ts, event.id;
