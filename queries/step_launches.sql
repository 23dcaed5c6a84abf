-- Launches, kernels and GPU time per step and per token, for the steps of any engine.
--
-- GPU work belongs to the step of its launch, whenever it ran; a graph's work to the graph launch.
--
-- Example:
--   SELECT source, kind, steps, tokens, graph_launches, launches_per_step, launches_per_token, kernels_per_token
--   FROM molprof_step_launch_summary
--   ORDER BY source IS NULL, source, kind;

INCLUDE PERFETTO MODULE molprof.annotations;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.host_syncs;
INCLUDE PERFETTO MODULE molprof.launches;
INCLUDE PERFETTO MODULE molprof.operators;
INCLUDE PERFETTO MODULE molprof.step_placement;
INCLUDE PERFETTO MODULE molprof.steps;

-- One row per step, in order of start, then one for what is outside any step (step_id null). Empty for a trace without
-- steps. Without recorded GPU calls and GPU work, their figures are null.
CREATE PERFETTO TABLE molprof_step_launch(
  -- The step's slice; null for what is outside any step.
  step_id JOINID(slice.id),
  -- Calls that start a kernel; null where not recorded.
  launches LONG,
  -- Calls that start a graph; null where not recorded.
  graph_launches LONG,
  -- Kernels that these calls started, those of graphs included; null where not recorded.
  kernels LONG,
  -- Time of kernels, copies and sets whose call is in the step, ns; concurrent work counts each; null where not
  -- recorded.
  gpu_ns DURATION,
  -- Host syncs; null where not recorded.
  syncs LONG,
  -- Time in host syncs, ns; null where not recorded.
  sync_ns DURATION,
  -- Leaf operators; null where GPU calls or work are recorded.
  leaf_operators LONG
) AS
WITH
  recorded AS (
    SELECT EXISTS(SELECT 1 FROM _molprof_call) OR EXISTS(SELECT 1 FROM _molprof_work) AS gpu
  ),
  launched AS MATERIALIZED (
    SELECT * FROM _molprof_lane_counts!(_molprof_step_lane, _molprof_launch_call)
  ),
  graph_launched AS MATERIALIZED (
    SELECT * FROM _molprof_lane_counts!(_molprof_step_lane, _molprof_graph_call)
  ),
  -- Calls of each step in order, so that the engine adds them up without sorting.
  called AS MATERIALIZED (
    SELECT
      place.step_id,
      SUM(started.kernels) AS kernels,
      SUM(started.gpu_ns) AS gpu_ns
    FROM molprof_call_step AS place
    CROSS JOIN _molprof_started AS started
    WHERE started.call_id = place.id
    GROUP BY place.step_id
  ),
  waited AS MATERIALIZED (
    SELECT
      place.step_id,
      COUNT() AS syncs,
      SUM(wait.dur) AS sync_ns
    FROM molprof_host_sync AS wait
    JOIN molprof_call_step AS place ON place.id = wait.id
    GROUP BY place.step_id
  ),
  counted AS (
    SELECT
      step_id,
      COUNT() AS operators
    FROM molprof_call_step
    GROUP BY step_id
    LIMIT IIF(EXISTS(SELECT 1 FROM _molprof_call), 0, -1)
  ),
  fact AS (
    SELECT step_id, 0 AS launches, 0 AS graph_launches, kernels, gpu_ns, 0 AS syncs, 0 AS sync_ns, 0 AS leaf_operators
    FROM called
    UNION ALL
    SELECT id, count, 0, 0, 0, 0, 0, 0
    FROM launched
    UNION ALL
    SELECT id, 0, count, 0, 0, 0, 0, 0
    FROM graph_launched
    UNION ALL
    SELECT step_id, 0, 0, 0, 0, syncs, sync_ns, 0
    FROM waited
    UNION ALL
    -- What is outside any step: all less what is in steps.
    SELECT
      NULL,
      (SELECT COUNT() FROM _molprof_launch_call) - (SELECT IFNULL(SUM(count), 0) FROM launched),
      (SELECT COUNT() FROM _molprof_graph_call)
      - (SELECT IFNULL(SUM(count), 0) FROM graph_launched),
      (SELECT COUNT() FROM _molprof_work WHERE category = 'kernel') - (SELECT IFNULL(SUM(kernels), 0) FROM called),
      (SELECT IFNULL(SUM(dur), 0) FROM _molprof_work) - (SELECT IFNULL(SUM(gpu_ns), 0) FROM called),
      (SELECT COUNT() FROM molprof_host_sync) - (SELECT IFNULL(SUM(syncs), 0) FROM waited),
      (SELECT IFNULL(SUM(dur), 0) FROM molprof_host_sync) - (SELECT IFNULL(SUM(sync_ns), 0) FROM waited),
      (SELECT COUNT() FROM _molprof_counted_operator) - (SELECT COUNT() FROM molprof_call_step)
    WHERE
      -- A trace without steps has no rows, so nothing is added up.
      (SELECT COUNT() FROM molprof_any_step) > 0
    UNION ALL
    -- Without calls, steps hold leaf operators alone.
    SELECT step_id, 0, 0, 0, 0, 0, 0, operators
    FROM counted
    UNION ALL
    -- A step that did nothing has a row too.
    SELECT id, 0, 0, 0, 0, 0, 0, 0
    FROM molprof_any_step
  ),
  total AS (
    SELECT
      step_id,
      SUM(launches) AS launches,
      SUM(graph_launches) AS graph_launches,
      SUM(kernels) AS kernels,
      SUM(gpu_ns) AS gpu_ns,
      SUM(syncs) AS syncs,
      SUM(sync_ns) AS sync_ns,
      SUM(leaf_operators) AS leaf_operators
    FROM fact
    WHERE EXISTS(SELECT 1 FROM molprof_any_step)
    GROUP BY step_id
  )
