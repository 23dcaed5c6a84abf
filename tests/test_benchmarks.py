"""The scripts of benchmarks/ store results, resume, and count right in their tables."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import decoding
import pairs
import processors
import pytest
import start
from pairs import PART, QUIET, SAME, Pair, summary
from tiny import loaded

from molprof.cli import COMMANDS
from molprof.common.text_format import DEFAULT
from molprof.profiler.molecules.conformers import bond_errors
from molprof.profiler.molecules.prompts import Prompt, short_molecules
from molprof.profiler.molecules.smiles import read_positions, split_atoms

TRUE = Pair("sleep_3", QUIET, 0, 1.03, 1.02, 1.04, 1.03, 30, 28.0, 32.0, 30.0, [PART], [], 1.0)
NONE = Pair(SAME, QUIET, 0, 1.001, 0.99, 1.01, 1.0, 0, None, None, 0.0, [], [], 1.0)


def cells(table: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def test_processors() -> None:
    smiles = sorted(short_molecules(100), key=len)[:1]  # of the built-in ones, whose bonds are known
    options = argparse.Namespace(only="none,grammar", batch_size=1, rounds=1, max_new_tokens=None)
    prompts = [Prompt(line, "", DEFAULT.prompt_of(item), split_atoms(item)) for line, item in enumerate(smiles)]
    costs = processors.measure(loaded("llama"), prompts, options)
    rows = cells(processors.cost_table(costs))
    assert [row[0] for row in rows] == ["none", "grammar"]
    assert rows[0][1:6] == ["1.00x", "1.00x", "-", "-", "-"]
    assert rows[1][7:] == ["0", "0", "0", "1 of 1"]
    for cost in costs:
        assert cost.rounds[0].steps == cost.rounds[0].row_steps >= sum(len(run.kinds) for run in cost.runs)
    assert [row[0] for row in cells(processors.coordinate_table(costs))] == ["none", "grammar"]


def test_ways_of_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "load", lambda settings: loaded(settings.model))
    monkeypatch.setattr(decoding, "short_molecules", lambda count: ["CO", "C"])
    options = argparse.Namespace(
        size=None, device="cpu", dtype="float32", count=2, batch_size=2, kv_cache="static", repeats=1,
        processors=["grammar"], max_new_tokens=30,
    )  # fmt: skip
    found = decoding.measure(options, "llama", time.process_time_ns)
    rows = cells(decoding.way_table({"llama": found}))
    assert [row[1:3] for row in rows[:3]] == [
        ["no LP", "default"], ["no LP", "step by step"], ["no LP", "finished rows dropped"]
    ]  # fmt: skip
    assert [row[1:3] for row in rows[3:]] == [["grammar", way] for way in decoding.LOOPS]
    assert len({row[4] for row in rows[3:]}) == 1, "the same tokens in each way"
    for way in found:
        assert (way.busy_steps < way.tokens) == way.forced_runs
        assert (rows[found.index(way)][6] == "-") != way.forced_runs
    assert rows[0][3] == "1.00x (1.00x to 1.00x)"


def test_the_table_of_pairs_counts_false_causes_truths_and_finds() -> None:
    made = [
        NONE,
        replace(NONE, number=1, causes=["sampling.host"], low=1.0005),
        TRUE,
        replace(TRUE, number=1, causes=["sampling.host"], part_ns=40, low=None, high=None),
    ]
    assert cells(summary(made)) == [
        ["A/A", "quiet", "2", "1", "1", "-", "-", "1.001x", "1.000x"],
        ["A/B, 3 % asleep", "quiet", "2", "1", "1", "1", "1", "1.030x", "1.030x"],
    ]


def test_a_pair_is_a_capture_and_its_comparison_and_a_series_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.json"
    asked = ["--model", "llama", "--same", "0", "--waiting", "1", "--rounds", "3", "--tokens", "2", "-o", str(path)]
    monkeypatch.setattr(sys, "argv", ["pairs.py", *asked])
    kept = [replace(TRUE, kind=kind, load=load) for load in (QUIET, pairs.BUSY) for kind in pairs.WAITS]
    path.write_text(json.dumps([{**pair.__dict__} for pair in kept[:-1]]))
    pairs.main()
    assert len(cells(capsys.readouterr().out)) == len(kept)
    found = [Pair(**item) for item in json.loads(path.read_text())]
    assert [pair.key for pair in found] == [pair.key for pair in kept]
    assert found[-1].taken_ns > 0
    assert found[-1].true_ratio > 1
    assert None not in (found[-1].low, found[-1].high, found[-1].part_low, found[-1].part_high)


def test_start_times() -> None:
    assert start.row("x", (0.5, None), (0.6, None)) == ["x", "0.50", "0.6", "", ""]
    assert all(command.text.split()[0] in ("--help", *COMMANDS) for command in start.COMMANDS)
    assert all((start.ROOT / path).is_file() for path in start.FOUR)
    first, again = start.times([sys.executable, "-c", "import os; open(os.environ['MOLPROF_CACHE'] + '/x', 'a')"], 1)
    assert min(first, again) > 0


FAKE = """#!/bin/sh
case "$*" in
  *"import vllm"* | *"import sys, torch"*) exit 1 ;;
  *"--processor generic"*) echo "molprof: error: no such GPU" >&2; exit 3 ;;
