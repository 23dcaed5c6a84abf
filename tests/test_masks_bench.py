"""Masks along JSON schemas: sets and keywords are read, engines measured and compared, whatever a process does."""

from __future__ import annotations

import json
from pathlib import Path

import examples
import pytest
from conftest import called
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from molprof.common.bench_records import MaskedInstance, MaskFigures, read_results
from molprof.common.errors import TraceError, UsageError
from molprof.common.process.guarded import Limits
from molprof.common.typed_json import read_typed
from molprof.profiler.bench.cases import MasksCase, to_json
from molprof.profiler.bench.masks import measure_each, measure_masks
from molprof.profiler.bench.schemas import find_schemas, parts, read_schemas
from molprof.profiler.bench.tools import find_tools, tool_sets

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TESTS = [
    {"valid": True, "data": {"name": "Ann", "age": 30}, "description": "a person"},
    {"valid": True, "data": {"age": 30, "name": "Ann"}, "description": "another order"},
    {"valid": False, "data": {"name": "Ann", "age": "30"}, "description": "a text"},
]
UNIQUE = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer of single bytes, and a few longer tokens: `"name"` can be cut in several ways."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("n", "a"), ("m", "e"), ("na", "me"), ('"', "name"), ('"', "na"), ("3", "0")]
    texts = [*alphabet, *("".join(pair) for pair in merges), "<end>"]
    made = Tokenizer(models.BPE({text: place for place, text in enumerate(texts)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("words")
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schema of MaskBench, one of JSONSchemaBench, one that not all engines take."""
    made = tmp_path_factory.mktemp("schemas")
    (made / "person.json").write_text(json.dumps({"description": "x", "meta": {}, "schema": PERSON, "tests": TESTS}))
    (made / "easy").mkdir()
    (made / "easy" / "plain.json").write_text(json.dumps({"type": "object", "properties": {"schema": {}}}))
    twice = {"valid": False, "data": [1, 1], "description": "twice"}
    (made / "unique.json").write_text(json.dumps({"schema": UNIQUE, "tests": [twice]}))
    return made


def measured(tmp_path: Path, words: str, folder: Path, engine: str, other: str | None = None) -> MaskFigures:
    for name in {engine, other} - {"table", None}:
        pytest.importorskip(str(name))
    found = find_schemas(folder)
    content = found.digest(0, 3)
    case = MasksCase(engine, words, str(folder), 0, len(found.names), content, other, batches=(4,), threads=2)
    measure_masks(to_json(case), 0, str(tmp_path / "kept"))
    head, *lines = map(json.loads, (tmp_path / "kept").read_text().splitlines())
    return read_typed({"schemas": lines, "version": head["version"]}, MaskFigures, "figures", "")


# Schemas


def test_sets_of_schemas_are_read(folder: Path, tmp_path: Path) -> None:
    found = list(read_schemas(folder))
    assert [(item.name, len(item.instances)) for item in found] == [("easy/plain", 0), ("person", 3), ("unique", 1)]
    assert found[0].schema == {"type": "object", "properties": {"schema": {}}}
    assert [item.name for item in read_schemas(folder, 1, 1)] == ["person"]
    for text, problem in (
        ("[]", "holds no object"),
        ("{", "is no JSON"),
        ('{"schema": {}, "tests": [{}]}', "without data"),
        ('{"schema": {}, "tests": [{"data": 1, "valid": "no"}]}', "has a test that is valid: 'no'"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UsageError, match=problem):
            find_schemas(tmp_path)
    (tmp_path / "bad.json").unlink()
    with pytest.raises(UsageError, match="holds no schema"):
        find_schemas(tmp_path)


def test_molprofs_own_set() -> None:
    """Every instance is as valid as it says, and is written as its parts are."""
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    for item in read_schemas(None):
        validator = jsonschema_rs.validator_for(item.schema)
        assert {one.declared for one in item.instances} == {True, False}
        for one in item.instances:
            assert validator.is_valid(one.data) is one.declared, (item.name, one.description)
            assert "".join(part[0] for part in parts(one.data, item.schema)) == one.text


def test_the_keyword_that_governs_each_part() -> None:
    schema = {
        "$defs": {"code": {"type": "string", "pattern": "^a"}},
        "type": "object",
        "properties": {
            "id": {"$ref": "#/$defs/code"},
            "size": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 0}, {"type": "string"}]},
            "rest": {"type": "array", "prefixItems": [{"const": True}], "items": {"allOf": [{"maxLength": 3}]}},
        },
    }
    data = {"id": "ab", "size": 1.5, "rest": [True, "x"], "more": None}
    assert list(parts(data, schema)) == [
        ("{", "structure", "type"), ("", "structure", "type"), ('"id"', "key", "properties"),
        (": ", "structure", "properties"), ('"ab"', "string", "pattern"), (", ", "structure", "type"),
        ('"size"', "key", "properties"), (": ", "structure", "properties"), ("1.5", "number", "minimum"),
        (", ", "structure", "type"), ('"rest"', "key", "properties"), (": ", "structure", "properties"),
        ("[", "structure", "prefixItems"), ("", "structure", "prefixItems"), ("true", "literal", "const"),
        (", ", "structure", "prefixItems"), ('"x"', "string", "maxLength"), ("]", "structure", "prefixItems"),
        (", ", "structure", "type"), ('"more"', "key", "additionalProperties"),
        (": ", "structure", "additionalProperties"), ("null", "literal", "anything"), ("}", "structure", "type"),
    ]  # fmt: skip


# Measuring


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance", "table"])
def test_an_engine_along_instances(tmp_path: Path, words: str, folder: Path, engine: str) -> None:
    plain, person, unique = measured(tmp_path, words, folder, engine).schemas
    # A table says no object of anything.
    assert (plain.status, plain.instances, person.status) == ("refused" if engine == "table" else "ok", [], "ok")
    assert (person.first_mask_ns or 0) >= (person.compile_ns or 0) > 0
    steps = max(16, person.instances[0].tokens)
    assert [(one.rows, one.threads, one.device, len(one.fill_ns)) for one in person.batches] == [
        (4, threads, "cpu", steps) for threads in ((None,) if engine == "table" else (None, 1, 2))
    ]  # fmt: skip
    assert all(len(one.accept_ns) == len(one.apply_ns) == steps == len(one.total_ns) for one in person.batches)
    right, order, text = person.instances
    assert (right.accepted, right.valid, right.stopped_at) == (True, True, None)
    assert len(right.mask_ns) == right.tokens + 1 == len(right.accept_ns) + 1 == len(right.apply_ns)
    assert right.states == [
        ("structure", 1), ("key", 3), ("structure", 2), ("string", 5), ("structure", 2), ("key", 5), ("structure", 2),
        ("number", 1), ("structure", 1), ("end", 1),
    ]  # fmt: skip
    assert ("maxLength", 5) in right.keywords
    assert 0 < right.forced <= right.forced_text <= len(right.mask_ns)
    # All write properties in the order of the schema alone, and refuse a text where a number belongs.
    assert (order.accepted, order.valid, text.accepted, text.valid) == (False, True, False, False)
    assert order.stopped_at == '{"|a'
    assert text.stopped_at == '{"name": "Ann", "age": |"'
    assert unique.status == ("ok" if engine == "xgrammar" else "refused")
    if engine == "xgrammar":  # it leaves out what its grammar cannot say
        assert [(one.accepted, one.valid, one.declared) for one in unique.instances] == [(True, False, False)]


def test_two_engines_on_the_same_prefixes(tmp_path: Path, words: str, folder: Path) -> None:
    _, person, unique = measured(tmp_path, words, folder, "xgrammar", "llguidance").schemas
    assert unique.status == "refused"
    assert 0 < (person.differing or 0) < (person.prefixes or 0)
    assert person.only.keys() == person.looked.keys() == {"xgrammar", "llguidance"}
    found = {(one.prefix, one.token, one.allowed_by): one.verdict for one in person.differences}
    # llguidance forces the tokenizer's own token, XGrammar allows every cut of the text.
    assert found['{"', "na", "xgrammar"] == "another cut"
    # Where a text has a largest length, XGrammar allows control characters, and no escapes.
    assert found['{"name": "', "\x00", "xgrammar"] == "wrong"
    assert found['{"name": "', "\\", "llguidance"] == "right"
    # `"na` and `"name` are tokens, which the tokenizer does not write: it splits text at marks first.
    assert person.unusual == {"xgrammar": 8, "llguidance": 8}


def test_a_schema_that_ends_its_process_ends_no_other(folder: Path) -> None:
    case = MasksCase("xgrammar", "llama", str(folder), 0, 3, "")
    ending = measure_each(case, Limits(60.0), "bench_data:masks_ended")
    assert ending.state == "ok"
    assert [(item["name"], item["status"]) for item in ending.value["figures"]["schemas"]] == [
        ("easy/plain", "ok"), ("person", "failed"), ("unique", "ok"),
    ]  # fmt: skip


def test_masks_have_a_state_and_a_keyword() -> None:
    with pytest.raises(TraceError, match="without a state"):
        MaskedInstance("", True, 1, True, [1, 2], [1], 0, 0, [("key", 1)], [("type", 2)])


# The command


def test_a_benchmark_of_masks(tmp_path: Path, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgrammar")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    line = ["bench", "masks", str(folder), "--tokenizer", words, "--engine", "xgrammar", "--repeats", "1"]
    line += ["--batch", "1,2"]
    code, _, err = called([*line, "-o", "masks.jsonl"], tmp_path)
    assert (code, "results: 1 ok" in err) == (0, True), err
    read = read_results(tmp_path / "masks.jsonl")
    (result,) = read.results
    assert list(read.environments) == [result.environment]  # so that --resume knows it
    instances = [one for schema in result.read_figures(MaskFigures).schemas for one in schema.instances]
    code, out, _ = called(["bench", "show", "masks.jsonl", "--format", "json"], tmp_path)
    (shown,) = json.loads(out)["masks"]
    assert shown["mask"]["count"] == sum(len(one.mask_ns) for one in instances)
    for by in ("state", "position", "keyword"):
        counts = [group["time"]["count"] for group in shown["groups"] if group["by"] == by]
        assert sum(counts) == shown["mask"]["count"]
    steps = max(16, max(one.tokens for one in instances if one.accepted))
    assert [(one["rows"], one["threads"], one["device"]) for one in shown["batches"]] == [
        (1, None, "cpu"), (2, None, "cpu"),
    ]  # fmt: skip
    for part in ("accept", "fill", "apply", "total"):
        assert shown["batches"][0][part]["count"] >= steps
    assert [item["instance"] for item in shown["wrongly_refused"]] == ["another order"]
    assert [item["instance"] for item in shown["wrongly_accepted"]] == ["twice"]
    code, out, _ = called(["bench", "show", "masks.jsonl"], tmp_path)
    assert (code, "Wrongly refused or accepted" in out, "maxLength" in out) == (0, True, True)
    _, out, _ = called(["bench", "show", "masks.jsonl", "--format", "markdown"], tmp_path)
    page = f"a\n<!-- bench show: Masks of a batch: {words} -->\n| old |\n\nb"
    before, mark, *table, _, after = examples.measured(page, out).splitlines()
    assert [before, mark, after] == [page[:1], page.splitlines()[1], page[-1:]]
    assert [row.split(" | ")[:3] for row in table[2:]] == [
        ["| xgrammar", str(one["rows"]), str(one["total"]["count"])] for one in shown["batches"]
    ]
    code, out, _ = called(["bench", "show", "masks.jsonl", "--format", "csv"], tmp_path)
    assert (code, f"step,mask,{shown['mask']['p50_ns']}" in out) == (0, True)


def test_cases_of_masks_are_listed(tmp_path: Path, folder: Path) -> None:
    code, out, _ = called(["bench", "masks", str(folder), "--schemas", "2", "--oracle", "--dry-run"], tmp_path)
    assert code == 0
    assert "of 20 cases can run" in out
    words = " ".join(out.split())
    assert "xgrammar against llguidance llama schemas 1 to 2" in words
    shared = called(["bench", "masks", str(folder), "--schemas", "1", "--share", "1/2", "--dry-run"], tmp_path)[1]
    assert [shared.count(f"llama schemas {number} to") for number in (1, 2, 3)] == [5, 0, 5]
    assert "pip install outlines-core" in words or "llguidance against outlines-core llama schemas 3 to 3" in words


# Sets of tools


def tools_measured(tmp_path: Path, words: str, engine: str, tools: str = "", count: int = 6) -> MaskFigures:
    pytest.importorskip("xgrammar" if engine == "table" else engine)
    case = MasksCase(engine, words, None, 0, count, "", tools=tools)
    assert to_json(case)["tools"] == tools
    measure_masks(to_json(case), 0, str(tmp_path / "kept"))
    head, *lines = map(json.loads, (tmp_path / "kept").read_text().splitlines())
    return read_typed({"schemas": lines, "version": head["version"]}, MaskFigures, "figures", "")


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
def test_sets_of_tools_as_tags_and_as_required_calls(tmp_path: Path, words: str, engine: str) -> None:
    found = tools_measured(tmp_path, words, engine, count=2).schemas
    assert [(item.name, item.status, item.tools) for item in found] == [
        ("1 tools as tags", "ok", 1), ("1 tools required", "ok", 1),
    ]  # fmt: skip
    for item in found:
        assert all(one.accepted and one.valid for one in item.instances), item.name
        states = {name for one in item.instances for name, _ in one.states}
        assert (states >= {"no tag open", "tag", "in a tag"}) == item.name.endswith("tags")
        assert (item.second_alone_ns is not None) == (item.again_ns is not None) == (engine == "xgrammar")
    assert {name for name, _ in found[0].instances[-1].states} == {"no tag open"}


def test_engines_without_structural_tags_are_named(tmp_path: Path, words: str) -> None:
    tags, required = tools_measured(tmp_path, words, "table", count=2).schemas
    assert (tags.status, required.status) == ("refused", "ok")
    assert "it is a structural tag" in (tags.message or "")


def test_a_set_of_tools_in_a_file(tmp_path: Path, words: str) -> None:
    parameters = {"type": "object", "$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    path = tmp_path / "tools.json"
    path.write_text(json.dumps({"tools": [tool]}))
    tags, required = tool_sets(str(path))
    assert tags.instances[0].text.endswith('<function=add>{"a": 7}</function> That is all for today.')
    assert required.instances[0].data == [{"name": "add", "parameters": {"a": 7}}]
    assert find_tools(str(path)).names == ("1 tools as tags", "1 tools required")
    assert [len(item.tools) for item in tool_sets("")] == [1, 1, 8, 8, 64, 64]
    for text, problem in (("{", "is no JSON"), ("[]", "has no tools"), ("[{}]", "a tool without a function")):
        path.write_text(text)
        with pytest.raises(UsageError, match=problem):
            find_tools(str(path))
