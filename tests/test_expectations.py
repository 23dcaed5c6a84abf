"""Predictions from a file: read, tested with significance, and refused by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_trace

from molprof.analysis.compare import compare
from molprof.analysis.compare.thresholds import BUILT_IN, Expectation, Prediction, read_expectations
from molprof.analysis.figures import Report
from molprof.common.errors import UsageError

GOOD = """\
[[prediction]]
id = "faster_steps"
text = "faster forwards"
metric = "forward_ns"
direction = "lower"

[[prediction]]
id = "much_junk"
text = "twice the junk"
metric = "junk_tokens"
direction = "higher"
bound = 2
between = ["llama*", "* no lp"]
"""


def run(tmp_path: Path, forwards: tuple[int, ...] = (900, 1000, 1100), **changes: Any) -> Report:
    content = tiny_trace.document()
    content["molprof"]["timings"]["repeats"] = [tiny_trace.repeat(time + 95, time) for time in forwards]
    content["molprof"]["generation"].update(changes)
    return tiny_trace.report(tmp_path / "trace.json", content)


def given(reports: list[Report], *expectations: Expectation) -> list[Prediction]:
    return list(compare(reports, expectations=expectations).predictions[len(BUILT_IN) :])


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert read_expectations(path) == (
        Expectation("faster_steps", "faster forwards", "forward_ns", "lower"),
        Expectation("much_junk", "twice the junk", "junk_tokens", "higher", 2.0, ("llama*", "* no lp")),
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('direction = "lower"', 'direction = "down"', "line 5: direction is 'down', expected 'lower' or 'higher'"),
        ('metric = "forward_ns"', 'metric = "foward_ns"', "line 4: no figure 'foward_ns'"),
        ('metric = "forward_ns"', 'metric = "device"', "line 4: no figure 'device'"),
        ("bound = 2", "bound = -2", "line 12: bound is -2, expected a ratio above 0"),
        ("bound = 2", "bound = true", "line 12: bound is True"),
        ("bound = 2", "bound = inf", "line 12: bound is inf"),
        ('["llama*", "* no lp"]', '["llama*"]', "line 13: between is ['llama*'], expected the names of two runs"),
        ('id = "much_junk"', 'id = "faster_steps"', "line 8: the id 'faster_steps' is taken"),
        ('id = "much_junk"', 'id = "faster"', "line 8: the id 'faster' is taken"),
        ('text = "twice the junk"\n', "", "line 7: the prediction lacks text"),
        ("bound = 2", "bond = 2", "line 12: unknown key 'bond'; did you mean 'bound'?"),
        ('text = "twice the junk"', "text = 3", "line 9: text is 3, expected text"),
        ("bound = 2", "bound = ", "is not TOML: Invalid value (at line 12, column 9)"),
        ("[[prediction]]", "[[forecast]]", "line 1: unknown key 'forecast'; known: prediction"),
        (GOOD, "", "has no [[prediction]]"),
        (GOOD, "prediction = 3", "has no [[prediction]]"),
        (GOOD, "prediction = [3]", "line 1: prediction.0 is 3, expected a table"),
        (
            '["llama*", "* no lp"]',
            '["llama*", ""]',
            "line 13: between is ['llama*', ''], expected the names of two runs",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(UsageError) as caught:
        read_expectations(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("forwards", "direction", "bound", "verdict"),
    [
        ((500, 510, 520), "lower", 1.0, "confirmed"),
        ((500, 510, 520), "higher", 1.0, "refuted"),
        ((500, 510, 520), "lower", 0.58, "confirmed"),  # at most 520 / 900
        ((500, 510, 520), "lower", 0.5, "not significant"),  # 500 / 1100 to 520 / 900
        ((500, 510, 520), "lower", 0.45, "refuted"),
        ((800, 900, 1200), "lower", 1.0, "not significant"),
        ((500, 510), "lower", 1.0, "not significant"),
    ],
)
def test_times_are_judged_by_the_interval_of_their_ratio(
    tmp_path: Path, forwards: tuple[int, ...], direction: Any, bound: float, verdict: str
) -> None:
    reports = [run(tmp_path), run(tmp_path, forwards)]
    (item,) = given(reports, Expectation("x", "x", "forward_ns", direction, bound))
    # The second run is held against the first.
    assert list(item.figures) == ["llama lp:generic #2", "llama lp:generic #1"]
    assert item.verdict == verdict
    assert (item.reason is None) is (verdict != "not significant")
    assert (item.interval is None) is (len(forwards) < 3)


@pytest.mark.parametrize(
    ("direction", "bound", "verdict"),
    [
        ("higher", 1.0, "equal"),
        ("lower", 1.005, "equal"),
        ("lower", 1.1, "confirmed"),
        ("higher", 0.9, "confirmed"),
        ("lower", 0.9, "refuted"),
    ],
)
def test_counts_are_exact(tmp_path: Path, direction: Any, bound: float, verdict: str) -> None:
    (item,) = given([run(tmp_path), run(tmp_path)], Expectation("x", "x", "tokens_per_molecule", direction, bound))
    assert (item.verdict, item.ratio, item.interval) == (verdict, 1.0, None)


def test_runs_are_named_by_label_or_pattern(tmp_path: Path) -> None:
    reports = [run(tmp_path), run(tmp_path, processor=None, placeholder=None), run(tmp_path, processor="qwen")]

    def compared(*between: str) -> Prediction:
        (item,) = given(reports, Expectation("x", "x", "junk_tokens", "lower", 1.0, (between[0], between[1])))
        return item

    assert list(compared("* no lp", "llama lp:generic").figures) == ["llama no lp", "llama lp:generic"]
    assert list(compared("llama lp*", "llama lp*").figures) == ["llama lp:generic", "llama lp:qwen"]
    missing = compared("mistral*", "llama*")
    assert (missing.verdict, missing.figures, missing.reason) == ("not recorded", {}, "no run is named 'mistral*'")


def test_what_is_not_recorded_has_no_verdict(tmp_path: Path) -> None:
    content = tiny_trace.cpu_document()
    cpu = tiny_trace.report(tmp_path / "cpu.json", content)
    (item,) = given([run(tmp_path), cpu], Expectation("x", "x", "launches_per_step", "lower"))
    assert (item.verdict, item.reason) == ("not recorded", "not recorded in llama lp:generic #2")
