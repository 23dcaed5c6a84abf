-- Chains of kernels that one kernel of a known library does, and such kernels that already run.
--
-- A chain is found where kernels of these names, and nothing else, follow each other on a stream. Nothing is matched by
-- likeness: a kernel whose name is not in the table is in no chain. That the operands are the same ones is not recorded.
-- Of chains inside each other the longest counts. A softmax between two products is the finding unfused_attention.
--
-- Example:
--   SELECT chain, count, time_ns, saved_ns, fused_count, fused_kernel, library
--   FROM molprof_fused_chain
--   ORDER BY saved_ns DESC, chain;

INCLUDE PERFETTO MODULE molprof.gpu_work;
INCLUDE PERFETTO MODULE molprof.work_totals;

-- Kernels that do the work of a chain, where they are from, and how they are asked for.
CREATE PERFETTO TABLE molprof_fused_kernel(
  -- What the chain does.
  chain STRING,
  -- Name of the kernel.
  fused_kernel STRING,
  -- GLOB pattern for the name in lower case.
  pattern STRING,
  -- Library or engine.
  library STRING,
  -- File of its sources, and the option that asks for it, if there is one.
  source STRING
) AS
WITH
  data(chain, fused_kernel, pattern, library, source) AS (
    VALUES
      ('add, RMSNorm', 'fused_add_rms_norm_kernel', '*fused_add_rms_norm_kernel<*', 'vLLM', 'csrc/layernorm_kernels.cu'),
      ('add, RMSNorm', 'FusedAddRMSNormKernel', '*fusedaddrmsnormkernel*', 'FlashInfer, SGLang', 'include/flashinfer/norm.cuh'),
      ('add, RMSNorm', 'add_rmsnorm_quant_kernel with a residual', '*add_rmsnorm_quant_kernel*elb1elb0*', 'AITER', 'csrc/kernels/rmsnorm_quant_kernels.cu'),
      ('RMSNorm', 'rms_norm_kernel', '*vllm::rms_norm_kernel<*', 'vLLM', 'csrc/layernorm_kernels.cu'),
      ('RMSNorm', 'RMSNormKernel', '*::rmsnormkernel<*', 'FlashInfer, SGLang', 'include/flashinfer/norm.cuh'),
      ('RMSNorm', '_rms_norm_forward_kernel', '_rms_norm_forward_kernel*', 'Liger', 'src/liger_kernel/ops/rms_norm.py'),
      ('RMSNorm, quantization', 'rms_norm_static_fp8_quant_kernel', '*rms_norm_static_fp8_quant_kernel*', 'vLLM', 'csrc/layernorm_quant_kernels.cu: fuse_norm_quant'),
      ('RMSNorm, quantization', 'rms_norm_dynamic_per_token_quant_kernel', '*rms_norm_dynamic_per_token_quant_kernel*', 'vLLM', 'csrc/quantization/fused_kernels: fuse_norm_quant'),
      ('SiLU, product', 'act_and_mul_kernel', '*act_and_mul_kernel*', 'vLLM, FlashInfer, SGLang', 'csrc/activation_kernels.cu'),
      ('SiLU, product', '_swiglu_forward_kernel', '_swiglu_forward_kernel*', 'Liger', 'src/liger_kernel/ops/swiglu.py'),
      ('SiLU, product, quantization', 'act_and_mul_quant_kernel', '*act_and_mul_quant_kernel*', 'vLLM', 'csrc/quantization/activation_kernels.cu: fuse_act_quant'),
      ('Q norm, K norm, rotary', 'fusedQKNormRopeKernel', '*fusedqknormropekernel*', 'vLLM, TensorRT-LLM, SGLang', 'csrc/fused_qknorm_rope_kernel.cu: enable_qk_norm_rope_fusion'),
      ('rotary, cache write', '_fused_qk_rope_reshape_and_cache_kernel', '_fused_qk_rope_reshape_and_cache*', 'AITER', 'aiter/ops/triton/fusions/fused_kv_cache.py'),
      ('rotary, cache write', 'RopeQuantizeAppendPagedKVCacheKernel', '*ropequantizeappendpagedkvcache*', 'FlashInfer', 'include/flashinfer/pos_enc.cuh'),
      ('all-reduce, RMSNorm', 'allreduce_fusion_kernel_oneshot_lamport', '*allreduce_fusion_kernel*', 'FlashInfer, TensorRT-LLM', 'include/flashinfer/comm/trtllm_allreduce_fusion.cuh: fuse_allreduce_rms (vLLM), --enable-flashinfer-allreduce-fusion (SGLang)'),
      ('softmax, sampling', 'SamplingFromLogitsKernel', '*samplingfromlogitskernel*', 'FlashInfer', 'include/flashinfer/sampling.cuh')
  )
