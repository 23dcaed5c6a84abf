"""Scripts of benchmarks/ that keep what they measure as JSON, and the tables that are made from it without torch."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import decoding
import processors
import pytest
import shown
from records import DECODING, PROCESSORS, SCHEMA, Costs, CostSettings, Ways, WaySettings, read_record, write_record
from tiny import loaded

from molprof.common.errors import TraceError
from molprof.common.manifest import Environment
from molprof.common.text_format import DEFAULT
from molprof.profiler.molecules.prompts import Prompt, short_molecules
from molprof.profiler.molecules.smiles import split_atoms

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SHORTEST = sorted(short_molecules(100), key=len)[:2]  # of the built-in ones, whose bonds are known
FEW_ATOMS = ["CO", "C"]
MACHINE = Environment(
    None, 80_000_000_000, "570.1", "12.8", "91002", "2.11", "5.17", None, "0.1", "3.12", "Linux", "A CPU", 16, 8
)
ASKED = CostSettings(None, 2, 2, 2, "float32")


@pytest.fixture(scope="module")
def costs() -> Costs:
    """Of a random tiny model."""
    options = argparse.Namespace(only="none,grammar,qwen", batch_size=2, rounds=2, max_new_tokens=None)
    prompts = [Prompt(line, "", DEFAULT.prompt_of(item), split_atoms(item)) for line, item in enumerate(SHORTEST)]
    found, left_out = processors.measure(loaded("llama"), prompts, options)
    return Costs(SCHEMA, PROCESSORS, "2026-11-22", MACHINE, ASKED, {"llama": found}, {"llama": left_out})


def test_costs_come_back_from_their_file(costs: Costs, tmp_path: Path) -> None:
    write_record(tmp_path / "processors-llama.json", costs)
    assert read_record(tmp_path / "processors-llama.json", Costs) == costs
    assert [cost.name for cost in costs.models["llama"]] == ["none", "grammar", "qwen"]
    for cost in costs.models["llama"]:
        assert (len(cost.rounds), len(cost.answers)) == (2, 2)
        assert cost.rounds[0].steps * 2 == cost.rounds[0].row_steps >= sum(cost.kinds.values())
        assert (cost.operators_per_step is None) == (cost.name == "none")
    grammar = costs.models["llama"][1]
    assert grammar.operators_per_step == pytest.approx(6, abs=0.5)
    assert (grammar.kinds.get("j", 0), grammar.kinds.get("l", 0), grammar.malformed_blocks) == (0, 0, 0)


def test_their_tables_need_no_torch(costs: Costs, tmp_path: Path) -> None:
    path = tmp_path / "processors-llama.json"
    write_record(path, costs)
    code = f"import sys, shown; sys.argv[1:] = [{str(path)!r}]; shown.main(); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    rows = [line.split(" | ")[0] for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[2:5] == ["| none", "| grammar", "| qwen"]
    assert done.stdout.startswith(
        "2 molecules in batches of 2, greedy, float32, 2 rounds; A CPU; 16 cores, 8 threads; "
    )
    assert "bonds that can be measured" in done.stdout


def test_ways_of_decoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(decoding, "load", lambda settings: loaded(settings.model))
    monkeypatch.setattr(decoding, "short_molecules", lambda count: FEW_ATOMS)
    options = argparse.Namespace(
        size=None, device="cpu", dtype="float32", count=2, batch_size=2, kv_cache="static", repeats=1,
        processors=["grammar"], max_new_tokens=None,
    )  # fmt: skip
    found = decoding.measure(options, "llama", time.process_time_ns)
    unconstrained = [way.way for way in found if way.processor is None]
    assert unconstrained == ["default", "step by step", "finished rows dropped"]
    assert [way.way for way in found if way.processor == "grammar"] == list(decoding.LOOPS)
    assert {way.tokens for way in found if way.processor == "grammar"} == {found[-1].tokens}
    assert all(way.busy_steps == way.tokens for way in found if not way.forced_runs)
    assert all(way.busy_steps < way.tokens for way in found if way.forced_runs)
    asked = WaySettings(None, 2, 2, "static", "float32", 1)
    ways = Ways(SCHEMA, DECODING, "2026-11-22", MACHINE, asked, "CPU time", 0.5, {"llama": found})
    write_record(tmp_path / "decoding.json", ways)
    assert read_record(tmp_path / "decoding.json", Ways) == ways
    text = shown.way_tables(ways)
    assert "| llama | no LP | default | " in text
    assert text.count("\n| llama | grammar | ") == len(decoding.LOOPS)


def test_another_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"schema": 1}')
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "shown.py"), str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {path} was written by neither processors.py nor decoding.py\n"
    path.write_text('{"schema": 1, "record": "processors"}')
    with pytest.raises(TraceError, match=r"x\.json: missing field `date`"):
        read_record(path, Costs)