esac
for file; do :; done
echo "$*" >> "$file"
[ "$file" != unfinished-sdpa.jsonl ] || [ -e again ] || exit 1
"""


def test_the_steps_of_a_gpu_that_are_done_are_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "fake").write_text(FAKE)
    (tmp_path / "fake").chmod(0o755)

    def gpu(size: str, *words: str) -> tuple[int, list[str]]:
        environment = {**os.environ, "SIZE": size, "PYTHON": str(tmp_path / "fake")}
        line = ["sh", str(start.ROOT / "benchmarks/gpu.sh"), *words]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, [line for line in done.stderr.splitlines() if not line.endswith("...")]

    code, said = gpu("full", "x")
    assert (code, said[0].partition(";")[0]) == (1, "torch sees no GPU here")
    code, said = gpu("tiny", "x", "qwen", "graphs", "costs")
    assert (code, sum(": done after " in line for line in said)) == (1, 7 + 6 + 8)
    failed = [line for line in said if ": done after " not in line]
    assert all("generic" in line and line.endswith("code 3: molprof: error: no such GPU") for line in failed)
    assert len(failed) == 3
    assert not list((tmp_path / "x").glob("unfinished*"))
    (tmp_path / "x/again").touch()
    code, said = gpu("tiny", "x", "qwen", "attention")
    assert (code, sum(line.endswith(": there already") for line in said)) == (1, 7)
    assert len((tmp_path / "x/qwen.json.gz").read_text().splitlines()) == 1
    # Nothing of a benchmark is lost: it goes on with its file.
    (tmp_path / "x/sdpa.jsonl").unlink()
    (tmp_path / "x/again").unlink()
    (tmp_path / "x/unfinished-sdpa.jsonl").write_text("before\n")
    assert gpu("tiny", "x", "attention")[0] == 1
    assert len((tmp_path / "x/unfinished-sdpa.jsonl").read_text().splitlines()) == 2


def test_positions_are_read_up_to_the_junk() -> None:
    assert read_positions("[C]<1.5,-0.25,0.0abra>[O]<0.0,0.0,1.0,2>") == [(1.5, -0.25, 0.0), (0.0, 0.0, 1.0)]
    assert read_positions("[C]<1.5,-0.25>[O]<0.0,0.0,1.0>") == [None, (0.0, 0.0, 1.0)]
    assert read_positions("[C]<1.5,-.25,0.0>") == [None]


def test_bond_errors_are_differences_of_lengths() -> None:
    made = [(0.0, 0.0, 0.0), (3.0, 4.0, 0.0), (3.0, 4.0, 2.0)]
    reference = [(1.0, 0.0, 0.0), (1.0, 4.5, 0.0), (1.0, 4.5, 3.0)]
    assert bond_errors("CCO", made, reference) == pytest.approx([0.5, 1.0])
    assert bond_errors("CCO", [*made[:2], None], reference) == [pytest.approx(0.5), None]
    assert bond_errors("CCO", made[:2], reference) == [None, None]
