"""The series of pairs whose truth is known: what it keeps, and what its table counts."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pairs
import pytest
from pairs import BUSY, NAMES, PART, QUIET, SAME, Pair, summary

TRUE = Pair("sleep_3", QUIET, 0, 1.03, 1.02, 1.04, 1.03, 30, 28.0, 32.0, 30.0, [PART], [], 1.0)
NONE = Pair(SAME, QUIET, 0, 1.001, 0.99, 1.01, 1.0, 0, None, None, 0.0, [], [], 1.0)


def test_the_table_counts_false_causes_truths_and_finds() -> None:
    made = [
        NONE,
        replace(NONE, number=1, causes=["sampling.host"], low=1.0005),
        TRUE,
        replace(TRUE, number=1, causes=["sampling.host"], part_ns=40, low=None, high=None),
    ]
    rows = [line.split(" | ") for line in summary(made, {QUIET: [1.0, 2.0, 3.0], BUSY: [4.0]}).splitlines()[2:4]]
    assert rows == [
        ["| A/A", "quiet", "2", "1", "1", "-", "-", "1.001x", "1.000x |"],
        ["| A/B, 3 % asleep", "quiet", "2", "1", "1", "1", "1", "1.030x", "1.030x |"],
    ]
    assert "beside one busy loop: 2.00x its quiet time (2.00 s, 4.00 s)" in summary(made, {QUIET: [2.0], BUSY: [4.0]})


def test_a_series_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    class Series:
        def __init__(self, options: object, folder: Path) -> None:
            assert folder.is_dir()

        def pair(self, kind: str, load: str, number: int) -> Pair:
            if len(asked) == 3:
                raise KeyboardInterrupt
            asked.append((kind, load, number))
            return replace(NONE, kind=kind, load=load, number=number)

    monkeypatch.setattr(pairs, "Series", Series)
    monkeypatch.setattr(pairs, "slowdown", lambda options, folder: {QUIET: [1.0], BUSY: [2.0]})
    monkeypatch.setattr(pairs, "_LOOP", "pass")
    path = tmp_path / "pairs.json"
    monkeypatch.setattr(sys, "argv", ["pairs.py", "--same", "2", "--waiting", "0", "-o", str(path)])
    with pytest.raises(KeyboardInterrupt):
        pairs.main()
    first = list(asked)
    assert json.loads(path.read_text())["pairs"] == [
        asdict(replace(NONE, kind=kind, load=load, number=number)) for kind, load, number in first
    ]
    asked.clear()
    pairs.main()
    assert [*first, *asked] == [
        (kind, load, number) for load in (QUIET, BUSY) for number, kind in ((0, SAME), (1, NAMES))
    ]
    assert "2.00x its quiet time" in capsys.readouterr().out


def test_a_pair_is_a_capture_and_its_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = pairs.argparse.Namespace(model="llama", tokens=2, rounds=3)
    found = pairs.Series(options, tmp_path).pair("sleep_10", QUIET, 0)
    assert found.key == ("sleep_10", QUIET, 0)
    assert found.taken_ns > 0
    assert found.true_ratio > 1
    assert None not in (found.low, found.high, found.part_low, found.part_high)
