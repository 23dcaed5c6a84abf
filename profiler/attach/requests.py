"""Requests to a server of the OpenAI API: those of a file as they are, or made of prompts; what constrains them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from molprof.common.errors import UsageError
from molprof.common.files import read_text, refuse_stream
from molprof.common.settings import VLLM, CaptureSettings
from molprof.common.text import shortened
from molprof.profiler.attach.server import SGLANG, Server
from molprof.profiler.capture.answers import Check, checks_of, json_value, not_judged, problem_of, schema_check
from molprof.profiler.constraints import whole_of
from molprof.profiler.molecules.prompts import Constraint, Prompt, read_inputs

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# Kinds of the pieces of a streamed answer.
REASONING, CONTENT, CALL, ARGUMENTS = "r", "c", "t", "a"
Body = dict[str, Any]


def _is_given(value: Any) -> bool:
    return bool(value)


# Fields of a body that constrain an answer, with the values that do. vLLM: structured_outputs, guided_* (before 0.12);
# SGLang: json_schema, regex, ebnf; structural_tag of both.
CONSTRAINS: Mapping[str, Callable[[Any], bool]] = {
    "response_format": lambda value: bool(value) and value.get("type") != "text",
    "tool_choice": lambda value: value == "required" or isinstance(value, dict),
    **dict.fromkeys(
        ("structured_outputs", "structural_tag", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
         "json_schema", "regex", "ebnf"),
        _is_given,
    ),
    "vllm_xargs": lambda value: any(str(key).startswith("table_") for key in value or {}),
}  # fmt: skip
# Fields of a body by what they are; those of `response_format` have a dot.
_KINDS: Mapping[str, type] = {
    "messages": list, "tools": list, "response_format": dict, "response_format.json_schema": dict,
    "structured_outputs": dict, "vllm_xargs": dict,
}  # fmt: skip
# Fields that mean nothing without one of them.
_BESIDE = ("guided_decoding_backend", "guided_whitespace_pattern")


def constraints_of(body: Body) -> list[str]:
    """The fields of a request that constrain its answer."""
    return [name for name, constrains in CONSTRAINS.items() if body.get(name) is not None and constrains(body[name])]


def without_constraints(body: Body) -> Body:
    """The request without what constrains it. Tools stay in the prompt: none may be called."""
    names = constraints_of(body)
    left = {name: value for name, value in body.items() if name not in names and not (names and name in _BESIDE)}
    if "tool_choice" in names:
        left["tool_choice"] = "none"
    if "vllm_xargs" in names:
        left["vllm_xargs"] = {key: value for key, value in body["vllm_xargs"].items() if not key.startswith("table_")}
    return left


@dataclass(frozen=True)
class Judge:
    """What answers to a request are judged by."""

    checks: Sequence[Check] = ()  # of the text
    # By name of a tool, the check of its arguments; None: it has no schema.
    tools: Mapping[str, Check | None] = field(default_factory=dict)
    must_call: bool = False
    inside: str = ""  # kinds of the pieces that the constraint is about

    def problem(
        self, text: str, calls: Sequence[tuple[str, str]], prompt: str, cut: bool
    ) -> tuple[bool | None, str | None]:
        """Whether an answer is valid, None where nothing judges it, and why not. calls: names and arguments."""
        if not (self.checks or calls or self.must_call):
            return None, None
        found = None
        if self.must_call and not calls:
            found = "no tool was called"
        for name, arguments in calls:
            found = found or self._of_call(name, arguments)
        if found is not None and cut:
            found = f"stopped at the token limit: {found}"
        if found is None and not calls:
            found = problem_of(self.checks, text, prompt, cut)
        return found is None, found

    def _of_call(self, name: str, arguments: str) -> str | None:
        if name not in self.tools:
            return f"a broken call: {shortened(name)!r} is no tool of the request"
        check = self.tools[name]
        if check is None:
            try:
                json_value(arguments)
            except (ValueError, RecursionError) as problem:
                return f"a broken call: arguments of {name} are not JSON: {shortened(str(problem))}"
            return None
        found = check(arguments, "")
        return None if found is None else f"a broken call: arguments of {name}: {found}"


@dataclass(frozen=True)
class Request:
    line: int
    path: str
    prompt: str  # for a check of the user's; of a chat its last text
    plain: Body
    constrained: Body | None  # None: nothing constrains it
    judge: Judge

    def body(self, constrained: bool) -> Body:
        return self.constrained if constrained and self.constrained is not None else self.plain


@dataclass(frozen=True)
class Requests:
    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()

    @property
    def constrain(self) -> bool:
        return any(request.constrained is not None for request in self.requests)


def of_prompts(settings: CaptureSettings, server: Server, more: Body) -> Requests:
    """A request for each prompt of the settings, greedy, with its constraint and without. Raises UsageError."""
    common, judges = whole_of(settings), dict[Constraint | None, Judge]()
    found = []
    for prompt in read_inputs(settings).prompts:
        asked = prompt.constraint or common
        if asked not in judges:
            judges[asked] = Judge(checks_of(settings, prompt.constraint), inside="" if asked is None else CONTENT)
        plain = {"max_tokens": settings.max_new_tokens, "temperature": 0, **_prompt_fields(prompt), **more}
        constrained = None if asked is None else {**plain, **_fields(asked, server.kind)}
        path = CHAT if prompt.messages else COMPLETIONS
        found.append(Request(prompt.line, path, prompt.text, plain, constrained, judges[asked]))
    return Requests(tuple(found), tuple(not_judged(judges)))


def _prompt_fields(prompt: Prompt) -> Body:
    if not prompt.messages:
        return {"prompt": prompt.text}
    return {"messages": [{"role": item.role, "content": item.content} for item in prompt.messages]}


def _fields(asked: Constraint, kind: str) -> Body:
    """What a request says of its constraint."""
    if kind == VLLM:
        name = {"schema": "json", "choices": "choice"}.get(asked.kind, asked.kind)
        value: Any = json.loads(asked.text) if asked.kind == "schema" else asked.text
        if asked.kind == "choices":
            value = asked.text.split(",")
        return {"structured_outputs": {name: value}}
    if kind == SGLANG:
        if asked.kind == "choices":
            return {"ebnf": asked.grammar("ebnf")}
        return {{"schema": "json_schema", "grammar": "ebnf"}.get(asked.kind, asked.kind): asked.text}
    if asked.kind != "schema":
        raise UsageError(f"this server is neither vLLM nor SGLang: it takes no {asked.kind}", "--schema, or --requests")
    schema = {"name": "answer", "schema": json.loads(asked.text), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def of_file(path: Path, settings: CaptureSettings, server: Server, more: Body, against: Path | None) -> Requests:
    """The requests of a file, one JSON object a line: a body of the OpenAI API, or a line of its batches.

    against: a file with as many requests, which stand in for those without their constraint.

    Raises UsageError where a line is none.
    """
    lines = _lines(path, settings, server, more)
    others = None if against is None else _lines(against, settings, server, more)
    if others is not None and len(others) != len(lines):
        raise UsageError(f"{against} has {len(others)} requests, {path} has {len(lines)}", "one for each")
    kinds, found = Counter[str](), []
    for place, (number, url, body) in enumerate(lines):
        names = constraints_of(body)
        kinds.update(names or ["nothing"])
        plain, constrained = without_constraints(body), body if names else None
        if others is not None:
            _, other_url, plain = others[place]
            if other_url != url:
                raise UsageError(f"{against}, line {others[place][0]} is for {other_url}, not {url}", "the same path")
            constrained = body
        judge = _judge(body, names, settings, f"{path}, line {number}")
        found.append(Request(number, url, _text_of(body), plain, constrained, judge))
    said = ", ".join(
        f"{count} by {name}" if name in CONSTRAINS else f"{count} by nothing" for name, count in kinds.items()
    )
    notes = [f"requests are constrained: {said}; the plain side is {against or 'without that'}"]
    if against is None and kinds["tool_choice"]:
        notes.append("the plain side of tool_choice has the same tools, and tool_choice none")
    notes = notes if kinds.keys() & CONSTRAINS.keys() or against else []
    return Requests(tuple(found), (*notes, *not_judged(_whole_of(body) for _, _, body in lines)))


def _lines(path: Path, settings: CaptureSettings, server: Server, more: Body) -> list[tuple[int, str, Body]]:
    """Of each line its number, path and body."""
    refuse_stream(path)
    found: list[tuple[int, str, Body]] = []
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), start=1):
        if line.strip() and len(found) != settings.count:
            url, body = _parsed(f"{path}, line {number}", line)
            body = {**more, **body}
            if settings.max_new_tokens and not {"max_tokens", "max_completion_tokens"} & body.keys():
                body["max_tokens"] = settings.max_new_tokens
            if (model := body.pop("model", None)) is not None:
                server.check_model(str(model), f"{path}, line {number}: ")
                body["model"] = model
            found.append((number, url, body))
    if not found:
        raise UsageError(f"{path} has no requests", hint="one JSON object a line")
    return found


def _parsed(where: str, line: str) -> tuple[str, Body]:
    hint = 'a body of the OpenAI API, or {"method": "POST", "url": "/v1/chat/completions", "body": {...}}'
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{where}: {shortened(str(problem))}", hint) from None
    url = None
    if isinstance(body, dict) and isinstance(body.get("body"), dict):
        if str(body.get("method", "POST")).upper() != "POST":
            raise UsageError(f"{where}: the method is {body['method']!r}", hint)
        url, body = body.get("url"), body["body"]
    if not isinstance(body, dict) or ("messages" in body) == ("prompt" in body):
        raise UsageError(f"{where} has not one of messages and prompt", hint)
    for name, kind in _KINDS.items():
        first, _, last = name.partition(".")
        value = body.get(first)
        value = value.get(last) if last and value else value
        if value is not None and not isinstance(value, kind):
            kinds = "list" if kind is list else "object"
            raise UsageError(f"{where}: {name} is no {kinds}: {shortened(json.dumps(value))}", hint)
    own = CHAT if "messages" in body else COMPLETIONS
    if url not in (None, own):
        raise UsageError(f"{where}: a body for {own} with the url {shortened(str(url))!r}", hint)
    if (
        body.get("n", 1) not in (None, 1)
        or body.get("best_of", 1) not in (None, 1)
        or isinstance(body.get("prompt"), list)
    ):
        raise UsageError(f"{where} asks for several answers", "one prompt and one answer for each request")
    return own, {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


def _text_of(body: Body) -> str:
    if "prompt" in body:
        return str(body["prompt"])
    texts = [
        one["content"] for one in body["messages"] if isinstance(one, dict) and isinstance(one.get("content"), str)
    ]
    return texts[-1] if texts else ""


def _judge(body: Body, names: Sequence[str], settings: CaptureSettings, where: str) -> Judge:
    tools = {}
    for tool in body.get("tools") or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and "name" in function:
            schema = function.get("parameters")
            name = f"{where}: parameters of {function['name']}"
            tools[str(function["name"])] = None if schema is None else schema_check(json.dumps(schema), name)
    whole = _whole_of(body)
    checks = checks_of(settings, None if whole is not None and whole.kind == "schema" else whole)
    if whole is not None and whole.kind == "schema":
        checks.insert(0, schema_check(whole.text, where))
    inside = CALL + ARGUMENTS if "tool_choice" in names else CONTENT if names else ""
    return Judge(checks, tools, "tool_choice" in names, inside)


def _whole_of(body: Body) -> Constraint | None:
    """What the text is to keep to, where it can be judged."""
    form, outputs = body.get("response_format") or {}, body.get("structured_outputs") or {}
    given: dict[str, Any] = {
        "schema": outputs.get("json") or body.get("guided_json") or body.get("json_schema"),
        "regex": outputs.get("regex") or body.get("guided_regex") or body.get("regex"),
        "choices": outputs.get("choice") or body.get("guided_choice"),
    }
    if form.get("type") == "json_schema":
        given["schema"] = (form.get("json_schema") or {}).get("schema")
    elif form.get("type") == "json_object" or outputs.get("json_object"):
        given["schema"] = given["schema"] or {"type": "object"}
    if (schema := given["schema"]) is not None and schema is not True:
        return Constraint("schema", schema if isinstance(schema, str) else json.dumps(schema))
    if given["regex"] is not None:
        return Constraint("regex", str(given["regex"]))
    choices = given["choices"]
    if isinstance(choices, list) and not any("," in str(choice) for choice in choices):
        return Constraint("choices", ",".join(map(str, choices)))
    return None
