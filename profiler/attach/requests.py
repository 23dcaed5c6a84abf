"""Requests to an OpenAI API server, from a file or made of prompts, and the fields that constrain them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molprof.common.engine_settings import VLLM
from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.attach.server import SGLANG, Server
from molprof.profiler.capture.answers import Judge, checks_of, judge_of, not_judged
from molprof.profiler.constraints import whole_of
from molprof.profiler.molecules.bodies import (
    CHAT,
    COMPLETIONS,
    CONSTRAINS,
    Body,
    constraints_of,
    read_bodies,
    text_of,
    without_constraints,
)
from molprof.profiler.molecules.prompts import Constraint, Prompt, read_inputs, whole_of_body

# Kinds of the pieces of a streamed answer.
REASONING, CONTENT, CALL, ARGUMENTS = "r", "c", "t", "a"


@dataclass(frozen=True)
class Request:
    """One line of a file of requests."""

    line: int
    path: str
    prompt: str  # for a check of the user's; of a chat its last text
    plain: Body
    constrained: Body | None  # None: nothing constrains it
    judge: Judge
    inside: str = ""  # kinds of the pieces that the constraint is about

    def body(self, constrained: bool) -> Body:
        """Return the body to send, with or without its constraint."""
        return self.constrained if constrained and self.constrained is not None else self.plain


@dataclass(frozen=True)
class Requests:
    """The requests of a file, and notes on them."""

    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()

    @property
    def constrain(self) -> bool:
        """True if any request is constrained."""
        return any(request.constrained is not None for request in self.requests)


def of_prompts(settings: CaptureSettings, server: Server, more: Body) -> Requests:
    """Return a request for each prompt of the settings, greedy, with its constraint and without. Raises UsageError."""
    common, judges = whole_of(settings), dict[Constraint | None, Judge]()
    requests = []
    for prompt in read_inputs(settings).prompts:
        constraint = prompt.constraint or common
        if constraint not in judges:
            judges[constraint] = Judge(checks_of(settings, prompt.constraint))
        plain = {"max_tokens": settings.max_new_tokens, "temperature": 0, **_prompt_fields(prompt), **more}
        constrained = None if constraint is None else {**plain, **_fields(constraint, server.kind)}
        path, inside = CHAT if prompt.messages else COMPLETIONS, "" if constraint is None else CONTENT
        requests.append(Request(prompt.line, path, prompt.text, plain, constrained, judges[constraint], inside))
    return Requests(tuple(requests), tuple(not_judged(judges)))


def _prompt_fields(prompt: Prompt) -> Body:
    if not prompt.messages:
        return {"prompt": prompt.text}
    return {"messages": [{"role": item.role, "content": item.content} for item in prompt.messages]}


def _fields(whole: Constraint, kind: str) -> Body:
    """Return the fields of a request that constrain it."""
    if kind == VLLM:
        name = {"schema": "json", "choices": "choice"}.get(whole.kind, whole.kind)
        value: Any = json.loads(whole.text) if whole.kind == "schema" else whole.text
        if whole.kind == "choices":
            value = whole.text.split(",")
        return {"structured_outputs": {name: value}}
    if kind == SGLANG:
        if whole.kind == "choices":
            return {"ebnf": whole.grammar("ebnf")}
        return {{"schema": "json_schema", "grammar": "ebnf"}.get(whole.kind, whole.kind): whole.text}
    if whole.kind != "schema":
        raise UsageError(f"this server is neither vLLM nor SGLang: it takes no {whole.kind}", "--schema, or --requests")
    schema = {"name": "answer", "schema": json.loads(whole.text), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def of_file(path: Path, settings: CaptureSettings, server: Server, more: Body, against: Path | None) -> Requests:
    """Return the requests of a file with one JSON object per line: an OpenAI API body, or a line of its batches.

    against: a file with as many requests, which stand in for those without their constraint.

    Raises UsageError where a line is none.
    """
    lines = _lines(path, settings, server, more)
    others = None if against is None else _lines(against, settings, server, more)
    if others is not None and len(others) != len(lines):
        raise UsageError(f"{against} has {len(others)} requests, {path} has {len(lines)}", "one for each")
    kinds, requests = Counter[str](), []
    for index, (number, url, body) in enumerate(lines):
        names = constraints_of(body)
        kinds.update(names or ["nothing"])
        plain, constrained = without_constraints(body), body if names else None
        if others is not None:
            _, other_url, plain = others[index]
            if other_url != url:
                raise UsageError(f"{against}, line {others[index][0]} is for {other_url}, not {url}", "the same path")
            constrained = body
        judge = judge_of(body, settings, f"{path}, line {number}")
        inside = CALL + ARGUMENTS if "tool_choice" in names else CONTENT if names else ""
        requests.append(Request(number, url, text_of(body), plain, constrained, judge, inside))
    said = ", ".join(
        f"{count} by {name}" if name in CONSTRAINS else f"{count} by nothing" for name, count in kinds.items()
    )
    notes = [f"requests are constrained: {said}; the plain side is {against or 'without that'}"]
    if against is None and kinds["tool_choice"]:
        notes.append("the plain side of tool_choice has the same tools, and tool_choice none")
    notes = notes if kinds.keys() & CONSTRAINS.keys() or against else []
    if unknown := _unknown(lines, server):
        notes.append(f"the server's API has no {', '.join(unknown)}: it may ignore them")
    return Requests(tuple(requests), (*notes, *not_judged(whole_of_body(body) for _, _, body in lines)))


def _unknown(lines: Sequence[tuple[int, str, Body]], server: Server) -> list[str]:
    """Return the fields of requests that a server which describes its API does not have."""
    known = {url: server.fields(url) for url in dict.fromkeys(url for _, url, _ in lines)}
    names = [name for _, url, body in lines if (fields := known[url]) for name in body if name not in fields]
    return list(dict.fromkeys(names))


def _lines(path: Path, settings: CaptureSettings, server: Server, more: Body) -> list[tuple[int, str, Body]]:
    """Return the number, path and body of each line."""
    lines: list[tuple[int, str, Body]] = []
    for number, url, fields in read_bodies(path, settings.count):
        body = {**more, **fields}
        if settings.max_new_tokens and not {"max_tokens", "max_completion_tokens"} & body.keys():
            body["max_tokens"] = settings.max_new_tokens
        if (model := body.pop("model", None)) is not None:
            server.check_model(str(model), f"{path}, line {number}: ")
            body["model"] = model
        lines.append((number, url, body))
    return lines
