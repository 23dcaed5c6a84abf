-- Kinds of steps of which only some have GPU work: means over all of them are too low.
--
-- Example:
--   SELECT source, kind, steps, steps_without_work, kernels
--   FROM molprof_uneven_step
--   ORDER BY source, kind;

INCLUDE PERFETTO MODULE molprof.step_launches;
INCLUDE PERFETTO MODULE molprof.steps;

-- Kinds of step of which some have GPU work and some have none. An idle step of an engine has none by its name.
CREATE PERFETTO VIEW molprof_uneven_step(
  -- Whose steps they are, as in molprof.steps.
  source STRING,
  -- Kind of the steps, as in molprof.steps; null for profiler.
  kind STRING,
  -- Steps.
  steps LONG,
  -- Steps whose calls started no GPU work.
  steps_without_work LONG,
  -- Of these, steps that made launches or graph launches.
  steps_with_launches_only LONG,
  -- Kernels of all steps.
  kernels LONG,
  -- Time of the GPU work of all steps, ns.
  gpu_ns DURATION,
  -- Most kernels of a step.
  most_kernels LONG,
  -- Most GPU time of a step, ns.
  most_gpu_ns DURATION
) AS
SELECT
  step.source,
  step.kind,
  COUNT() AS steps,
  SUM(fact.kernels = 0 AND fact.gpu_ns = 0) AS steps_without_work,
  SUM(fact.kernels = 0 AND fact.gpu_ns = 0 AND fact.launches + fact.graph_launches > 0) AS steps_with_launches_only,
  SUM(fact.kernels) AS kernels,
  SUM(fact.gpu_ns) AS gpu_ns,
  MAX(fact.kernels) AS most_kernels,
  MAX(fact.gpu_ns) AS most_gpu_ns
FROM molprof_step_launch AS fact
JOIN molprof_any_step AS step ON step.id = fact.step_id
WHERE fact.kernels IS NOT NULL AND IFNULL(step.kind, '') != 'idle'
GROUP BY step.source, step.kind
HAVING SUM(fact.kernels = 0 AND fact.gpu_ns = 0) BETWEEN 1 AND COUNT() - 1
ORDER BY step.source, step.kind;
