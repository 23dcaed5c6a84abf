-- What marks the phases of programs: Python functions, scopes (annotations), by program and phase. A new version of a
-- program is a few rows of this table.
--
-- Example:
--   SELECT program, phase, kind, pattern
--   FROM molprof_phase_mark
--   ORDER BY program, phase, kind, pattern;

-- The marks. Functions go by the end of their file's path and their name, never by a line. Those of vLLM's first model
-- runner (V1) were tried on traces; those of its new one (V2, which has no scopes) and most of SGLang's were found in
-- the sources. Of marks of one phase inside each other, the outermost counts.
CREATE PERFETTO TABLE molprof_phase_mark(
  -- vllm or sglang.
  program STRING,
  -- The part of the program, which may run in a process of its own: scheduler or worker. Where a trace has no function
  -- of a part, phases that only functions mark are not recorded.
  part STRING,
  -- Name of the phase. Phases may contain others: mask_fill those of each request.
  phase STRING,
  -- function (category python_function) or scope (user_annotation).
  kind STRING,
  -- GLOB pattern of the slice's name; of a function such as vllm/v1/worker/gpu_model_runner.py(3620): _model_forward.
  pattern STRING
) AS
WITH
  -- A scope has no path. Paths and names of scopes are GLOB patterns.
  data(program, part, phase, path, name) AS (
    VALUES
      ('vllm', 'scheduler', 'schedule', 'vllm/v1/core/sched/*scheduler.py', 'schedule'),
      ('vllm', 'scheduler', 'mask_fill', 'vllm/v1/structured_output/__init__.py', 'grammar_bitmask'),
      ('vllm', 'scheduler', 'mask_fill_per_request', 'vllm/v1/structured_output/backend_*.py', 'fill_bitmask'),
      ('vllm', 'scheduler', 'mask_accept_per_request', 'vllm/v1/structured_output/backend_*.py', 'accept_tokens'),
      ('vllm', 'scheduler', 'grammar_compile', 'vllm/v1/structured_output/backend_*.py', 'compile_grammar'),
      ('vllm', 'scheduler', 'update_from_output', 'vllm/v1/core/sched/*scheduler.py', 'update_from_output'),
      ('vllm', 'worker', 'prepare', '', 'gpu_model_runner: preprocess'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/*model_runner.py', '_prepare_inputs'),
      ('vllm', 'worker', 'prepare', 'vllm/v1/worker/gpu/model_runner.py', 'prepare_inputs'),
      ('vllm', 'worker', 'forward', '', 'gpu_model_runner: forward'),
      ('vllm', 'worker', 'forward', 'vllm/v1/worker/*model_runner.py', '_model_forward'),
      ('vllm', 'worker', 'forward', 'vllm/v1/worker/gpu/*.py', 'run_fullgraph'),
      ('vllm', 'worker', 'forward', 'vllm/v1/worker/gpu/*.py', 'run_pw_graph'),
      ('vllm', 'worker', 'postprocess', '', 'gpu_model_runner: postprocess'),
      ('vllm', 'worker', 'postprocess', 'vllm/v1/worker/gpu/model_runner.py', 'postprocess_sampled'),
      ('vllm', 'worker', 'mask_apply', 'vllm/v1/structured_output/utils.py', 'apply_grammar_bitmask'),
      ('vllm', 'worker', 'mask_apply', 'vllm/v1/worker/gpu/structured_outputs.py', 'apply_grammar_bitmask'),
      ('vllm', 'worker', 'sample', '', 'gpu_model_runner: sample'),
      ('vllm', 'worker', 'sample', 'vllm/v1/worker/*model_runner.py', '_sample'),
      ('vllm', 'worker', 'sample', 'vllm/v1/worker/gpu/model_runner.py', 'sample'),
      ('vllm', 'worker', 'draft', '', 'gpu_model_runner: draft'),
      ('vllm', 'worker', 'draft', 'vllm/v1/worker/*model_runner.py', 'propose_draft_token_ids'),
      ('vllm', 'worker', 'draft', 'vllm/v1/worker/gpu/spec_decode/*.py', 'propose'),
      ('vllm', 'worker', 'bookkeep', '', 'gpu_model_runner: bookkeep'),
      ('vllm', 'worker', 'bookkeep', 'vllm/v1/worker/*model_runner.py', '_bookkeeping_sync'),
      ('sglang', 'scheduler', 'schedule', '', 'scheduler.get_next_batch_to_run'),
      ('sglang', 'scheduler', 'schedule', 'sglang/srt/managers/scheduler.py', 'get_next_batch_to_run'),
      ('sglang', 'scheduler', 'grammar_compile', 'sglang/srt/constrained/*backend.py', 'dispatch_ebnf'),
      ('sglang', 'scheduler', 'grammar_compile', 'sglang/srt/constrained/*backend.py', 'dispatch_json'),
      ('sglang', 'scheduler', 'grammar_compile', 'sglang/srt/constrained/*backend.py', 'dispatch_regex'),
      ('sglang', 'scheduler', 'grammar_compile', 'sglang/srt/constrained/*backend.py', 'dispatch_structural_tag'),
      ('sglang', 'scheduler', 'mask_accept_per_request', 'sglang/srt/constrained/*backend.py', 'accept_token'),
      ('sglang', 'scheduler', 'update_from_output', '', 'scheduler.process_batch_result'),
      ('sglang', 'scheduler', 'update_from_output', 'sglang/srt/managers/*.py', 'process_batch_result'),
      ('sglang', 'worker', 'forward', '', 'step[[][A-Z]*]'),
      ('sglang', 'worker', 'forward', 'sglang/srt/model_executor/model_runner.py', 'forward'),
      ('sglang', 'worker', 'mask_fill', 'sglang/srt/sampling/sampling_batch_info.py', 'update_regex_vocab_mask'),
      ('sglang', 'worker', 'mask_fill_per_request', 'sglang/srt/constrained/*backend.py', 'fill_vocab_mask'),
      ('sglang', 'worker', 'mask_apply', 'sglang/srt/constrained/*backend.py', 'apply_vocab_mask'),
      ('sglang', 'worker', 'sample', 'sglang/srt/model_executor/model_runner.py', 'sample'),
      ('sglang', 'worker', 'draft', 'sglang/srt/speculative/*worker*.py', 'draft'),
      ('sglang', 'worker', 'draft', 'sglang/srt/speculative/*worker*.py', 'forward_draft_extend'),
      ('sglang', 'worker', 'draft', 'sglang/srt/speculative/*worker*.py', 'forward_draft_extend_after_decode'),
      ('sglang', 'worker', 'verify', 'sglang/srt/speculative/*worker*.py', 'verify')
  )
SELECT
  program,
  part,
  phase,
  IIF(path = '', 'scope', 'function') AS kind,
  IIF(path = '', name, '*' || path || '([0-9]*): ' || name) AS pattern
FROM data
ORDER BY program, phase, kind, pattern;
