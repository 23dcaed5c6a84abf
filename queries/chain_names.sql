-- Names of kernels in chains that one library kernel can replace, and of such kernels.
--
-- Example:
--   SELECT chain, form, position, pattern
--   FROM molprof_chain_kernel
--   ORDER BY chain, form, position, pattern;

-- Kernels that do the work of a chain, where they are from, and how they are asked for.
CREATE PERFETTO TABLE molprof_fused_kernel(
  -- Name of the chain.
  chain STRING,
  -- Name of the kernel.
  fused_kernel STRING,
  -- GLOB pattern for the name in lower case.
  pattern STRING,
  -- Library or engine.
  library STRING,
  -- File of its sources, and the option that asks for it, if there is one.
  source STRING,
  -- Platforms that have it: CUDA, ROCm, XPU, a list in text.
  platform STRING
) AS
WITH
  data(chain, fused_kernel, pattern, library, source, platform) AS (
    VALUES
      ('add, RMSNorm', 'fused_add_rms_norm_kernel', '*fused_add_rms_norm_kernel<*', 'vLLM', 'csrc/layernorm_kernels.cu', 'CUDA, ROCm'),
      ('add, RMSNorm', 'FusedAddRMSNormKernel', '*fusedaddrmsnormkernel*', 'FlashInfer, SGLang', 'include/flashinfer/norm.cuh', 'CUDA'),
      ('add, RMSNorm', 'add_rmsnorm_quant_kernel with a residual', '*add_rmsnorm_quant_kernel*elb1elb0*', 'AITER', 'csrc/kernels/rmsnorm_quant_kernels.cu', 'ROCm'),
      ('RMSNorm', 'rms_norm_kernel', '*vllm::rms_norm_kernel<*', 'vLLM', 'csrc/layernorm_kernels.cu', 'CUDA, ROCm'),
      ('RMSNorm', 'RMSNormKernel', '*::rmsnormkernel<*', 'FlashInfer, SGLang', 'include/flashinfer/norm.cuh', 'CUDA'),
      ('RMSNorm', '_rms_norm_forward_kernel', '_rms_norm_forward_kernel*', 'Liger', 'src/liger_kernel/ops/rms_norm.py', 'CUDA, ROCm, XPU'),
      ('RMSNorm, quantization', 'rms_norm_static_fp8_quant_kernel', '*rms_norm_static_fp8_quant_kernel*', 'vLLM', 'csrc/layernorm_quant_kernels.cu: fuse_norm_quant', 'CUDA, ROCm'),
      ('RMSNorm, quantization', 'rms_norm_dynamic_per_token_quant_kernel', '*rms_norm_dynamic_per_token_quant_kernel*', 'vLLM', 'csrc/quantization/fused_kernels: fuse_norm_quant', 'CUDA, ROCm'),
      ('SiLU, product', 'act_and_mul_kernel', '*act_and_mul_kernel*', 'vLLM, SGLang', 'csrc/activation_kernels.cu', 'CUDA, ROCm'),
      ('SiLU, product', 'activation::act_and_mul_kernel', '*::activation::act_and_mul_kernel*', 'FlashInfer', 'include/flashinfer/activation.cuh', 'CUDA'),
      ('SiLU, product', '_swiglu_forward_kernel', '_swiglu_forward_kernel*', 'Liger', 'src/liger_kernel/ops/swiglu.py', 'CUDA, ROCm, XPU'),
      ('SiLU, product, quantization', 'act_and_mul_quant_kernel', '*act_and_mul_quant_kernel*', 'vLLM', 'csrc/quantization/activation_kernels.cu: fuse_act_quant', 'CUDA, ROCm'),
      ('Q norm, K norm, rotary', 'fusedQKNormRopeKernel', '*fusedqknormropekernel*', 'vLLM', 'csrc/fused_qknorm_rope_kernel.cu: enable_qk_norm_rope_fusion', 'CUDA, ROCm'),
      ('Q norm, K norm, rotary', 'fused_qk_norm_rope', '*fusedqknormropekernel*', 'TensorRT-LLM, SGLang', 'cpp/tensorrt_llm/kernels/fusedQKNormRopeKernel.cu', 'CUDA'),
      ('rotary, cache write', '_fused_qk_rope_reshape_and_cache_kernel', '_fused_qk_rope_reshape_and_cache*', 'AITER', 'aiter/ops/triton/fusions/fused_kv_cache.py', 'ROCm'),
      ('rotary, cache write', 'RopeQuantizeAppendPagedKVCacheKernel', '*ropequantizeappendpagedkvcache*', 'FlashInfer', 'include/flashinfer/pos_enc.cuh', 'CUDA'),
      ('all-reduce, RMSNorm', 'allreduce_fusion_kernel_oneshot_lamport', '*allreduce_fusion_kernel*', 'FlashInfer, TensorRT-LLM', 'include/flashinfer/comm/trtllm_allreduce_fusion.cuh: fuse_allreduce_rms (vLLM), --enable-flashinfer-allreduce-fusion (SGLang)', 'CUDA'),
      ('softmax, sampling', 'SamplingFromLogitsKernel', '*samplingfromlogitskernel*', 'FlashInfer', 'include/flashinfer/sampling.cuh', 'CUDA')
  )
SELECT *
FROM data
ORDER BY chain, fused_kernel;

-- The kernels of each chain in their order. A chain that is written in several ways has several forms.
CREATE PERFETTO TABLE molprof_chain_kernel(
  chain STRING,
  -- Number of the form, from 1.
  form LONG,
  -- Position in the chain, from 1.
  position LONG,
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
  chain(chain, form, position, part) AS (
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
  chain.position,
  part.pattern,
  part.unless
FROM chain
JOIN part USING (part)
ORDER BY chain.chain, chain.form, chain.position, part.pattern;