SELECT *
FROM data
ORDER BY chain, fused_kernel;

-- The kernels of each chain in their order. A chain that is written in several ways has several forms.
CREATE PERFETTO TABLE molprof_chain_kernel(
  chain STRING,
  -- Number of the form, from 1.
  form LONG,
  -- Place in the chain, from 1.
  place LONG,
  -- GLOB pattern for the name in lower case.
  pattern STRING,
  -- GLOB pattern of names that it does not take; '' for none.
  unless STRING
) AS
WITH
  part(part, pattern, unless) AS (
    VALUES
      ('add', '*cudafunctor_add<*', ''),
      ('add scalar', '*cudafunctoronself_add<*', ''),
      ('mul', '*binaryfunctor<*mulfunctor<*', ''),
      ('pow', '*pow_tensor_scalar_kernel_impl<*', ''),
      ('mean', '*reduce_kernel<*meanops<*', ''),
      ('rsqrt', '*rsqrt_kernel_cuda*', ''),
      ('copy', '*copy_kernel*', ''),
      ('silu', '*::silu_kernel*', ''),
      ('silu and mul', '*act_and_mul_kernel*', '*quant*'),
      ('norm', '*rms_norm_kernel<*', '*fused_add*'),
      ('norm', '*::rmsnormkernel<*', ''),
      ('norm', '*rmsnorm2dfwd*', ''),
      ('norm', '*add_rmsnorm_quant_kernel*elb0elb0*', ''),
      ('add and norm', '*fused_add_rms_norm_kernel<*', ''),
      ('add and norm', '*fusedaddrmsnormkernel*', ''),
      ('add and norm', '*add_rmsnorm_quant_kernel*elb1elb0*', ''),
      ('quant', '*scaled_fp8_quant_kernel*', ''),
      ('quant', '*per_token_group_quant*', ''),
      ('rotary', '*rotary_embedding_kernel<*', ''),
      ('cache write', '*reshape_and_cache*', '*rope*'),
      ('cache write', '*store_kvcache<*', ''),
      ('all-reduce', '*all_reduce_kernel<*', ''),
      ('all-reduce', '*cross_device_reduce_*', ''),
      ('all-reduce', '*nccl*allreduce*', ''),
      ('copy on the device', 'memcpy dtod*', ''),
      ('softmax', '*softmax*forward*', ''),
      ('sampling', '*multinomial*', ''),
      ('exponential', '*distribution_elementwise*exponential_kernel*', ''),
      ('div', '*binaryfunctor<*divfunctor<*', ''),
      ('argmax', '*reduce_kernel<*argmaxops<*', '')
  ),
  chain(chain, form, place, part) AS (
    VALUES
      ('add, RMSNorm', 1, 1, 'add'),
      ('add, RMSNorm', 1, 2, 'norm'),
      ('RMSNorm', 1, 1, 'pow'),
      ('RMSNorm', 1, 2, 'mean'),
      ('RMSNorm', 1, 3, 'add scalar'),
      ('RMSNorm', 1, 4, 'rsqrt'),
      ('RMSNorm', 1, 5, 'mul'),
      ('RMSNorm', 1, 6, 'mul'),
      ('RMSNorm', 2, 1, 'copy'),
      ('RMSNorm', 2, 2, 'pow'),
      ('RMSNorm', 2, 3, 'mean'),
      ('RMSNorm', 2, 4, 'add scalar'),
      ('RMSNorm', 2, 5, 'rsqrt'),
      ('RMSNorm', 2, 6, 'mul'),
      ('RMSNorm', 2, 7, 'copy'),
      ('RMSNorm', 2, 8, 'mul'),
      ('RMSNorm, quantization', 1, 1, 'norm'),
      ('RMSNorm, quantization', 1, 2, 'quant'),
      ('RMSNorm, quantization', 2, 1, 'add and norm'),
      ('RMSNorm, quantization', 2, 2, 'quant'),
      ('SiLU, product', 1, 1, 'silu'),
      ('SiLU, product', 1, 2, 'mul'),
      ('SiLU, product, quantization', 1, 1, 'silu and mul'),
      ('SiLU, product, quantization', 1, 2, 'quant'),
      ('Q norm, K norm, rotary', 1, 1, 'norm'),
      ('Q norm, K norm, rotary', 1, 2, 'norm'),
      ('Q norm, K norm, rotary', 1, 3, 'rotary'),
      ('Q norm, K norm, rotary', 2, 1, 'norm'),
      ('Q norm, K norm, rotary', 2, 2, 'copy'),
      ('Q norm, K norm, rotary', 2, 3, 'norm'),
      ('Q norm, K norm, rotary', 2, 4, 'rotary'),
      ('rotary, cache write', 1, 1, 'rotary'),
      ('rotary, cache write', 1, 2, 'cache write'),
      ('all-reduce, RMSNorm', 1, 1, 'all-reduce'),
      ('all-reduce, RMSNorm', 1, 2, 'add and norm'),
      ('all-reduce, RMSNorm', 2, 1, 'all-reduce'),
      ('all-reduce, RMSNorm', 2, 2, 'norm'),
      ('all-reduce, RMSNorm', 3, 1, 'copy on the device'),
      ('all-reduce, RMSNorm', 3, 2, 'all-reduce'),
      ('all-reduce, RMSNorm', 3, 3, 'copy on the device'),
      ('all-reduce, RMSNorm', 3, 4, 'add and norm'),
      ('softmax, sampling', 1, 1, 'softmax'),
      ('softmax, sampling', 1, 2, 'sampling'),
      ('softmax, sampling', 2, 1, 'softmax'),
      ('softmax, sampling', 2, 2, 'exponential'),
      ('softmax, sampling', 2, 3, 'div'),
      ('softmax, sampling', 2, 4, 'argmax')
  )
