"""JSON schemas as automata over bytes: the valid values, each in the format of `json.dumps`.

A value is written as `json.dumps(value, ensure_ascii=False)` writes it, with one space or none after each comma and
colon. Numbers are those of JSON. Properties stand in the schema's order; objects have no others than it names, unless
it names none and describes others. What cannot be kept to exactly is refused by its name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any

from molprof.profiler.constraints import automaton
from molprof.profiler.constraints.automaton import (
    EVERY,
    Automaton,
    NoText,
    Part,
    Ranges,
    TooLarge,
    between,
    characters,
    determinize,
    either,
    intersect,
    intersection,
    nothing,
    optional,
    repeated,
    sequence,
    symbol,
    text,
)
from molprof.profiler.constraints.regular import NotRegular, regular, searched
from molprof.profiler.molecules.prompts import Constraint

# How often a reference is followed inside of itself.
DEPTH = 4
_MOST_SCHEMAS = 10_000
# With bounds a number has at most this many decimals, and the bounds are whole and not above: floats hold both exactly.
_DECIMALS, _MOST_BOUND = 9, 10**6
_ABOVE_ZERO = "|".join(rf"\.0{{{zeros}}}[1-9]\d{{0,{_DECIMALS - zeros - 1}}}" for zeros in range(_DECIMALS))
_PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))  # characters that stand for themselves in a string
_ESCAPED: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
_COMMA, _COLON = (sequence(text(sign), optional(text(" "))) for sign in ",:")
_DIGIT = symbol(48, 57)
# They say nothing of what is valid.
_NOTES = {
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated",
    "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
}  # fmt: skip
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: _TYPES["number"](value) and value == math.floor(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_DAY = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_FORMATS = {
    "date": _DAY,
    "time": _TIME,
    "date-time": f"{_DAY}T{_TIME}",
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "ipv4": r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)",
}
_NO_PATTERN = "it has a pattern that Python does not read"
_OTHER_TYPE = "it has a keyword with a value of another type than it takes"


def schema_part(written: str) -> Part:
    """Return the automaton of a JSON schema's values.

    Raises NotRegular for what is not known of it, or cannot be kept to exactly, and TooLarge.
    """
    root = json.loads(written)
    try:
        return _Schemas(root).part(root, {})
    except re.error as problem:
        raise NotRegular(f"{_NO_PATTERN}: {problem}") from None
    except RecursionError:
        raise NotRegular("it refers to itself without an end") from None
    except (NotRegular, TooLarge):
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        raise NotRegular(f"{_OTHER_TYPE}: {problem}") from None


def compiled(whole: Constraint) -> Automaton:
    """Return the automaton of a constraint. Raises NotRegular, TooLarge and NoText."""
    try:
        match whole.kind:
            case "regex":
                try:
                    return determinize(regular(whole.text))
                except re.error as problem:
                    raise NotRegular(f"Python does not read it: {problem}") from None
            case "choices":
                return determinize(either(*map(text, whole.text.split(","))))
            case "schema":
                try:
                    return determinize(schema_part(whole.text))
                except re.error as problem:  # of a schema inside of another, which is read when it is added
                    raise NotRegular(f"{_NO_PATTERN}: {problem}") from None
                except (AttributeError, LookupError, TypeError) as problem:
                    raise NotRegular(f"{_OTHER_TYPE}: {problem}") from None
    except RecursionError:
        raise TooLarge("it has too many parts in each other") from None
    except UnicodeEncodeError:
        raise NotRegular("it has half of a surrogate pair") from None
    raise NotRegular(f"it is a {whole.kind.replace('_', ' ')}")


class _Schemas:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._closed = False  # whether an object with properties that it does not name must be refused
        self._count = 0

    def part(self, schema: Any, inside: Mapping[str, int]) -> Part:
        """Return the automaton of a schema's values. inside: how often each reference encloses it."""
        self._count += 1
        if self._count > _MOST_SCHEMAS:
            raise TooLarge(f"it has more than {_MOST_SCHEMAS:,} schemas in each other, to a depth of {DEPTH}")
        if schema is False:
            return nothing
        if schema is True or not isinstance(schema, dict):
            raise NotRegular("it allows any value")
        schema = {key: value for key, value in schema.items() if key not in _NOTES}
        if (name := schema.pop("$ref", None)) is not None:
            if (times := inside.get(name, 0)) == DEPTH:
                return nothing
            return self.part(_merged([self._referred(name), schema]), {**inside, name: times + 1})
        if (several := schema.pop("allOf", None)) is not None:
            return self.part(_merged([*map(self._followed, several), schema]), inside)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                rest = {other: value for other, value in schema.items() if other != key}
                branches = [_merged([self._followed(branch), rest]) if rest else branch for branch in schema[key]]
                if key == "anyOf":
                    return either(*(self.part(branch, inside) for branch in branches))
                return self._exactly_one(branches, inside)
        if "const" in schema or "enum" in schema:
            return self._listed(schema)
        kinds = schema.pop("type", None)
        if kinds is None:
            kinds = [kind for kind, keywords in _KEYWORDS.items() if keywords & schema.keys()]
            if len(kinds) != 1:
                raise NotRegular(f"it has a schema without a type: {', '.join(schema) or 'an empty one'}")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if more := schema.keys() - set().union(*_KEYWORDS.values()):
            raise NotRegular(f"it has {sorted(more)[0]}")
        return either(*(self._of(kind, schema, inside) for kind in kinds))

    def _of(self, kind: str, schema: Mapping[str, Any], inside: Mapping[str, int]) -> Part:
        match kind:
            case "null":
                return text("null")
            case "boolean":
                return either(text("true"), text("false"))
            case "integer":
                return _integers(*_bounds(schema))
            case "number":
                return _numbers(schema)
            case "string":
                return _strings(schema)
            case "array":
                return self._array(schema, inside)
            case "object":
                return self._object(schema, inside)
        raise NotRegular(f"it has the type {kind}")

    def _object(self, schema: Mapping[str, Any], inside: Mapping[str, int]) -> Part:
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        more = schema.get("additionalProperties", True)
        if absent := required - properties.keys():
            raise NotRegular(f"it requires a property that it does not describe: {sorted(absent)[0]}")
        if self._closed and more is not False:
            raise NotRegular("it has oneOf with an object that may have other properties than it names")
        if not properties and more is not False:
            pair = sequence(_strings({}), _COLON, self.part(more, inside))
            return sequence(text("{"), optional(_listing(pair, 1, None)), text("}"))

        def add(net: automaton.Net, at: int) -> int:
            """Add edges for the properties; the states count those passed, before and after the first written one."""
            bare, begun = text("{")(net, at), net.state()
            for name, value in properties.items():
                pair = sequence(_literal(name), _COLON, self.part(value, inside))
                after, skipped = net.state(), net.state()
                net.empty[pair(net, bare)].append(after)
                net.empty[sequence(_COMMA, pair)(net, begun)].append(after)
                if name not in required:
                    net.empty[bare].append(skipped)
                    net.empty[begun].append(after)
                bare, begun = skipped, after
            end = net.state()
            net.empty[bare].append(end)
            net.empty[begun].append(end)
            return text("}")(net, end)

        return add

    def _array(self, schema: Mapping[str, Any], inside: Mapping[str, int]) -> Part:
        first = [self.part(item, inside) for item in schema.get("prefixItems", ())]
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        bounded = most is not None and most <= len(first)
        rest = nothing if bounded else self.part(schema.get("items", True), inside)
        most = None if most is None else int(most)
        parts = [sequence()] if least == 0 else []
        for count in range(1, len(first) + 1):
            if least <= count and (most is None or count <= most):
                parts.append(_separated(first[:count]))
        if not bounded:
            low, high = max(least - len(first), 1), None if most is None else most - len(first)
            more = _listing(rest, low, high)
            parts.append(_separated([*first, more]))
        return sequence(text("["), either(*parts), text("]"))

    def _exactly_one(self, branches: Sequence[Any], inside: Mapping[str, int]) -> Part:
        """Return the automaton of exactly one of the parts; NotRegular if two have a common text."""
        before, self._closed = self._closed, True
        automata = []
        for branch in branches:
            try:
                automata.append(determinize(self.part(branch, inside)))
            except NoText:
                continue
        self._closed = before
        for number, one in enumerate(automata):
            for other in automata[:number]:
                try:
                    intersection(one, other)
                except NoText:
                    continue
                raise NotRegular("it has oneOf with a value of two of its schemas")
        return either(*(item.part for item in automata))

    def _listed(self, schema: Mapping[str, Any]) -> Part:
        values = schema["enum"] if "const" not in schema else [schema["const"]]
        if "const" in schema and "enum" in schema:
            values = [value for value in values if value in schema["enum"]]
        kinds = schema.get("type")
        if more := schema.keys() - {"enum", "const", "type"}:
            raise NotRegular(f"it has {sorted(more)[0]} beside values")
        if kinds is not None:
            kinds = [kinds] if isinstance(kinds, str) else kinds
            values = [value for value in values if any(_TYPES[kind](value) for kind in kinds)]
        return either(*map(_literal, values))

    def _referred(self, name: str) -> Any:
        """Return the target of a reference within the schema."""
        schema = self._root
        start, _, path = name.partition("#")
        try:
            if start:
                raise KeyError
            for key in filter(None, path.split("/")):
                key = key.replace("~1", "/").replace("~0", "~")
                schema = schema[int(key)] if isinstance(schema, list) else schema[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise NotRegular(f"it has a reference that is not in it: {name}") from None
        return schema

    def _followed(self, schema: Any) -> Any:
        """Return a schema without a reference at its top, to be merged with others."""
        seen: set[str] = set()
        while isinstance(schema, dict) and "$ref" in schema:
            if schema["$ref"] in seen or schema.keys() - _NOTES - {"$ref"}:
                raise NotRegular("it has a reference beside others that are to be kept to")
            seen.add(schema["$ref"])
            schema = self._referred(schema["$ref"])
        return schema


def _merged(schemas: Sequence[Any]) -> Any:
    """Return several schemas as one; NotRegular if two define the same keyword."""
    if False in schemas:
        return False
    merged: dict[str, Any] = {}
    for schema in schemas:
        if schema is True:
            continue
        for key, value in schema.items():
            if key in _NOTES:
                continue
            if key == "required" and key in merged:
                merged[key] = [*merged[key], *value]
            elif key == "properties" and key in merged and not merged[key].keys() & value.keys():
                merged[key] = {**merged[key], **value}
            elif merged.setdefault(key, value) != value:
                raise NotRegular(f"it has two schemas of one value with {key}")
    closing = [schema for schema in schemas if isinstance(schema, dict) and "additionalProperties" in schema]
    if closing and sum("properties" in schema for schema in schemas if isinstance(schema, dict)) > 1:
        raise NotRegular("it has two schemas of one value with additionalProperties")
    return merged or True


def _separated(parts: Sequence[Part]) -> Part:
    return sequence(parts[0], *(sequence(_COMMA, part) for part in parts[1:]))


def _listing(part: Part, least: int, most: int | None) -> Part:
    """Return the automaton of `part` from `least` to `most` times, at least once, with commas."""
    return sequence(part, repeated(sequence(_COMMA, part), least - 1, None if most is None else most - 1))


def _literal(value: Any) -> Part:
    """Return the automaton of one value."""
    if isinstance(value, dict):
        pairs = [sequence(_literal(key), _COLON, _literal(item)) for key, item in value.items()]
        return sequence(text("{"), *([_separated(pairs)] if pairs else []), text("}"))
    if isinstance(value, list):
        return sequence(text("["), *([_separated([*map(_literal, value)])] if value else []), text("]"))
    if isinstance(value, float) and value == math.floor(value):
        value = int(value)
    try:
        return text(json.dumps(value, ensure_ascii=False))
    except UnicodeEncodeError:
        raise NotRegular("it has half of a surrogate pair") from None


@lru_cache(maxsize=256)
def _character(ranges: Ranges) -> Part:
    """Return the automaton of a string's character with a code point in `ranges`."""
    codes = (code for low, high in intersect(ranges, _ESCAPED) for code in range(low, high + 1))
    escaped = (text(json.dumps(chr(code))[1:-1]) for code in codes)
    return determinize(either(characters(intersect(ranges, _PLAIN)), *escaped)).part if ranges else nothing


def _strings(schema: Mapping[str, Any]) -> Part:
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    lengths = repeated(_character(EVERY), least, None if most is None else int(most))
    parts = [lengths] if least or most is not None else []
    if "pattern" in schema:
        parts.append(searched(schema["pattern"], _character))
    if "format" in schema:
        if (name := schema["format"]) not in _FORMATS:
            raise NotRegular(f"it has the format {name}")
        parts.append(regular(_FORMATS[name], re.ASCII))
    inside = parts[0] if len(parts) == 1 else lengths
    if len(parts) > 1:
        try:
            inside = reduce(intersection, map(determinize, parts)).part
        except NoText:
            return nothing
    return sequence(text('"'), inside, text('"'))


def _bounds(schema: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return least and largest whole number."""
    low = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    high = [math.floor(schema["maximum"])] if "maximum" in schema else []
    for key in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(schema.get(key), bool):
            raise NotRegular(f"it has {key} of an old draft")
    low += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    high += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    return max(low, default=None), min(high, default=None)


def _naturals(low: int, high: int | None) -> Part:
    """Return the automaton of whole numbers from `low` >= 0 on, without leading zeros."""
    if high is not None and high < low:
        return nothing
    size, parts = len(str(low)), []
    while high is None or size <= len(str(high)):
        begin = max(low, 10 ** (size - 1) if size > 1 else 0)
        if high is None and begin > low:
            parts.append(sequence(symbol(49, 57), repeated(_DIGIT, size - 1, None)))
            break
        end = 10**size - 1 if high is None else min(high, 10**size - 1)
        parts.append(between(str(begin).encode(), str(end).encode(), 48, 57))
        size += 1
    return either(*parts)


def _integers(low: int | None, high: int | None) -> Part:
    """Return the automaton of whole numbers; 0 has no minus."""
    parts = []
    if high is None or high >= 0:
        parts.append(_naturals(max(low or 0, 0), high))
    if low is None or low < 0:
        least = 1 if high is None else max(-high, 1)
        parts.append(sequence(text("-"), _naturals(least, None if low is None else -low)))
    return either(*parts)


def _numbers(schema: Mapping[str, Any]) -> Part:
    keywords = {key: schema[key] for key in sorted(_KEYWORDS["integer"]) if key in schema}
    if not keywords:
        return regular(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
    for key, value in keywords.items():
        if isinstance(value, bool) or value != math.floor(value) or abs(value) > _MOST_BOUND:
            raise NotRegular(f"it has {key} {value} of a number that need not be whole")
    bounds = {key: (int(value), key.startswith("exclusive")) for key, value in keywords.items()}
    low = max((bounds[key] for key in ("minimum", "exclusiveMinimum") if key in bounds), default=None)
    upper = (bounds[key] for key in ("maximum", "exclusiveMaximum") if key in bounds)
    high = min(upper, key=lambda item: (item[0], not item[1]), default=None)
    parts = []
    if high is None or high[0] > 0 or high == (0, False):
        parts.append(_decimals(low if low is not None and low >= (0, False) else (0, False), high))
    if low is None or low[0] < 0 or low == (0, False):
        least = (0, False) if high is None or high[0] > 0 else (-high[0], high[1])
        parts.append(sequence(text("-"), _decimals(least, None if low is None else (-low[0], low[1]))))
    return either(*parts)


def _decimals(low: tuple[int, bool], high: tuple[int, bool] | None) -> Part:
    """Return the automaton of decimal numbers from `low` >= 0 to `high`; each bound may be excluded."""
    begin = low[0] + low[1]
    fraction = sequence(text("."), repeated(_DIGIT, 1, _DECIMALS))
    parts = [sequence(_naturals(begin, None if high is None else high[0] - 1), optional(fraction))]
    if low[1] and (high is None or high[0] > low[0]):
        parts.append(sequence(_naturals(low[0], low[0]), regular(_ABOVE_ZERO, re.ASCII)))
    if high is not None and not high[1] and high[0] >= begin:
        zeros = sequence(text("."), repeated(text("0"), 1, _DECIMALS))
        parts.append(sequence(_naturals(high[0], high[0]), optional(zeros)))
    return either(*parts)