SELECT
  total.step_id,
  IIF(recorded.gpu, total.launches, NULL) AS launches,
  IIF(recorded.gpu, total.graph_launches, NULL) AS graph_launches,
  IIF(recorded.gpu, total.kernels, NULL) AS kernels,
  IIF(recorded.gpu, total.gpu_ns, NULL) AS gpu_ns,
  IIF(recorded.gpu, total.syncs, NULL) AS syncs,
  IIF(recorded.gpu, total.sync_ns, NULL) AS sync_ns,
  IIF(recorded.gpu, NULL, total.leaf_operators) AS leaf_operators
FROM total
CROSS JOIN recorded
LEFT JOIN molprof_any_step AS step ON step.id = total.step_id
ORDER BY step.ts IS NULL, step.ts, step.id;

-- The same by source and kind of step; what is outside any step last.
CREATE PERFETTO VIEW molprof_step_launch_summary(
  -- molprof, vllm, sglang, profiler or program; null for what is outside any step.
  source STRING,
  -- Kind of the steps, as in molprof.steps; null for profiler and program, and as above.
  kind STRING,
  -- Steps; 0 for what is outside any.
  steps LONG,
  -- Generated tokens; null where the number of any step is not known.
  tokens LONG,
  -- Prompt tokens read; null where not known.
  prompt_tokens LONG,
  -- Time of the steps on the host, profiler's cost included, ns; null as for source.
  host_ns DURATION,
  launches LONG,
  graph_launches LONG,
  -- Kernels, those of graphs included; null where not recorded.
  kernels LONG,
  -- Time of the GPU work that they started, ns; null where not recorded.
  gpu_ns DURATION,
  syncs LONG,
  leaf_operators LONG,
  -- Launches per step; null outside steps and where not recorded.
  launches_per_step DOUBLE,
  -- Kernels per step; null as above.
  kernels_per_step DOUBLE,
  -- Launches per generated token; null as above, and where there are none or their number is not known.
  launches_per_token DOUBLE,
  -- Kernels per generated token; null as above.
  kernels_per_token DOUBLE
) AS
SELECT
  step.source,
  step.kind,
  COUNT(step.id) AS steps,
  IIF(COUNT(step.tokens) = COUNT(step.id), SUM(step.tokens), NULL) AS tokens,
  SUM(step.prompt_tokens) AS prompt_tokens,
  SUM(step.dur) AS host_ns,
  SUM(fact.launches) AS launches,
  SUM(fact.graph_launches) AS graph_launches,
  SUM(fact.kernels) AS kernels,
  SUM(fact.gpu_ns) AS gpu_ns,
  SUM(fact.syncs) AS syncs,
  SUM(fact.leaf_operators) AS leaf_operators,
  1.0 * SUM(fact.launches) / NULLIF(COUNT(step.id), 0) AS launches_per_step,
  1.0 * SUM(fact.kernels) / NULLIF(COUNT(step.id), 0) AS kernels_per_step,
  IIF(COUNT(step.tokens) = COUNT(step.id), 1.0 * SUM(fact.launches) / NULLIF(SUM(step.tokens), 0), NULL)
    AS launches_per_token,
  IIF(COUNT(step.tokens) = COUNT(step.id), 1.0 * SUM(fact.kernels) / NULLIF(SUM(step.tokens), 0), NULL)
    AS kernels_per_token
FROM molprof_step_launch AS fact
LEFT JOIN molprof_any_step AS step ON step.id = fact.step_id
GROUP BY step.source, step.kind
ORDER BY step.source IS NULL, step.source, step.kind;
