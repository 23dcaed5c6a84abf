-- Launches, kernels and GPU time per step and per token, for the steps of any engine.
--
-- GPU work belongs to the step of its launch, whenever it ran; a graph's work to the graph launch.
--
-- Example:
--   SELECT source, kind, steps, tokens, graph_launches, launches_per_step, launches_per_token, kernels_per_token
--   FROM molprof_step_launch_summary
--   ORDER BY source IS NULL, source, kind;

INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.steps;

-- One row per step, in order of start, then one for time outside steps (step_id null). Empty for a trace without
-- steps. Without recorded GPU calls and GPU work, their figures are null.
CREATE PERFETTO TABLE molprof_step_launch(
  -- The step's slice; null for time outside steps.
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
  -- From the start of the first of that work to the end of the last, ns; null outside steps and where there is none.
  gpu_span_ns DURATION,
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
  )
SELECT
  total.step_id,
  IIF(recorded.gpu, total.launches, NULL) AS launches,
  IIF(recorded.gpu, total.graph_launches, NULL) AS graph_launches,
  IIF(recorded.gpu, total.kernels, NULL) AS kernels,
  IIF(recorded.gpu, total.gpu_ns, NULL) AS gpu_ns,
  span.ts_end - span.ts AS gpu_span_ns,
  IIF(recorded.gpu, total.syncs, NULL) AS syncs,
  IIF(recorded.gpu, total.sync_ns, NULL) AS sync_ns,
  IIF(recorded.gpu, NULL, total.leaf_operators) AS leaf_operators
FROM _molprof_fact_step_sum AS total
CROSS JOIN recorded
LEFT JOIN _molprof_fact_step_span AS span ON span.step_id = total.step_id
LEFT JOIN molprof_any_step AS step ON step.id = total.step_id
ORDER BY step.ts IS NULL, step.ts, step.id;

-- The same by source and kind of step; time outside steps last.
CREATE PERFETTO VIEW molprof_step_launch_summary(
  -- molprof, vllm, sglang, profiler or program; null for time outside steps.
  source STRING,
  -- Kind of the steps, as in molprof.steps; null for profiler and program, and as above.
  kind STRING,
  -- Steps; 0 for time outside steps.
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
