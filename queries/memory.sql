-- Memory that torch allocated and freed (profile_memory): location, category, and bytes in use.
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

INCLUDE PERFETTO MODULE molprof.phases;
INCLUDE PERFETTO MODULE molprof.steps;

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
  -- Innermost enclosing frame; null where there is none.
  frame_id JOINID(slice.id),
  -- Innermost enclosing operator; null where there is none.
  operator STRING,
  -- Enclosing modules and ranges, the outermost first, with / between them; null where none is recorded.
  module STRING,
  -- Innermost enclosing Python function, as file(line): name; null where stacks are not recorded.
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
  slice.ts,
  event.upid,
  event.device,
  event.bytes,
  event.total_bytes,
  event.reserved_bytes,
  event.unexplained_bytes,
  event.allocation_id,
  event.freed_ts,
  CASE
    WHEN event.bytes < 0 THEN NULL
    -- A cache that grows is concatenated anew, and outlives the forward, or the step where phases are not known.
    WHEN
      path.source GLOB '*cache_utils.py(*'
      OR path.operator GLOB '*kv_cache*'
      OR path.operator = 'aten::cat'
      AND IFNULL(phase.phase IN ('prefill', 'forward'), TRUE)
      AND IFNULL(event.next_ts, 9e18) >= IFNULL(phase.ts + phase.dur, step.ts + step.dur)
      OR path.layer IS NOT NULL
      -- What a layer hands on is freed before the second after it ends; where nothing is trained, what outlives that is
      -- kept in a cache.
      AND IFNULL(event.next_ts, 9e18) > event.layers_end_ts THEN 'cache'
    WHEN
      path.source GLOB '*mask_utils.py(*'
      OR path.source GLOB '*masking_utils.py(*'
      OR path.source GLOB '*): *mask*'
      OR phase.phase GLOB 'mask*' THEN 'masks'
    WHEN phase.phase IN ('processor', 'sampling') THEN 'logits'
    ELSE 'activations'
  END AS category,
  event.frame_id,
  path.operator,
  path.module,
  path.source,
  phase.phase,
  step.number AS step,
  step.id AS step_id
FROM _molprof_fact_memory AS event
JOIN slice USING (id)
LEFT JOIN _molprof_fact_frame_path AS path ON path.path_id = event.path_id
LEFT JOIN molprof_phase AS phase ON phase.id = event.phase_id
LEFT JOIN molprof_any_step AS step ON step.id = event.step_id
ORDER BY slice.ts, event.id;
