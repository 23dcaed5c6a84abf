"""JSON schemas with instances, in the layout of MaskBench; and the keyword that governs each character."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molprof.common.bench_records import digest
from molprof.common.errors import UsageError
from molprof.common.files import read_text, refuse_stream
from molprof.common.text import shortened
from molprof.profiler.molecules.prompts import Constraint

OWN = Path(__file__).parent / "schemas.json"
_HINT = 'a JSON file per schema: {"schema": {...}, "tests": [{"valid": true, "data": ..., "description": ""}]}'
# The first of these that a schema has governs the value, before its type.
_KEYWORDS = (
    "const", "enum", "pattern", "format", "maxLength", "minLength", "multipleOf", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "uniqueItems", "maxItems", "minItems", "prefixItems",
    "patternProperties", "maxProperties", "minProperties",
)  # fmt: skip
_MOST_REFERENCES = 32


@dataclass(frozen=True)
class Instance:
    """An instance of a schema, and True if it is valid."""

    data: Any
    declared: bool | None  # valid by the file; None: it does not say
    description: str
    written: str | None = None  # its text, where it is no JSON

    @property
    def text(self) -> str:
        """The instance as a model writes it: with spaces after colons and commas."""
        return json.dumps(self.data, ensure_ascii=False) if self.written is None else self.written


@dataclass(frozen=True)
class SchemaFile:
    """A schema with its instances."""

    name: str
    schema: Any  # None of a constraint that is none
    instances: tuple[Instance, ...]
    constraint: Constraint | None = None
    tools: tuple[dict[str, Any], ...] = ()  # that it is made of

    @property
    def whole(self) -> Constraint:
        """The constraint of the schema."""
        return self.constraint or Constraint("schema", json.dumps(self.schema))


@dataclass(frozen=True)
class SchemaFolder:
    """The schemas of a folder by name with a digest of each, without their content."""

    names: tuple[str, ...]
    digests: tuple[str, ...]

    def digest(self, first: int, count: int) -> str:
        """Return a digest of some schemas."""
        return digest({"schemas": self.digests[first : first + count]})


def find_schemas(folder: Path | None) -> SchemaFolder:
    """Return the schemas of a folder, by default of molprof's own set. Raises UsageError if there are none."""
    names, digests = [], []
    for item in read_schemas(folder):
        names.append(item.name)
        digests.append(digest({"schema": item.schema, "tests": [[one.data, one.declared] for one in item.instances]}))
    if not names:
        raise UsageError(f"{folder} holds no schema", hint=_HINT)
    return SchemaFolder(tuple(names), tuple(digests))


def read_schemas(folder: Path | None, first: int = 0, count: int | None = None) -> Iterator[SchemaFile]:
    """Yield schemas by name, from the one numbered `first` on; `folder` may be a file. Raises UsageError.

    A file without `tests` is a bare schema, as those of JSONSchemaBench are.
    """
    last = None if count is None else first + count
    if folder is None:
        yield from (_read(item, item["name"]) for item in json.loads(OWN.read_text())[first:last])
        return
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*.json") if not path.is_dir())
    for path in paths[first:last]:
        refuse_stream(path)
        try:
            content = json.loads(read_text(path))
        except (ValueError, RecursionError) as problem:
            raise UsageError(f"{path} is no JSON: {problem}", hint=_HINT) from None
        yield _read(content, path.stem if path == folder else str(path.relative_to(folder).with_suffix("")))


def _read(content: Any, name: str) -> SchemaFile:
    if not isinstance(content, dict):
        raise UsageError(f"{name}.json holds no object", hint=_HINT)
    if "schema" not in content or not isinstance(content.get("tests"), list):
        return SchemaFile(name, content, ())
    tests = content["tests"]
    if not all(isinstance(test, dict) and "data" in test for test in tests):
        raise UsageError(f"{name}.json has a test without data", hint=_HINT)
    if wrong := [test["valid"] for test in tests if test.get("valid") not in (True, False, None)]:
        raise UsageError(f"{name}.json has a test that is valid: {shortened(repr(wrong[0]))}", hint=_HINT)
    instances = (Instance(test["data"], test.get("valid"), str(test.get("description", ""))) for test in tests)
    return SchemaFile(name, content["schema"], tuple(instances))


Part = tuple[str, str, str]  # text; `key`, `string`, `number`, `literal` or `structure`; keyword


def parts(value: Any, schema: Any, root: Any = None) -> Iterator[Part]:
    """Yield the text of an instance in parts, as `Instance.text` has it, each with its kind and keyword.

    Of several branches (anyOf, oneOf) the first whose type fits is followed.
    """
    root = schema if root is None else root
    schema, keyword = _governing(schema, value, root)
    if isinstance(value, dict):
        yield "{", "structure", keyword
        for index, (key, item) in enumerate(value.items()):
            properties = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
            of_item = properties.get(key, schema.get("additionalProperties", True))
            named = "properties" if key in properties else "additionalProperties"
            yield ", " if index else "", "structure", keyword
            yield json.dumps(key, ensure_ascii=False), "key", named
            yield ": ", "structure", named
            yield from parts(item, of_item, root)
        yield "}", "structure", keyword
    elif isinstance(value, list):
        yield "[", "structure", keyword
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):  # before draft 2020-12
            first, rest = rest, schema.get("additionalItems", True)
        for index, item in enumerate(value):
            yield ", " if index else "", "structure", keyword
            yield from parts(item, first[index] if index < len(first) else rest, root)
        yield "]", "structure", keyword
    else:
        kind = "string" if isinstance(value, str) else "literal" if isinstance(value, bool | None) else "number"
        yield json.dumps(value, ensure_ascii=False), kind, keyword


def _governing(schema: Any, value: Any, root: Any) -> tuple[dict[str, Any], str]:
    """Return the schema of a value without references and branches, and its keyword."""
    way = None
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, dict):
            return {}, way or "anything"
        branches = schema.get("anyOf") or schema.get("oneOf")
        if "$ref" in schema:
            way, schema = "$ref", _referred(schema["$ref"], root)
        elif isinstance(branches, list):
            way = "anyOf" if "anyOf" in schema else "oneOf"
            schema = next((item for item in branches if _fits(item, value, root)), branches[0])
        elif isinstance(schema.get("allOf"), list):
            way, merged = "allOf", {name: item for name, item in schema.items() if name != "allOf"}
            for branch in schema["allOf"]:
                merged |= branch if isinstance(branch, dict) else {}
            schema = merged
        else:
            break
    keyword = next((name for name in _KEYWORDS if name in schema), None)
    return schema, keyword or way or ("type" if "type" in schema else "anything")


def _referred(reference: Any, root: Any) -> Any:
    """Return the target of a reference within the schema; for other references, a schema that allows anything."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return True
    schema = root
    for word in reference.removeprefix("#").split("/")[1:]:
        word = word.replace("~1", "/").replace("~0", "~")
        schema = schema.get(word, True) if isinstance(schema, dict) else True
    return schema


_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
    "number": (int, float),
}  # fmt: skip


def _fits(schema: Any, value: Any, root: Any) -> bool:
    """Return True if a value has the type of a schema, and an object has the required properties."""
    if isinstance(schema, dict) and "$ref" in schema:
        schema = _referred(schema["$ref"], root)
    if not isinstance(schema, dict):
        return schema is not False
    types = schema.get("type", list(_TYPES))
    types = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, dict) and not {*schema.get("required", [])} <= value.keys():
        return False
    return any(isinstance(value, _TYPES.get(name, object)) for name in types)
