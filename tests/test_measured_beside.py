"""The advice on a constraint names faster engines, measured in the trace's folder on the same constraint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny_trace
from conftest import called
from msgspec.structs import replace as changed
from test_constraint import run_of

from molprof import api
from molprof.analysis.bench.masks import engine_masks, step_costs
from molprof.analysis.bench.summary import summed
from molprof.common.bench_records import read_results
from molprof.common.manifest import from_json

SCHEMA = '{"type": "integer"}\n'
ASKS = "Rank all installed engines on this constraint, without the model: molprof bench masks "


def write(path: Path, processor: str, processor_ns: int, schema: str = SCHEMA) -> Path:
    content = run_of("xgrammar", processor_ns, processor_parameters={"schema": schema})
    for repeat in content["molprof"]["timings"]["repeats"]:
        repeat["steps_ns"] = [[1_000_000] * steps for steps in content["molprof"]["steps_per_batch"]]
    made = from_json(content["molprof"])
    own = replace(made.settings, processor=processor, schema="number.json", prompts="ask.txt", max_new_tokens=64)
    resolved = changed(made.resolved, processor=processor, not_recorded=[])
    content["molprof"] = changed(made, schema=2, settings=own, resolved=resolved).to_json()
    return tiny_trace.write(path, content)


def fix(path: Path) -> str:
    (found,) = [item for item in api.report(path).findings if item.id == "constraint"]
    return found.fix


def results(path: Path, costs: dict[str, list[int]], tokenizer: str, schema: str = SCHEMA, refused: str = "") -> Path:
    """A file of `bench masks` of one schema: times of steps of 8 rows by engine."""
    from molprof.analysis.bench.beside import _content

    rows: list[dict[str, Any]] = [{"record": "environment", "id": "e", "environment": {}}]
    for engine, times in costs.items():
        seen = {
            "description": "made 1", "valid": True, "tokens": 1, "accepted": engine != refused, "mask_ns": [5],
            "accept_ns": [], "forced": 0, "forced_text": 0, "states": [["number", 1]], "keywords": [["type", 1]],
        }  # fmt: skip
        batch = {"rows": 8, "threads": None, "fill_ns": times, "instance": "made 1", "device": "cuda"}
        one = {"name": "number", "status": "ok", "instances": [seen], "batches": [batch], "left_out": 2}
        settings = {"kind": "masks", "engine": engine, "tokenizer": tokenizer, "content": _content("schema", schema)}
        rows.append(
            {
                "record": "result", "case": engine, "label": engine, "settings": settings, "environment": "e",
                "repeat": 0, "status": "ok", "figures": {"schemas": [one], "version": "1"},
            }
        )  # fmt: skip
    path.write_text("".join(json.dumps({"schema": 2, **row}) + "\n" for row in rows))
    return path


def test_captures_apart_in_one_folder_are_read(tmp_path: Path) -> None:
    mine = write(tmp_path / "a.json.gz", "xgrammar", 800_000)
    assert fix(mine).startswith(ASKS)
    other = write(tmp_path / "b.json.gz", "table", 40_000)
    told = fix(mine)
    assert told.startswith("Take --processor table: ")
    assert (f"(captured apart: {other}), not " in told, ASKS in told) == (True, False)
    write(other, "table", 40_000, '{"type": "string"}')
    assert fix(mine).startswith(ASKS)
    write(other, "llguidance", 1_600_000)
    assert fix(mine).startswith(f"Keep it: of 2 engines measured (captured apart: {other}) it costs least")


def test_results_of_a_benchmark_beside_the_trace_are_read(tmp_path: Path) -> None:
    mine = write(tmp_path / "a.json.gz", "xgrammar", 800_000)
    run = api.report(mine).run
    assert run is not None
    tokenizer = run.setup.tokenizer
    file = results(tmp_path / "masks.jsonl", {"xgrammar": [400_000] * 4, "table": [100_000] * 4}, tokenizer)
    assert fix(mine).startswith(
        f"Take --processor table: 100 µs per step of 8 rows, not 400 µs, in {file} (molprof bench masks, without the "
        "model); a step can lose about 15.0 %."
    )
    # One that forbids valid texts is not named; nor are results of another constraint or tokenizer.
    results(file, {"xgrammar": [400_000] * 4, "table": [100_000] * 4}, tokenizer, refused="table")
    assert fix(mine).startswith("Keep it: of 2 engines none costs less, 400 µs per step of 8 rows in ")
    results(file, {"xgrammar": [400_000] * 4, "table": [100_000] * 4}, "another")
    assert fix(mine).startswith(ASKS)
    results(file, {"xgrammar": [400_000] * 4, "table": [100_000] * 4}, tokenizer, '{"type": "null"}')
    assert fix(mine).startswith(ASKS)


def test_engines_are_compared_over_the_steps_that_all_made(tmp_path: Path) -> None:
    file = results(tmp_path / "masks.jsonl", {"xgrammar": [100, 100, 900, 900], "table": [300, 300]}, "t")
    costs = step_costs(engine_masks(summed(read_results(file))))
    assert [(cost.engine, cost.total.count, cost.total.mean_ns) for cost in costs] == [
        ("xgrammar", 2, 100),
        ("table", 2, 300),
    ]
    _, out, _ = called(["bench", "show", "masks.jsonl"], tmp_path)
    assert "texts left out for time (--seconds): table 2 of 3, xgrammar 2 of 3" in " ".join(out.split())


def test_a_wrong_regular_expression_is_refused_at_once(tmp_path: Path) -> None:
    code, _, err = called(["bench", "masks", "--regex", "(", "-o", "masks.jsonl"], tmp_path)
    said = "'(' is no regular expression: missing ), unterminated subpattern at position 0"
    assert (code, err.splitlines()[0]) == (2, f"molprof: error: Invalid value for '--regex': {said}")
    assert not (tmp_path / "masks.jsonl").exists()
    # Other dialects have what Python does not read.
    assert called(["bench", "masks", "--regex", r"\p{L}+", "--dry-run"], tmp_path)[0] == 0