SELECT
  chain.chain,
  chain.form,
  chain.place,
  part.pattern,
  part.unless
FROM chain
JOIN part USING (part)
ORDER BY chain.chain, chain.form, chain.place, part.pattern;

-- Names of the trace in lower case.
CREATE PERFETTO TABLE _molprof_lower_name AS
SELECT
  category,
  name,
  count,
  time_ns,
  LOWER(name) AS lower_name
FROM molprof_work_total;

-- Names of the trace by form and place, of forms that have names for all of their places. Key: a number of both, which
-- the engine finds at once. A name has one number, or several.
CREATE PERFETTO TABLE _molprof_chain_name AS
WITH
  found AS MATERIALIZED (
    SELECT DISTINCT
      kernel.chain,
      kernel.form,
      kernel.place,
      work.name
    FROM _molprof_lower_name AS work
    JOIN molprof_chain_kernel AS kernel
      ON work.lower_name GLOB kernel.pattern AND NOT work.lower_name GLOB kernel.unless
  ),
  whole AS (
    SELECT
      chain,
      form,
      COUNT(DISTINCT place) AS places
    FROM found
    GROUP BY chain, form
    INTERSECT
    SELECT
      chain,
      form,
      MAX(place)
    FROM molprof_chain_kernel
    GROUP BY chain, form
  ),
  numbered AS (
    SELECT
      first.stack_id,
      IFNULL(slice.name, '(no name)') AS name
    FROM (
      SELECT stack_id, MIN(id) AS id
      FROM _molprof_numbered_slice
      WHERE category IN ('kernel', 'gpu_memcpy', 'gpu_memset') AND EXISTS(SELECT 1 FROM whole)
      GROUP BY stack_id
    ) AS first
    CROSS JOIN slice
    WHERE slice.id = first.id
  )
SELECT
  16 * DENSE_RANK() OVER (ORDER BY whole.chain, whole.form) + found.place AS key,
  whole.chain,
  whole.places,
  found.place,
  numbered.stack_id
FROM found
JOIN whole USING (chain, form)
JOIN numbered USING (name)
ORDER BY key, numbered.stack_id;

