-- Marks of the phases of programs: Python functions, scopes (annotations), by program and phase. A new version of a
-- program is a few rows of this table.
--
-- Example:
--   SELECT program, phase, kind, pattern
--   FROM molprof_phase_mark
--   ORDER BY program, phase, kind, pattern;

-- The marks. Functions go by the end of their file's path and their name, never by a line. Those of vLLM's first model
-- runner (V1) and of transformers (5.23) were tried on traces; those of vLLM's new runner (V2, which has no scopes),
-- of TensorRT-LLM and most of SGLang's were found in the sources. Of marks of one phase inside each other, the outermost
-- counts; the forward of a draft is the draft's.
CREATE PERFETTO TABLE molprof_phase_mark(
  -- vllm, sglang, tensorrt_llm or transformers.
  program STRING,
  -- The part of the program. Of vllm, sglang and tensorrt_llm scheduler or worker, which may run in processes of their
  -- own: where a trace has no function of a part, phases that only functions mark are not recorded. Of transformers
  -- generate, continuous (batching), model (in loops of the user's own too), xgrammar, training or any.
  part STRING,
  -- Name of the phase. Phases may contain others: mask_fill those of each request. Null for calls of single logits
  -- processors, which count within the phase processor.
  phase STRING,
  -- function, module (both of category python_function) or scope (user_annotation).
  kind STRING,
  -- GLOB pattern of the slice's name; of a function such as vllm/v1/worker/gpu_model_runner.py(3620): _model_forward.
  pattern STRING
) AS
WITH
  -- A scope has no path. Paths and names of scopes and modules are GLOB patterns.
  data(program, part, phase, path, name) AS (
    VALUES
      ('vllm', 'scheduler', 'schedule', 'vllm/v1/core/sched/*scheduler.py', 'schedule'),
      ('vllm', 'scheduler', 'mask_fill', 'vllm/v1/structured_output/__init__.py', 'grammar_bitmask'),
      ('vllm', 'scheduler', 'mask_fill_per_request', 'vllm/v1/structured_output/backend_*.py', 'fill_bitmask'),
      ('vllm', 'scheduler', 'mask_accept_per_request', 'vllm/v1/structured_output/backend_*.py', 'accept_tokens'),
      ('vllm', 'scheduler', 'grammar_compile', 'vllm/v1/structured_output/backend_*.py', 'compile_grammar'),
      ('vllm', 'scheduler', 'update_from_output', 'vllm/v1/core/sched/*scheduler.py', 'update_from_output'),
      ('vllm', 'worker', 'scheduler_wait', 'vllm/distributed/device_communicators/shm_broadcast.py', 'dequeue'),
      ('vllm', 'worker', 'prepare', '', 'gpu_model_runner: preprocess'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/*model_runner.py', '_prepare_inputs'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/*model_runner.py', '_build_attention_metadata'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/*model_runner.py', '_preprocess'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/gpu/model_runner.py', 'add_requests'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/gpu/model_runner.py', 'update_requests'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/gpu/model_runner.py', 'prepare_inputs'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/gpu/model_runner.py', 'prepare_attn'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/gpu/model_states/*.py', 'prepare_inputs'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/gpu/model_states/*.py', 'prepare_attn'),
      ('vllm', 'worker', 'forward', '', 'gpu_model_runner: forward'),
      ('vllm', 'worker', 'forward', 'vllm/v1/worker/*model_runner.py', '_model_forward'),
      ('vllm', 'worker', 'forward', 'vllm/v1/worker/gpu/*.py', 'run_fullgraph'),
      ('vllm', 'worker', 'forward', 'vllm/v1/worker/gpu/*.py', 'run_pw_graph'),
      ('vllm', 'worker', 'forward', 'vllm/v1/worker/gpu/ubatch_utils.py', 'run'),
      -- V2 without graphs calls the model itself.
      ('vllm', 'worker', 'forward', 'vllm/model_executor/models/*.py', 'forward'),
      ('vllm', 'worker', 'postprocess', '', 'gpu_model_runner: postprocess'),
      ('vllm', 'worker', 'postprocess', 'vllm/model_executor/models/*.py', 'compute_logits'),
      ('vllm', 'worker', 'postprocess', 'vllm/v1/worker/gpu/model_runner.py', 'postprocess_sampled'),
      ('vllm', 'worker', 'mask_apply', 'vllm/v1/structured_output/utils.py', 'apply_grammar_bitmask'),
      ('vllm', 'worker', 'mask_apply', 'vllm/v1/worker/gpu/structured_outputs.py', 'apply_grammar_bitmask'),
      ('vllm', 'worker', 'sample', '', 'gpu_model_runner: sample'),
      ('vllm', 'worker', 'sample', 'vllm/v1/worker/*model_runner.py', '_sample'),
      ('vllm', 'worker', 'sample', 'vllm/v1/worker/gpu/model_runner.py', 'sample'),
      ('vllm', 'worker', 'processors', 'vllm/v1/sample/sampler.py', 'apply_logits_processors'),
      ('vllm', 'worker', 'processors', 'vllm/v1/sample/logits_processor/*.py', 'update_state'),
      ('vllm', 'worker', 'processors', 'vllm/v1/worker/gpu/sample/sampler.py', 'apply_sampling_params'),
      ('vllm', 'worker', 'draft', '', 'gpu_model_runner: draft'),
      ('vllm', 'worker', 'draft', 'vllm/v1/worker/*model_runner.py', 'propose_draft_token_ids'),
      ('vllm', 'worker', 'draft', 'vllm/v1/worker/gpu/spec_decode/*.py', 'propose'),
      ('vllm', 'worker', 'bookkeep', '', 'gpu_model_runner: bookkeep'),
      ('vllm', 'worker', 'bookkeep', 'vllm/v1/worker/*model_runner.py', '_bookkeeping_sync'),
      ('vllm', 'worker', 'bookkeep', 'vllm/v1/worker/gpu/async_utils.py', 'get_output'),
      ('sglang', 'scheduler', 'schedule', '', 'scheduler.get_next_batch_to_run'),
      ('sglang', 'scheduler', 'schedule', 'sglang/srt/managers/scheduler.py', 'get_next_batch_to_run'),
      ('sglang', 'scheduler', 'grammar_compile', 'sglang/srt/constrained/*backend.py', 'dispatch_ebnf'),
      ('sglang', 'scheduler', 'grammar_compile', 'sglang/srt/constrained/*backend.py', 'dispatch_json'),
      ('sglang', 'scheduler', 'grammar_compile', 'sglang/srt/constrained/*backend.py', 'dispatch_regex'),
      ('sglang', 'scheduler', 'grammar_compile', 'sglang/srt/constrained/*backend.py', 'dispatch_structural_tag'),
      ('sglang', 'scheduler', 'grammar_lookup', 'sglang/srt/constrained/*backend.py', 'get_cached_or_future_value'),
      ('sglang', 'scheduler', 'grammar_wait', 'sglang/srt/constrained/grammar_manager.py', 'get_ready_grammar_requests'),
      ('sglang', 'scheduler', 'grammar_wait', 'sglang/srt/managers/scheduler.py', 'move_ready_grammar_requests'),
      ('sglang', 'scheduler', 'mask_accept_per_request', 'sglang/srt/constrained/*backend.py', 'accept_token'),
      ('sglang', 'scheduler', 'update_from_output', '', 'scheduler.process_batch_result'),
      ('sglang', 'scheduler', 'update_from_output', 'sglang/srt/managers/*.py', 'process_batch_result'),
      ('sglang', 'worker', 'forward', '', 'step[[][A-Z]*]'),
      ('sglang', 'worker', 'forward', 'sglang/srt/model_executor/model_runner.py', 'forward'),
      ('sglang', 'worker', 'mask_fill', 'sglang/srt/sampling/sampling_batch_info.py', 'update_regex_vocab_mask'),
      ('sglang', 'worker', 'mask_fill_per_request', 'sglang/srt/constrained/*backend.py', 'fill_vocab_mask'),
      ('sglang', 'worker', 'mask_copy', 'sglang/srt/constrained/*backend.py', 'move_vocab_mask'),
      ('sglang', 'worker', 'mask_apply', 'sglang/srt/constrained/*backend.py', 'apply_vocab_mask'),
      ('sglang', 'worker', 'sample', 'sglang/srt/model_executor/model_runner.py', 'sample'),
      ('sglang', 'worker', 'processors', 'sglang/srt/layers/sampler.py', 'apply_custom_logit_processor'),
      ('sglang', 'worker', 'draft', 'sglang/srt/speculative/*worker*.py', 'draft'),
      ('sglang', 'worker', 'draft', 'sglang/srt/speculative/*worker*.py', 'forward_draft_extend'),
      ('sglang', 'worker', 'draft', 'sglang/srt/speculative/*worker*.py', 'forward_draft_extend_after_decode'),
      ('sglang', 'worker', 'verify', 'sglang/srt/speculative/*worker*.py', 'verify'),
      ('tensorrt_llm', 'scheduler', 'schedule', 'tensorrt_llm/_torch/pyexecutor/py_executor.py', '_prepare_and_schedule_batch'),
      ('tensorrt_llm', 'scheduler', 'update_from_output', 'tensorrt_llm/_torch/pyexecutor/py_executor.py', '_update_requests'),
      ('tensorrt_llm', 'worker', 'prepare', 'tensorrt_llm/_torch/pyexecutor/model_engine.py', '_prepare_inputs'),
      ('tensorrt_llm', 'worker', 'forward', 'tensorrt_llm/_torch/pyexecutor/py_executor.py', '_forward_step'),
      ('tensorrt_llm', 'worker', 'sample', 'tensorrt_llm/_torch/pyexecutor/py_executor.py', '_sample_async'),
      -- Where graphs hold the masks, they are filled by host functions in a thread of CUDA's.
      ('tensorrt_llm', 'worker', 'mask_fill', 'tensorrt_llm/_torch/pyexecutor/guided_decoder.py', '_build'),
      ('tensorrt_llm', 'worker', 'mask_fill_per_request', 'tensorrt_llm/_torch/pyexecutor/grammar_matcher.py', 'fill_next_token_bitmask'),
      ('tensorrt_llm', 'worker', 'mask_accept_per_request', 'tensorrt_llm/_torch/pyexecutor/grammar_matcher.py', 'accept_token'),
      ('tensorrt_llm', 'worker', 'mask_copy', 'tensorrt_llm/_torch/pyexecutor/guided_decoder.py', '_copy_bitmask'),
      ('tensorrt_llm', 'worker', 'mask_apply', 'tensorrt_llm/_torch/pyexecutor/guided_decoder.py', '_apply_bitmask'),
      ('tensorrt_llm', 'worker', 'grammar_compile', 'tensorrt_llm/_torch/pyexecutor/grammar_matcher.py', 'create'),
      ('transformers', 'generate', 'generate', 'transformers/generation/utils.py', 'generate'),
      -- Inside the span from the start of generate to the first forward.
      ('transformers', 'generate', 'setup', 'transformers/generation/utils.py', '_get_logits_processor'),
      ('transformers', 'generate', 'draft', 'transformers/generation/candidate_generator.py', 'get_candidates'),
      -- Models have their own.
      ('transformers', 'generate', 'prepare', '.py', 'prepare_inputs_for_generation'),
      -- The end of the span in which a token is chosen, and the stopping criteria evaluated.
      ('transformers', 'generate', 'sampling', 'transformers/generation/stopping_criteria.py', '__call__'),
      -- Inside the span from there to the next step.
      ('transformers', 'generate', 'bookkeeping', 'transformers/generation/utils.py', '_has_unfinished_sequences'),
      -- The end of a forward where no module marks it, as in a compiled one.
      ('transformers', 'generate', 'forward', 'transformers/generation/utils.py', '_update_model_kwargs_for_generation'),
      ('transformers', 'continuous', 'prepare', 'transformers/*/continuous_batching/*.py', 'prepare_next_batch'),
      ('transformers', 'continuous', 'schedule', 'transformers/*/continuous_batching/*.py', 'schedule_batch'),
      ('transformers', 'continuous', 'forward', 'transformers/*/continuous_batching/*.py', '_model_forward'),
      ('transformers', 'continuous', 'processor', 'transformers/*/continuous_batching/cb_logits_processors.py', '__call__'),
      ('transformers', 'continuous', 'sampling', 'transformers/*/continuous_batching/*.py', '_sample'),
      ('transformers', 'continuous', 'output', 'transformers/*/continuous_batching/*.py', 'retrieve_device_outputs'),
      ('transformers', 'continuous', 'bookkeeping', 'transformers/*/continuous_batching/*.py', 'update_batch'),
      ('transformers', 'continuous', 'output_per_request', 'transformers/*/continuous_batching/requests.py', 'update_and_check_completion'),
      ('transformers', 'continuous', 'output_per_request', 'transformers/*/continuous_batching/requests.py', 'update_with_token'),
      ('transformers', 'model', 'forward', 'nn.Module', '*ForCausalLM_[0-9]*'),
      ('transformers', 'model', 'forward', 'nn.Module', '*ForConditionalGeneration_[0-9]*'),
      ('transformers', 'model', 'forward', 'nn.Module', '*LMHeadModel_[0-9]*'),
      ('transformers', 'model', 'processor', 'transformers/generation/logits_process.py', '__call__'),
      ('transformers', 'model', 'processor', 'xgrammar/contrib/hf.py', '__call__'),
      ('transformers', 'xgrammar', 'mask_fill_per_request', 'xgrammar/matcher.py', 'fill_next_token_bitmask'),
      ('transformers', 'xgrammar', 'mask_accept_per_request', 'xgrammar/matcher.py', 'accept_token'),
      ('transformers', 'xgrammar', 'mask_apply', 'xgrammar/matcher.py', 'apply_token_bitmask_inplace'),
      ('transformers', 'xgrammar', 'grammar_compile', 'xgrammar/compiler.py', 'compile_builtin_json_grammar'),
      ('transformers', 'xgrammar', 'grammar_compile', 'xgrammar/compiler.py', 'compile_grammar'),
      ('transformers', 'xgrammar', 'grammar_compile', 'xgrammar/compiler.py', 'compile_json_schema'),
      ('transformers', 'xgrammar', 'grammar_compile', 'xgrammar/compiler.py', 'compile_lark'),
      ('transformers', 'xgrammar', 'grammar_compile', 'xgrammar/compiler.py', 'compile_regex'),
      ('transformers', 'xgrammar', 'grammar_compile', 'xgrammar/compiler.py', 'compile_structural_tag'),
      ('transformers', 'training', 'backward', 'torch/_tensor.py', 'backward'),
      ('transformers', 'training', 'backward', 'torch/autograd/__init__.py', 'backward'),
      ('transformers', 'any', NULL, '.py', '__call__')
  )
SELECT
  program,
  part,
  phase,
  CASE path WHEN '' THEN 'scope' WHEN 'nn.Module' THEN 'module' ELSE 'function' END AS kind,
  CASE path
    WHEN '' THEN name
    WHEN 'nn.Module' THEN 'nn.Module: ' || name
    ELSE '*' || path || '([0-9]*): ' || name
  END AS pattern
FROM data
ORDER BY program, phase, kind, pattern;

-- Files in which a call is none of a logits processor, though the list of processors may call it.
CREATE PERFETTO TABLE molprof_unmarked_file(
  -- GLOB pattern of a path with its line.
  pattern STRING
) AS
WITH
  data(path) AS (
    VALUES
      ('torch/*.py'),
      ('*-packages/torch/*.py'),
      ('enum.py'),
      ('*/enum.py')
  )
SELECT path || '([0-9]*)' AS pattern
FROM data
ORDER BY path;
