"""Bodies of OpenAI API requests: reading them from a file, and the fields that constrain their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from molprof.common.errors import UsageError
from molprof.common.files import read_text, refuse_stream
from molprof.common.text import shortened

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Body = dict[str, Any]
Kind = Literal["grammar", "schema", "regex", "choices", "structural_tag"]


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
    """Return the fields of a request that constrain its answer."""
    return [name for name, constrains in CONSTRAINS.items() if body.get(name) is not None and constrains(body[name])]


def without_constraints(body: Body) -> Body:
    """Return the request without its constraints. Tools stay in the prompt: none may be called."""
    names = constraints_of(body)
    left = {name: value for name, value in body.items() if name not in names and not (names and name in _BESIDE)}
    if "tool_choice" in names:
        left["tool_choice"] = "none"
    if "vllm_xargs" in names:
        left["vllm_xargs"] = {key: value for key, value in body["vllm_xargs"].items() if not key.startswith("table_")}
    return left


def read_bodies(path: Path, count: int | None) -> Iterator[tuple[int, str, Body]]:
    """Yield line, path and body of a file's requests, or the first `count`, without options of streaming.

    Raises UsageError where a line is none, or the file has none.
    """
    refuse_stream(path)
    count_read = 0
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), start=1):
        if line.strip() and count_read != count:
            count_read += 1
            yield number, *_parsed(f"{path}, line {number}", line)
    if not count_read:
        raise UsageError(f"{path} has no requests", hint="one JSON object a line")


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
    path = CHAT if "messages" in body else COMPLETIONS
    if url not in (None, path):
        raise UsageError(f"{where}: a body for {path} with the url {shortened(str(url))!r}", hint)
    if (
        body.get("n", 1) not in (None, 1)
        or body.get("best_of", 1) not in (None, 1)
        or isinstance(body.get("prompt"), list)
    ):
        raise UsageError(f"{where} asks for several answers", "one prompt and one answer for each request")
    return path, {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


def most_tokens(body: Body) -> int | None:
    """Return the most tokens of a request's answer; None if it sets no limit."""
    return body.get("max_completion_tokens") or body.get("max_tokens")


def text_of(body: Body) -> str:
    """Return the prompt of a request, of a chat its last text."""
    if "prompt" in body:
        return str(body["prompt"])
    texts = [
        one["content"] for one in body["messages"] if isinstance(one, dict) and isinstance(one.get("content"), str)
    ]
    return texts[-1] if texts else ""


def constraint_text(body: Body) -> tuple[Kind, str] | None:
    """Return the kind and text of an answer's constraint, if it is of a kind that can be checked."""
    form, outputs = body.get("response_format") or {}, body.get("structured_outputs") or {}
    values: dict[str, Any] = {
        "schema": outputs.get("json") or body.get("guided_json") or body.get("json_schema"),
        "regex": outputs.get("regex") or body.get("guided_regex") or body.get("regex"),
        "choices": outputs.get("choice") or body.get("guided_choice"),
    }
    if form.get("type") == "json_schema":
        values["schema"] = (form.get("json_schema") or {}).get("schema")
    elif form.get("type") == "json_object" or outputs.get("json_object"):
        values["schema"] = values["schema"] or {"type": "object"}
    if (schema := values["schema"]) is not None and schema is not True:
        return "schema", schema if isinstance(schema, str) else json.dumps(schema)
    if values["regex"] is not None:
        return "regex", str(values["regex"])
    choices = values["choices"]
    if isinstance(choices, list) and not any("," in str(choice) for choice in choices):
        return "choices", ",".join(map(str, choices))
    return None


def enforced(body: Body) -> tuple[str, Kind, str] | None:
    """Return what a server keeps an answer to: `table` or empty, and kind and text of the constraint; None: unknown.

    `table`: molprof's own table makes the masks. Required tools are the JSON of calls that vLLM and SGLang constrain
    to where their parser of tools has no format of its own.
    """
    for key, value in (body.get("vllm_xargs") or {}).items():
        if str(key).startswith("table_"):
            return "table", str(key).removeprefix("table_"), str(value)  # type: ignore[return-value]
    if "tool_choice" in constraints_of(body):
        schema = schema_of_calls(body)
        return None if schema is None else ("", "schema", json.dumps(schema))
    form, outputs = body.get("response_format") or {}, body.get("structured_outputs") or {}
    tags = form if form.get("type") == "structural_tag" else outputs.get("structural_tag") or body.get("structural_tag")
    if tags:
        return "", "structural_tag", tags if isinstance(tags, str) else json.dumps(tags)
    if (grammar := outputs.get("grammar") or body.get("guided_grammar") or body.get("ebnf")) is not None:
        return "", "grammar", str(grammar)
    if isinstance(choices := outputs.get("choice") or body.get("guided_choice"), list):
        return "", "regex", "|".join(re.escape(str(choice)).replace("\\ ", " ") for choice in choices)
    kind_and_text = constraint_text(body)
    return None if kind_and_text is None else ("", *kind_and_text)


def schema_of_calls(body: Body) -> Body | None:
    """Return the JSON schema of required calls; None where the request names no such tool."""
    functions = [tool["function"] for tool in body.get("tools") or () if isinstance(tool, dict) and "function" in tool]
    nothing, choice = {"type": "object", "properties": {}}, body["tool_choice"]
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        schemas = [function.get("parameters") or nothing for function in functions if function.get("name") == name]
        return schemas[0] if schemas else None
    if not functions:
        return None
    definitions: Body = {}
    calls = []
    for function in functions:
        parameters = dict(function.get("parameters") or nothing)
        definitions |= parameters.pop("$defs", {})
        called = {"name": {"type": "string", "enum": [function.get("name")]}, "parameters": parameters}
        calls.append({"properties": called, "required": [*called]})
    schema: Body = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}}
    if body.get("parallel_tool_calls") is False:
        schema["maxItems"] = 1
    return schema | ({"$defs": definitions} if definitions else {})