-- Work in the order of each stream, numbered; none where no chain has all of its names.
CREATE PERFETTO TABLE _molprof_chain_work AS
SELECT
  work.device,
  work.stream,
  work.id,
  work.ts,
  work.dur,
  slice.stack_id
FROM _molprof_work AS work
CROSS JOIN _molprof_numbered_slice AS slice
WHERE slice.id = work.id AND EXISTS(SELECT 1 FROM _molprof_chain_name)
ORDER BY work.device, work.stream, work.ts, work.id;

-- All forms that are found, by the number of their first row in the table above: those all of whose places are found. The
-- signs keep the engine from searching for two columns.
CREATE PERFETTO TABLE _molprof_chain_match AS
SELECT
  first.chain,
  begin._auto_id AS start,
  first.places,
  begin.dur + SUM(work.dur) AS time_ns,
  MAX(begin.dur, MAX(work.dur)) AS longest_ns
-- In this order the few names are searched for in all work, and most that begin no chain end with the second kernel.
FROM _molprof_chain_name AS first
CROSS JOIN _molprof_chain_work AS begin
CROSS JOIN _molprof_chain_work AS second
CROSS JOIN _molprof_chain_name AS next
CROSS JOIN _molprof_chain_name AS named
CROSS JOIN _molprof_chain_work AS work
WHERE
  first.place = 1
  AND begin.stack_id = first.stack_id
  AND second._auto_id = begin._auto_id + 1
  AND next.key = first.key + 1
  AND +next.stack_id = second.stack_id
  AND named.key BETWEEN first.key + 1 AND first.key + first.places - 1
  AND work._auto_id = begin._auto_id + named.place - 1
  AND +work.stack_id = named.stack_id
  AND +work.device IS begin.device
  AND +work.stream IS begin.stream
GROUP BY first.key, begin._auto_id
HAVING COUNT() = first.places - 1
ORDER BY start, first.places DESC;

-- Each chain of the trace, in order of device, stream and start.
CREATE PERFETTO TABLE molprof_chain(
  -- What it does.
  chain STRING,
  -- Its first kernel.
  id JOINID(slice.id),
  -- Start of that, ns since the trace's earliest event.
  ts TIMESTAMP,
  -- Kernels in it.
  kernels LONG,
  -- Sum of their times, ns.
  time_ns DURATION,
  -- Most that one kernel in their place could save, ns: all but the longest of them.
  saved_ns DURATION
) AS
SELECT
  match.chain,
  work.id,
  work.ts,
  match.places AS kernels,
  match.time_ns,
  match.time_ns - match.longest_ns AS saved_ns
FROM _molprof_chain_match AS match
JOIN _molprof_chain_work AS work ON work._auto_id = match.start
WHERE NOT EXISTS(
  SELECT 1
  FROM _molprof_chain_match AS longer
  WHERE
    longer.start BETWEEN match.start - 8 AND match.start
    AND longer.places > match.places
    AND longer.start + longer.places >= match.start + match.places
)
ORDER BY match.start, match.chain;

-- Chains of the trace, and their fused kernels that already run, the most that could be saved first. Chains without either
-- have no row.
CREATE PERFETTO VIEW molprof_fused_chain(
  -- What it does.
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
  match AS (
    SELECT
      chain,
      COUNT() AS count,
      SUM(time_ns) AS time_ns,
      SUM(saved_ns) AS saved_ns
    FROM molprof_chain
    GROUP BY chain
  ),
  fused AS (
    SELECT
      chain,
      SUM(count) AS count,
      SUM(time_ns) AS time_ns
    FROM (
      SELECT DISTINCT kernel.chain, work.category, work.name, work.count, work.time_ns
      FROM molprof_fused_kernel AS kernel
      JOIN _molprof_lower_name AS work ON work.lower_name GLOB kernel.pattern
    )
    GROUP BY chain
  ),
  known AS (
    SELECT
      chain,
      GROUP_CONCAT(fused_kernel, '; ') AS fused_kernel,
      GROUP_CONCAT(library, '; ') AS library,
      GROUP_CONCAT(source, '; ') AS source
    FROM molprof_fused_kernel
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
LEFT JOIN match USING (chain)
LEFT JOIN fused USING (chain)
WHERE match.count > 0 OR fused.count > 0
ORDER BY saved_ns DESC, known.chain;
