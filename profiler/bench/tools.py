"""Sets of tools as constraints: structural tags, which a call opens, and JSON of required calls; with texts of each.

molprof's own sets have 1, 8 and 64 tools, whose arguments are nested and share what they are made of.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from molprof.common.bench_records import digest
from molprof.common.errors import UsageError
from molprof.common.files import read_text, refuse_stream
from molprof.profiler.bench.schemas import Instance, SchemaFile, SchemaFolder
from molprof.profiler.molecules.bodies import schema_of_calls
from molprof.profiler.molecules.prompts import Constraint

SIZES = (1, 8, 64)
_TRIGGER, _END = "<function=", "</function>"
_VERBS = ("find", "book", "cancel", "compare", "price", "watch", "share", "report")
_NOUNS = ("flights", "trains", "hotels", "cars", "tables", "concerts", "parcels", "meetings")
_TEXTS = (
    "I will look that up for you now, one moment please. ",
    " While that runs, here is what I know so far: prices change every hour, and early bookings are often cheaper. ",
    " That is all for today.",
)
_CALLED = 4  # tools that texts call, spread over the set
_HINT = 'a JSON list of tools, or an object that has them: {"tools": [{"type": "function", "function": {...}}]}'
Tool = dict[str, Any]


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def own_tools(count: int) -> list[Tool]:
    """Return so many tools, up to 64: the first of a larger set are those of a smaller one."""
    day = {"type": "string", "pattern": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}
    place = _object(city={"type": "string"}, country={"enum": ["DE", "FR", "IN", "JP", "US"]})
    money = _object(amount={"type": "number", "minimum": 0}, currency={"enum": ["EUR", "JPY", "USD"]})
    person = _object(name={"type": "string"}, age={"type": "integer", "minimum": 0, "maximum": 120})
    parts: list[dict[str, Any]] = [
        {"at": place, "on": day}, {"from": place, "to": place, "on": day}, {"limit": money, "near": place},
        {"people": {"type": "array", "items": person, "minItems": 1, "maxItems": 8}},
        {"when": _object(first=day, last=day, flexible={"type": "boolean"}), "paid": money},
        {"id": {"type": "string", "pattern": "[A-Z]{2}[0-9]{6}"}, "why": {"type": "string"}},
        {"filters": {"type": "array", "items": _object(field={"enum": ["price", "time", "rating"]},
                                                       least={"type": "number"}), "maxItems": 4}},
        {"order": _object(by=place, guests={"type": "array", "items": person, "maxItems": 4}, limit=money)},
    ]  # fmt: skip
    pairs = itertools.islice(itertools.product(range(len(_VERBS)), range(len(_NOUNS))), count)
    return [
        {"type": "function", "function": {
            "name": f"{_VERBS[verb]}_{_NOUNS[noun]}",
            "parameters": _object(**parts[(verb + noun) % len(parts)], **{f"most_{_NOUNS[noun]}": {"type": "integer"}}),
        }}
        for verb, noun in pairs
    ]  # fmt: skip


def tool_sets(path: str) -> list[SchemaFile]:
    """Return the constraints of molprof's own sets of tools (empty path), or of a file's set. Raises UsageError."""
    sets = [own_tools(count) for count in SIZES] if not path else [_read(Path(path))]
    return [item for tools in sets for item in (_tags(tools), _required(tools))]


def find_tools(path: str) -> SchemaFolder:
    """Return the names of the constraints of `tool_sets`, and a digest of each."""
    items = tool_sets(path)
    digests = tuple(
        digest({"constraint": item.whole.text, "texts": [one.text for one in item.instances]}) for item in items
    )
    return SchemaFolder(tuple(item.name for item in items), digests)


def changed(item: SchemaFile) -> Constraint:
    """Return the constraint of a second set: the last of its tools has one more argument, all else is the same."""
    tools = copy.deepcopy(list(item.tools))
    parameters = tools[-1]["function"].setdefault("parameters", {"type": "object"})
    parameters.setdefault("properties", {})["one_argument_more"] = {"type": "boolean"}
    return (_tags if item.whole.kind == "structural_tag" else _required)(tools).whole


def _read(path: Path) -> list[Tool]:
    refuse_stream(path)
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{path} is no JSON: {problem}", hint=_HINT) from None
    tools = content.get("tools") if isinstance(content, dict) else content
    if not isinstance(tools, list) or not tools:
        raise UsageError(f"{path} has no tools", hint=_HINT)
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UsageError(f"{path} has a tool without a function with a name", hint=_HINT)
    return tools


def _calls(tools: Sequence[Tool]) -> Iterator[tuple[str, Any]]:
    """Yield the name and arguments of calls of tools spread over a set, of those whose arguments can be made."""
    for tool in tools[:: max(1, len(tools) // _CALLED)][:_CALLED]:
        function = tool["function"]
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        yield function["name"], example(parameters, parameters)


def _tags(tools: Sequence[Tool]) -> SchemaFile:
    """Return a set of tools as structural tags: free text, in which a trigger opens a call."""
    tags = [
        {
            "begin": f"{_TRIGGER}{tool['function']['name']}>",
            "schema": tool["function"].get("parameters") or {"type": "object", "properties": {}},
            "end": _END,
        }
        for tool in tools
    ]
    form = {"type": "structural_tag", "structures": tags, "triggers": [_TRIGGER]}
    texts = [f"{_TRIGGER}{name}>{json.dumps(value)}{_END}" for name, value in _calls(tools)]
    first, between, last = _TEXTS
    instances = [Instance(None, True, f"a call of {name}", f"{first}{text}{last}")
                 for text, (name, _) in zip(texts, _calls(tools), strict=True)]  # fmt: skip
    instances += [Instance(None, True, "calls between texts", first + between.join(texts) + last)]
    instances += [Instance(None, True, "no call", "".join(_TEXTS))]
    constraint = Constraint("structural_tag", json.dumps(form))
    return SchemaFile(f"{len(tools)} tools as tags", None, tuple(instances), constraint, tuple(tools))


def _required(tools: Sequence[Tool]) -> SchemaFile:
    """Return a set of tools of which one must be called: the JSON of calls."""
    schema = schema_of_calls({"tools": tools, "tool_choice": "required"})
    data = [{"name": name, "parameters": value} for name, value in _calls(tools)]
    instances = [Instance([one], None, f"a call of {one['name']}") for one in data]
    return SchemaFile(f"{len(tools)} tools required", schema, tuple(instances), None, tuple(tools))


def example(schema: Any, root: Any) -> Any:
    """Return a value that keeps to a schema of a tool's arguments, as far as its type and enumerations say."""
    if not isinstance(schema, dict):
        return None
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#/"):
        target = root
        for word in reference[2:].split("/"):
            target = target.get(word) if isinstance(target, dict) else None
        return example(target, root)
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return example({**schema[name][0], **{key: item for key, item in schema.items() if key != name}}, root)
    if "const" in schema or schema.get("enum"):
        return schema.get("const", (schema.get("enum") or [None])[0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            return {name: example(item, root) for name, item in (schema.get("properties") or {}).items()}
        case "array":
            return [example(schema.get("items", True), root)] * max(1, schema.get("minItems", 1))
        case "integer" | "number":
            return max(schema.get("minimum", 7), min(schema.get("maximum", 7), 7))
        case "boolean":
            return True
        case "null":
            return None
    return _TEXT_OF.get(schema.get("pattern", ""), "Rome by night"[: schema.get("maxLength")])


_TEXT_OF = {"[0-9]{4}-[0-9]{2}-[0-9]{2}": "2026-11-29", "[A-Z]{2}[0-9]{6}": "AB123456"}
