"""Captures and the mask benchmark measure the same calls of engines, and rank them by the same total."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import called
from constrained import target
from torch import Tensor

from molprof.analysis.bench.masks import EngineMasks, step_costs
from molprof.analysis.documents.ranking import decision, ranked, ranking_document
from molprof.analysis.render import render
from molprof.common.bench_records import MaskedBatch, MaskedSchema
from molprof.common.measured import MeasuredRun
from molprof.profiler.bench.mask_engine import CompiledConstraint
from molprof.profiler.bench.samples import with_samples
from molprof.profiler.bench.schemas import SchemaFile
from molprof.profiler.constraints.base import MEASURED, Rows, has
from molprof.profiler.constraints.constraint import ConstraintProcessor
from molprof.profiler.constraints.engines import EngineProcessor
from molprof.profiler.constraints.token_dfa import TokenDfaBatch
from molprof.profiler.molecules.prompts import Constraint, Prompt

# Host time per step in µs to accept, fill and apply. XGrammar fills faster than llguidance, and applies slower.
PARTS = {"xgrammar": (2, 8, 250), "table": (1, 1, 20), "llguidance": (3, 30, 190)}
ORDER = ["table", "llguidance", "xgrammar"]


class Logged(EngineProcessor):
    """An engine that notes its calls, and allows every token."""

    name, notation, module = "logged", "ebnf", "json"
    package_name = "msgspec"

    def prepare(self, target: Any) -> int | None:
        self.log: list[tuple[Any, ...]] = []
        return 7

    def matchers(self, constraint: Constraint) -> Callable[[], Any]:
        return lambda: "matcher"

    def accept(self, matcher: Any, token: int) -> None:
        self.log.append(("accept", token))

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        self.log.append(("fill", list(rows)))
        mask.fill_(-1)

    def apply(self, scores: Tensor, mask: Tensor) -> None:
        self.log.append(("apply", tuple(scores.shape), tuple(mask.shape)))


def rows(count: int) -> Rows:
    return Rows([Prompt(1, "", "", None)] * count, 2)


def captured(processor: Any, steps: list[list[int]]) -> Any:
    """A batch as `generate` calls it: without a chosen token first."""
    batch, width = processor.start(rows(len(steps[0]))), target("llama").logits_width
    ids = torch.zeros((len(steps[0]), 2), dtype=torch.int64)
    for tokens in [None, *steps]:
        ids = ids if tokens is None else torch.cat([ids, torch.tensor(tokens)[:, None]], dim=1)
        batch(ids, torch.zeros((len(ids), width)))
    return batch


def followed(processor: Any, compiled: Any, steps: list[list[int]]) -> Any:
    """The same in the benchmark of masks."""
    batch = CompiledConstraint(processor, compiled, target("llama")).batch(len(steps[0]), torch.device("cpu"))
    times = [batch.fill()]
    for tokens in steps:
        batch.accept(*tokens)
        times.append(batch.fill())
    assert all(list(each) == ["read", "accept", "fill", "apply"] for each in times)
    return batch


def test_the_benchmark_makes_the_calls_of_a_capture() -> None:
    engine, steps = Logged(target("llama"), Constraint("regex", "a")), [[5, 6], [7, 8]]
    batch = captured(engine, steps)
    calls, engine.log = engine.log, []
    whole = (2, target("llama").logits_width)
    assert calls[:4] == [("fill", [0, 1]), ("apply", whole, (2, whole[1] // 32)), ("accept", 5), ("accept", 6)]
    other = followed(engine, engine.compile(Constraint("regex", "a")), steps)
    assert engine.log == calls
    # Both read one clock.
    assert has(batch, MEASURED)
    assert batch.laps.names == other.batch.laps.names
    assert batch.laps.calls == other.batch.laps.calls == 3


def test_a_table_is_applied_as_in_a_capture() -> None:
    whole = Constraint("regex", "[0-9]{2}")
    processor = ConstraintProcessor(target("llama"), whole)
    (token,) = target("llama").tokenizer("7", add_special_tokens=False)["input_ids"]
    batch = captured(processor, [[token]])
    other = followed(processor, processor.compile(whole), [[token]])
    assert type(batch) is type(other.batch) is TokenDfaBatch
    scores = torch.zeros((1, target("llama").logits_width))
    ids = torch.tensor([[0, 0, token]])
    fresh = processor.start(rows(1))
    fresh(ids[:, :2], scores.clone())
    assert other.bits().tolist() == fresh(ids, scores)[0].isfinite().int().tolist()
    # What making it took is told in parts.
    assert list(processor.made_ns) == ["constraint"]


def test_a_row_is_put_where_it_stands_after_tokens() -> None:
    whole = Constraint("regex", "[0-9]{2}")
    processor = ConstraintProcessor(target("llama"), whole)
    (token,) = target("llama").tokenizer("7", add_special_tokens=False)["input_ids"]
    walked = followed(processor, processor.compile(whole), [[token]])
    sought = CompiledConstraint(processor, processor.compile(whole), target("llama")).batch(1, torch.device("cpu"))
    sought.batch.seek(0, [token])
    sought.fill()
    assert sought.bits().tolist() == walked.bits().tolist()


def test_parts_of_making_an_engine() -> None:
    engine = Logged(target("llama"), Constraint("regex", "a"))
    assert (list(engine.made_ns), engine.made_ns["vocabulary"]) == (["package", "vocabulary", "constraint"], 7)


def measured(name: str | None, step_us: Sequence[float] = (1000, 1000, 1000), **changes: Any) -> MeasuredRun:
    parts = dict(zip(("accept", "fill", "apply"), (us * 1000 for us in PARTS[name]), strict=True)) if name else {}
    rest = {"once_ns": 10**9, "once_parts_ns": {"vocabulary": 9 * 10**8, "constraint": 10**8}} if name else {}
    figures: dict[str, Any] = {
        "name": name or "none", "processor": name, "rounds": [*range(len(step_us))],
        "step_ns": [us * 1000 for us in step_us], "phase_ns": 0, "constraint_ns": {"read": 1_000_000, **parts},
        "once_ns": None, "once_parts_ns": {}, "answers": 4, "judged": 4, "valid": 4, "wrong": 0, "tokens": 40,
        "steps": 10,
    }  # fmt: skip
    return MeasuredRun(**{**figures, **rest, **changes})


def benchmarked(name: str) -> EngineMasks:
    accept, fill, apply = ([us * 1000] * 4 for us in PARTS[name])
    batches = [MaskedBatch(rows, None, fill, accept, apply) for rows in (1, 8)]
    return EngineMasks(name, None, "llama", "1", (MaskedSchema("a", "ok", batches=batches),))


def test_both_order_by_the_same_total() -> None:
    costs = step_costs([benchmarked(name) for name in PARTS])
    assert [(cost.rows, cost.engine) for cost in costs] == [(rows, name) for rows in (1, 8) for name in ORDER]
    assert [cost.total.mean_ns for cost in costs[:3]] == [22_000, 223_000, 260_000]
    runs = ranked([measured(None), *map(measured, PARTS)])
    assert [run.processor for run in runs] == [None, *ORDER]
    assert [run.constraint_step_ns for run in runs[1:]] == [22_000, 223_000, 260_000]


def test_only_schemas_of_all_engines_are_compared() -> None:
    one, other = benchmarked("table"), benchmarked("xgrammar")
    slow = MaskedSchema("b", "ok", batches=[MaskedBatch(1, None, [10**9], [1], [1])])
    shorter = MaskedSchema("a", "ok", batches=[MaskedBatch(1, None, [10**9], [1], [1], instance="another")])
    more = EngineMasks("xgrammar", None, "llama", "1", (*other.schemas, slow, shorter))
    refused = EngineMasks("llguidance", None, "llama", "1", (MaskedSchema("a", "refused"),))
    assert [cost.total.count for cost in step_costs([one, more, refused])] == [4, 4, 4, 4]


def test_results_of_before_have_no_applying() -> None:
    (cost,) = step_costs([EngineMasks("table", None, "llama", "1", (
        MaskedSchema("a", "ok", batches=[MaskedBatch(1, 1, [5, 7])]),
    ))])  # fmt: skip
    assert (cost.accept, cost.apply, cost.total.mean_ns) == (None, None, 6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "Take table: of a step of 1.00 ms the constraint takes 22.0 µs, and a step does not differ"),
        ({"xgrammar": {"step_us": (800, 801, 799)}}, "Take xgrammar: of a step of 800 µs the constraint takes 260 µs"),
        ({"xgrammar": {"step_us": (800, 1200, 799)}}, "Take table: "),
        ({"table": {"wrong": 1, "valid": 3}}, "the constraint takes 223 µs"),
        ({"table": {"wrong": 1, "valid": 3}}, "; left out: table (3 of 4 valid)."),
        ({"table": {"valid": 0}}, "; left out: table (0 of 4 valid)."),
        ({"table": {"steps": 20}}, "; over whole answers llguidance is faster: 10 steps, not 20"),
    ],
)
def test_the_decision(changes: dict[str, dict[str, Any]], said: str) -> None:
    runs = [measured(None), *(measured(name, **changes.get(name, {})) for name in PARTS)]
    sentence = decision(runs)
    assert said in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_the_ranking_is_shown() -> None:
    document = ranking_document([measured(None), *map(measured, PARTS)])
    shown = render_text(document)
    assert shown.index("table ") < shown.index("llguidance ") < shown.index("xgrammar ")
    assert [item["processor"] for item in document.json()] == [None, *ORDER]
    assert list(document.json()[1]["interval"]) == [1.0, 1.0]


def render_text(document: Any) -> str:
    return str(render(document, "table", 120))


def test_texts_are_made_of_a_constraint() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema["additionalProperties"] = False
    made = with_samples(SchemaFile("a", schema, ()), target("llama")).instances
    assert made == with_samples(SchemaFile("a", schema, ()), target("llama")).instances
    assert {tuple(one.data) for one in made} == {("n",)}
    regex = with_samples(SchemaFile("regex", None, (), Constraint("regex", "[ab]{3}|x")), target("llama")).instances
    assert {len(one.text) for one in regex} <= {1, 3}
    # What has no automaton an engine writes.
    unique = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}
    for one in with_samples(SchemaFile("a", unique, ()), target("llama")).instances:
        assert sorted(set(one.data)) == sorted(one.data)
    assert with_samples(SchemaFile("regex", None, (), Constraint("regex", r"(a)\1")), target("llama")).instances == ()


# The commands


def test_all_engines_that_take_a_constraint(tmp_path: Path) -> None:
    """A refusal is a line; the others go on, and the capture ends with a ranking."""
    for name in ("xgrammar", "llguidance", "jsonschema_rs"):
        pytest.importorskip(name)
    unique = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}
    (tmp_path / "unique.json").write_text(json.dumps(unique))
    (tmp_path / "ask.txt").write_text("Is water wet?\n")
    line = "capture --model llama --processor all --schema unique.json --prompts ask.txt --max-new-tokens 8 --repeats 1"
    code, out, err = called([*line.split(), "-o", "runs"], tmp_path)
    assert code == 0, err
    assert "table is left out: no table is made: it has uniqueItems" in err
    assert 'llguidance is left out: llguidance: Unimplemented keys: ["uniqueItems"]' in err
    assert {"llama.json.gz", "llama-xgrammar.json.gz"} <= {path.name for path in (tmp_path / "runs").iterdir()}
    assert "llama-table.json.gz" not in {path.name for path in (tmp_path / "runs").iterdir()}
    assert out.index("Take ") < out.index("none ") < out.index("xgrammar ", out.index("none "))
    code, out, _ = called(["report", "runs/llama-xgrammar.json.gz", "--format", "json"], tmp_path)
    run = json.loads(out)["run"]
    names = {item["processor"] for item in run["session"]["measured"]}
    assert {None, "xgrammar"} <= names
    assert set(run["constraint_ns"]) == {"read", "accept", "fill", "apply"}
    assert set(run["processor_parts_ns"]) == {"package", "vocabulary", "constraint"}


def test_all_requires_a_constraint_that_some_engine_takes(tmp_path: Path) -> None:
    (tmp_path / "ask.txt").write_text("Is water wet?\n")
    line = [
        "capture",
        "--model",
        "llama",
        "--processor",
        "all",
        "--prompts",
        "ask.txt",
        "--max-new-tokens",
        "8",
        "--repeats",
        "1",
        "-o",
        "runs",
    ]
    code, _, err = called([*line, "-o", "runs"], tmp_path)
    assert (code, "nothing says to what" in err) == (2, True)
    code, _, err = called([*line, "--regex", r"(a)\1", "-o", "runs"], tmp_path)
    assert (code, "no installed engine takes the constraint" in err) == (2, True)
    assert "table is left out: no table is made: it has a back reference" in err


def test_one_constraint_is_measured(tmp_path: Path) -> None:
    line = ["bench", "masks", "--regex", "[0-9]{3}-[a-z]+", "--engine", "table", "--repeats", "1", "--batch", "1,4"]
    code, _, err = called([*line, "-o", "masks.jsonl"], tmp_path)
    assert (code, "table llama regex [0-9]{3}-[a-z]+" in err) == (0, True), err
    code, out, _ = called(["bench", "show", "masks.jsonl", "--format", "json"], tmp_path)
    (shown,) = json.loads(out)["masks"]
    assert [(one["rows"], one["total"]["count"] > 0) for one in shown["batches"]] == [(1, True), (4, True)]
    assert shown["accept"]["count"] < shown["mask"]["count"] == shown["apply"]["count"] == shown["total"]["count"]
    code, _, err = called([*line, "--choices", "a,b", "--dry-run"], tmp_path)
    assert (code, "--regex and --choices exclude each other" in err) == (2, True)
