-- GPU counters: power, temperature, activity, memory bandwidth; energy per token.
--
-- PyTorch names a counter with its unit, such as Power (W), and puts those of a GPU into a process GPU N Counters.
--
-- Example:
--   SELECT device, name, unit, count, mean, working_mean
--   FROM molprof_counter_summary
--   ORDER BY device, name;

INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.steps;

-- One row per sample, in order of time.
CREATE PERFETTO TABLE molprof_counter_sample(
  -- Time of the sample, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Device number as text; null for a counter that is not of a GPU.
  device STRING,
  -- Name without the unit: Power, Temperature, SM Active, DRAM BW...
  name STRING,
  -- Unit as recorded: W, C, %...; null where the name has none.
  unit STRING,
  -- The value, in the counter's unit.
  value DOUBLE
) AS
WITH
  named AS (
    SELECT
      counter.id,
      counter.ts,
      counter.value,
      TRIM(track.name) AS full_name,
      process.name AS owner
    FROM counter
    JOIN counter_track AS track ON track.id = counter.track_id
    LEFT JOIN process_counter_track AS own ON own.id = track.id
    LEFT JOIN process USING (upid)
  )
SELECT
  ts,
  IIF(owner GLOB 'GPU [0-9]* Counters', SUBSTR(owner, 5, LENGTH(owner) - 13), NULL) AS device,
  IIF(
    full_name GLOB '?* (*)',
    SUBSTR(full_name, 1, INSTR(full_name, ' (') - 1),
    full_name
  ) AS name,
  IIF(
    full_name GLOB '?* (*)',
    RTRIM(SUBSTR(full_name, INSTR(full_name, ' (') + 2), ')'),
    NULL
  ) AS unit,
  value
FROM named
ORDER BY ts, id;

-- One row per counter of a GPU.
CREATE PERFETTO VIEW molprof_counter_summary(
  -- Device number as text.
  device STRING,
  -- Name without the unit.
  name STRING,
  -- Unit as recorded; null where the name has none.
  unit STRING,
  -- Samples.
  count LONG,
  -- Least value, in the counter's unit.
  least DOUBLE,
  -- Mean of the samples, in the counter's unit.
  mean DOUBLE,
  -- Greatest value, in the counter's unit.
  most DOUBLE,
  -- Samples between the start of the device's first work and the end of its last.
  working_count LONG,
  -- Their mean, in the counter's unit; null where there are none.
  working_mean DOUBLE
) AS
WITH
  working AS (
    SELECT
      device,
      MIN(ts) AS ts,
      MAX(ts_end) AS ts_end
    FROM _molprof_work
    GROUP BY device
  )
SELECT
  sample.device,
  sample.name,
  sample.unit,
  COUNT() AS count,
  MIN(sample.value) AS least,
  AVG(sample.value) AS mean,
  MAX(sample.value) AS most,
  COUNT(working.device) AS working_count,
  AVG(IIF(working.device IS NULL, NULL, sample.value)) AS working_mean
FROM molprof_counter_sample AS sample
LEFT JOIN working ON working.device = sample.device AND sample.ts BETWEEN working.ts AND working.ts_end
WHERE sample.device IS NOT NULL
GROUP BY sample.device, sample.name, sample.unit
ORDER BY sample.device, sample.name;

-- Energy of each device in the recorded steps, from its samples of power. Empty without steps or such samples.
CREATE PERFETTO VIEW molprof_energy(
  -- Device number as text.
  device STRING,
  -- From the start of the first recorded step to the end of the last, ns.
  span_ns DURATION,
  -- Samples of power in that time.
  count LONG,
  -- Their mean, in watts.
  mean_w DOUBLE,
  -- Mean power times the span, in joules: an estimate, better with more samples.
  energy_j DOUBLE,
  -- Tokens of these steps; null where a step does not record them.
  tokens LONG,
  -- Energy over tokens, in joules; null without tokens.
  energy_per_token_j DOUBLE
) AS
WITH
  recorded AS (
    SELECT
      MIN(ts) AS ts,
      MAX(ts + dur) AS ts_end,
      IIF(COUNT(tokens) = COUNT(), SUM(tokens), NULL) AS tokens
    FROM molprof_any_step
  ),
  power AS (
    SELECT
      sample.device,
      recorded.ts_end - recorded.ts AS span_ns,
      COUNT() AS count,
      AVG(sample.value) AS mean_w,
      recorded.tokens
    FROM recorded
    JOIN molprof_counter_sample AS sample ON sample.ts BETWEEN recorded.ts AND recorded.ts_end
    WHERE
      sample.device IS NOT NULL
      AND sample.name = 'Power'
      AND sample.unit = 'W'
    GROUP BY sample.device
  )
SELECT
  device,
  span_ns,
  count,
  mean_w,
  mean_w * span_ns / 1e9 AS energy_j,
  tokens,
  mean_w * span_ns / 1e9 / NULLIF(tokens, 0) AS energy_per_token_j
FROM power
ORDER BY device;
