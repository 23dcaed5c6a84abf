"""Requests of the OpenAI API for vLLM's engine in this process, as vLLM's server would run them."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any

from molprof.common.engine_settings import TABLE
from molprof.common.errors import RunError, UsageError
from molprof.common.settings import CaptureSettings
from molprof.common.text import shortened
from molprof.profiler.molecules.bodies import Body, constraints_of, most_tokens, without_constraints
from molprof.profiler.molecules.prompts import Prompt

_MOST_TEXT = 300
_PROTOCOLS = "vllm.entrypoints.openai.{}.protocol"


def sampling_of(prompt: Prompt, settings: CaptureSettings, max_new_tokens: int, row: int, eos: Collection[int]) -> Any:
    """Return vLLM's `SamplingParams` of a request, without its constraint in a run without a processor.

    Calls of required tools are constrained as vLLM's parsers of tools do it that have no format of their own. Raises
    UsageError for what would constrain nothing, and RunError for a request that vLLM refuses.
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
    try:
        sampling = _made(body, most_tokens(body) or settings.max_new_tokens or max_new_tokens, settings.seed + row, eos)
    except ValueError as problem:  # of vLLM and pydantic
        text = shortened(" ".join(str(problem).split()), _MOST_TEXT)
        raise RunError(f"vLLM refuses line {prompt.line}: {text}") from problem
    if settings.processor not in (None, TABLE) and names and sampling.structured_outputs is None:
        hint = "response_format, structured_outputs, or tools with tool_choice"
        raise UsageError(f"line {prompt.line} has {names[0]}, which this vLLM does not read", hint)
    return sampling


def _made(body: Body, max_tokens: int, seed: int, eos: Collection[int]) -> Any:
    is_chat = "messages" in body
    protocol = importlib.import_module(_PROTOCOLS.format("chat_completion" if is_chat else "completion"))
    request = (protocol.ChatCompletionRequest if is_chat else protocol.CompletionRequest)(**body)
    parameters = importlib.import_module("vllm.sampling_params")
    if getattr(request, "tools", None):
        schema = importlib.import_module("vllm.tool_parsers.utils").get_json_schema_from_tools(
            tool_choice=request.tool_choice, tools=request.tools, parallel_tool_calls=request.parallel_tool_calls
        )
        if schema is not None:
            request.structured_outputs = parameters.StructuredOutputsParams(json=schema)
            request.response_format = None
    request.stop_token_ids = sorted({*(request.stop_token_ids or ()), *eos})
    if request.seed is None:  # or passes would write different texts
        request.seed = seed
    sampling = request.to_sampling_params(max_tokens, {})
    sampling.output_kind = parameters.RequestOutputKind.DELTA
    return sampling
