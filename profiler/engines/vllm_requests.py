"""Requests of the OpenAI API as vLLM's server would run them, for its engine in this process."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any

from molprof.common.errors import UsageError
from molprof.common.settings import TABLE, CaptureSettings
from molprof.profiler.molecules.bodies import constraints_of, most_tokens, without_constraints
from molprof.profiler.molecules.prompts import Prompt

_PROTOCOLS = "vllm.entrypoints.openai.{}.protocol"


def sampling_of(prompt: Prompt, settings: CaptureSettings, max_new_tokens: int, row: int, eos: Collection[int]) -> Any:
    """vLLM's `SamplingParams` of a request, without its constraint in a run without a processor.

    Calls of required tools are constrained as vLLM's parsers of tools do it that have no format of their own. Raises
    what vLLM raises for a request that it refuses, and UsageError.
    """
    assert prompt.body is not None
    names, body = constraints_of(prompt.body), prompt.body
    if settings.processor is None or settings.processor == TABLE:
        body = without_constraints(body)
    if settings.processor == TABLE and names:
        if prompt.constraint is None:
            hint = "another --processor, or requests without it"
            raise UsageError(f"line {prompt.line} has {names[0]}, of which no table can be made", hint)
        extra = {f"table_{prompt.constraint.kind}": prompt.constraint.text}
        body = {**body, "vllm_xargs": {**(body.get("vllm_xargs") or {}), **extra}}
    elif settings.processor is not None and "vllm_xargs" in names:
        raise UsageError(f"line {prompt.line} asks for molprof's table by vllm_xargs", hint="--processor table")
    kind, name = (
        ("chat_completion", "ChatCompletionRequest") if "messages" in body else ("completion", "CompletionRequest")
    )
    request = getattr(importlib.import_module(_PROTOCOLS.format(kind)), name)(**body)
    if getattr(request, "tools", None):
        schema = importlib.import_module("vllm.tool_parsers.utils").get_json_schema_from_tools(
            tool_choice=request.tool_choice, tools=request.tools, parallel_tool_calls=request.parallel_tool_calls
        )
        if schema is not None:
            made: Any = importlib.import_module("vllm.sampling_params").StructuredOutputsParams
            request.structured_outputs, request.response_format = made(json=schema), None
    request.stop_token_ids = sorted({*(request.stop_token_ids or ()), *eos})
    if request.seed is None:  # or passes would write different texts
        request.seed = settings.seed + row
    sampling = request.to_sampling_params(most_tokens(body) or max_new_tokens, {})
    sampling.output_kind = importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
    return sampling
