-- Chains of kernels that one library kernel can replace, and such kernels that already run.
--
-- A chain is found where kernels of these names, and nothing else, follow each other on a stream. Nothing is matched by
-- likeness: a kernel whose name is not in the table is in no chain. That the operands are the same ones is not recorded.
-- Of nested chains the longest counts. A softmax between two products is the finding unfused_attention.
-- Only kernels for the platform of the trace count, which the names of its calls show; all where it has none.
--
-- Example:
--   SELECT chain, count, time_ns, saved_ns, fused_count, fused_kernel, library
--   FROM molprof_fused_chain
--   ORDER BY saved_ns DESC, chain;

INCLUDE PERFETTO MODULE molprof.chain_names;
INCLUDE PERFETTO MODULE molprof.gpu_calls;
INCLUDE PERFETTO MODULE molprof.work_totals;

-- Programming interface of the devices; null where no calls show it.
CREATE PERFETTO VIEW _molprof_platform AS
SELECT
  CASE
    WHEN EXISTS(SELECT 1 FROM _molprof_call WHERE name GLOB 'hip*') THEN 'ROCm'
    WHEN EXISTS(SELECT 1 FROM _molprof_call WHERE name GLOB 'cu[dA-Z]*') THEN 'CUDA'
    WHEN EXISTS(SELECT 1 FROM _molprof_call WHERE name GLOB 'ur[A-Z]*' OR name GLOB 'ze[A-Z]*') THEN 'XPU'
  END AS platform;

-- Chains of the trace, and their fused kernels that already run, the most that could be saved first. Chains without either
-- have no row.
CREATE PERFETTO VIEW molprof_fused_chain(
  -- Name of the chain.
  chain STRING,
  -- Times that its kernels follow each other.
  count LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Most that one kernel in place of each could save, ns.
  saved_ns DURATION,
  -- Share of all GPU work's time that its kernels take, 0 to 1; null where no time passed.
  time_ratio DOUBLE,
  -- Kernels of the trace that already do all of it.
  fused_count LONG,
  -- Their time, ns.
  fused_ns DURATION,
  -- Kernels that do it, a list in text.
  fused_kernel STRING,
  -- Their libraries.
  library STRING,
  -- Their sources.
  source STRING
) AS
WITH
  known AS (
    SELECT
      chain,
      GROUP_CONCAT(fused_kernel, '; ') AS fused_kernel,
      GROUP_CONCAT(library, '; ') AS library,
      GROUP_CONCAT(source, '; ') AS source
    FROM molprof_fused_kernel
    JOIN _molprof_platform AS here ON IFNULL(INSTR(molprof_fused_kernel.platform, here.platform) > 0, TRUE)
    GROUP BY chain
  )
SELECT
  known.chain,
  IFNULL(match.count, 0) AS count,
  IFNULL(match.time_ns, 0) AS time_ns,
  IFNULL(match.saved_ns, 0) AS saved_ns,
  1.0 * IFNULL(match.time_ns, 0) / NULLIF((SELECT SUM(time_ns) FROM molprof_work_total), 0) AS time_ratio,
  IFNULL(fused.count, 0) AS fused_count,
  IFNULL(fused.time_ns, 0) AS fused_ns,
  known.fused_kernel,
  known.library,
  known.source
FROM known
LEFT JOIN _molprof_fact_chain_sum AS match USING (chain)
LEFT JOIN _molprof_fact_fused_sum AS fused USING (chain)
WHERE match.count > 0 OR fused.count > 0
ORDER BY saved_ns DESC, known.chain;
