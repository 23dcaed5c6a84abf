"""`--fail-if` and predictions from a file: parsed, broken when they should be, and undecided when unknown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from conftest import Cli
from synthetic import Spec, captured, in_rounds

from molprof.analysis.compare import compare
from molprof.analysis.compare.thresholds import (
    BUILT_IN,
    Expectation,
    ExpectationVerdict,
    Judgement,
    judge_report,
    judge_rows,
    parse_threshold,
    read_expectations,
)
from molprof.analysis.figures import Report
from molprof.common.errors import UsageError


def report_of(tmp_path: Path, walls: Sequence[int] = (1095, 1100, 1105), junk: bool = True, **changes: Any) -> Report:
    """A run with timed passes of so many ns, of which the forward takes all but 95."""
    content = tiny_trace.document()
    content["molprof"]["timings"]["repeats"] = [tiny_trace.repeat(wall, wall - 95) for wall in walls]
    content["molprof"]["generation"].update(changes)
    if not junk:
        content["traceEvents"][-5]["args"]["kind"] = ["copy", "free", "free"]
        content["molprof"]["molecules"][0]["kinds"] = "cff"
    return tiny_trace.report(tmp_path / "trace.json", content)


def foreign(tmp_path: Path) -> Report:
    return tiny_trace.report(tmp_path / "foreign.json", {"traceEvents": [tiny_trace.work("kernel", "k", 5, 2, 1)]})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("junk_tokens>0", "failed"),
        ("junk_tokens>=2", ""),
        ("launches>4", ""),
        ("launches>=4", "failed"),
        ("busy_ratio<45%", "failed"),
        ("wall_ns>1094ns", "failed"),
        ("wall_ns>1095ns", "within_noise"),  # the median's interval begins there
        ("wall_ns>1100ns", ""),
        ("wall_ns<1105ns", "within_noise"),
        ("wall_ns<1106ns", "failed"),
        ("setup_ns>1ns", "failed"),
        ("wall_ns>0", "failed"),
        ("wall_ns < 1.2us", "failed"),
        ("wall_ns<=1.1µs", "within_noise"),
        ("wall_ns<1.0e-3ms", ""),
        ("wall_ns>=2s", ""),
        ("busy_ratio<0.5", "failed"),
        ("busy_ratio>.5", ""),
    ],
)
def test_values(tmp_path: Path, text: str, kind: str) -> None:
    found = judge_report(report_of(tmp_path), [parse_threshold(text)])
    assert [name for name, lines in found._asdict().items() if lines] == ([kind] if kind else [])


def judge(text: str, *reports: Report) -> Judgement:
    compared = compare(reports, anyway=True)
    return judge_rows(compared.labels, compared.runs, compared.rows, [parse_threshold(text)])


def test_changes(tmp_path: Path) -> None:
    first, slower = report_of(tmp_path), report_of(tmp_path, (1195, 1200, 1205))
    noisy, two = report_of(tmp_path, (1000, 1200, 1210)), report_of(tmp_path, (1000, 1100))
    clean, other = report_of(tmp_path, junk=False), foreign(tmp_path)
    for text, pair, expected in (
        ("launches>+0%", (first, slower), {}),
        ("busy_ratio<-5%", (first, slower), {}),
        ("wall_ns>+5%", (first, slower), {"failed": (
            "wall_ns is 1.20 µs, 1.10 µs in llama lp:generic #1: +9.1 % (between +8.1 % and +10.0 % at 90 %)"
        )}),
        ("wall_ns>+8%", (first, slower), {"failed": "wall_ns is 1.20"}),
        ("wall_ns>+9%", (first, slower), {"within_noise": "wall_ns is 1.20"}),
        ("wall_ns>+10%", (first, slower), {}),
        ("wall_ns>+5%", (first, noisy), {"within_noise": (
            "wall_ns is 1.20 µs, 1.10 µs in llama lp:generic #1: +9.1 % (between -9.5 % and +10.5 % at 90 %): "
            "within noise"
        )}),
        # The first run is the measure, and no threshold of value is its.
        ("junk_tokens>0", (first, slower), {"failed": "junk_tokens is 1"}),
        # A change from nothing.
        ("junk_tokens>+5%", (clean, first), {"failed": "junk_tokens is 1, 0 in llama lp:generic #1"}),
        ("junk_tokens>+5%", (clean, clean), {}),
        ("kernels>+5%", (other, first), {"failed": ""}),
        ("launches_per_token>+5%", (first, other), {"undecided": (
            "launches_per_token is not recorded in foreign (not captured by molprof)"
        )}),
        ("launches_per_token>+5%", (other, first), {"undecided": "launches_per_token is not recorded"}),
        ("wall_ns>+5%", (first, two), {"undecided": "wall_ns is"}),
    ):  # fmt: skip
        found = {kind: lines for kind, lines in judge(text, *pair)._asdict().items() if lines}
        assert found.keys() == expected.keys(), text
        for kind, line in expected.items():
            (shown,) = found[kind]
            assert shown.startswith(f"{text}: {pair[1].run.setup.label if pair[1].run else 'foreign'}")
            assert f": {line}" in shown
    lines = judge("wall_ns>+5%", first, slower, noisy, slower).failed
    assert [line.split(":")[2][-2:] for line in lines] == ["#2", "#4"]
    assert "fewer than 3 timed passes" in judge("wall_ns>+5%", first, two).undecided[0]
    assert "fewer than 3 timed passes" in judge_report(two, [parse_threshold("wall_ns>1ns")]).undecided[0]


DRIFTING = (1.0, 1.9, 1.2, 2.6, 1.1)


@pytest.mark.parametrize(
    ("first", "other", "beyond", "threshold"),
    [
        # 10 % slower in every round, while the machine takes up to 2.6 times as long: any two passes tell nothing.
        (DRIFTING, (1.1, 2.1, 1.31, 2.87, 1.21), True, "wall_ns>+5%"),
        # Every pass is slower than all of the first, but by another factor in each of only three rounds.
        ((1.0, 1.04, 1.08), (1.2, 1.12, 1.24), False, "wall_ns>+0%"),
    ],
)
def test_paired_runs_are_judged_as_the_table_shows_them(
    molprof: Cli, tmp_path: Path, first: Sequence[float], other: Sequence[float], beyond: bool, threshold: str
) -> None:
    for name, speeds in (("a", first), ("b", other)):
        tiny_trace.write(tmp_path / f"{name}.json", in_rounds(captured(Spec(gpu=False)), name, speeds))
    text = '[[prediction]]\nid = "x"\ntext = "slower"\nmetric = "wall_ns"\ndirection = "higher"\n'
    (tmp_path / "mine.toml").write_text(text)
    compared = ["compare", "a.json", "b.json", "--predictions", "mine.toml", "--format", "json"]
    shown = molprof(*compared, "--fail-if", threshold)
    content = json.loads(shown.stdout)
    row = next(row for row in content["rows"] if row["id"] == "wall_ns")
    interval = row["ratio_intervals"][1]
    assert (interval["low"] > 1) is row["significant"][1] is content["difference"]["significant"] is beyond
    prediction = content["predictions"][-1]
    assert (prediction["ratio"], prediction["interval"]) == (row["ratios"][1], interval)
    assert (prediction["verdict"] == "confirmed") is beyond
    assert math.prod(content["difference"]["factors"].values()) == pytest.approx(row["ratios"][1])
    assert shown.returncode == int(beyond)
    low, high = (f"{100 * (interval[end] - 1):+.1f} %" for end in ("low", "high"))
    assert shown.stderr.endswith(f": +10.1 % (paired, between {low} and {high} at 95 %)\n") is beyond


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
        ('["llama*", "* no lp"]', '["llama*", ""]', "line 13: between is ['llama*', ''], expected the names"),
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
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert read_expectations(path) == (
        Expectation("faster_steps", "faster forwards", "forward_ns", "lower"),
        Expectation("much_junk", "twice the junk", "junk_tokens", "higher", 2.0, ("llama*", "* no lp")),
    )
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(UsageError) as caught:
        read_expectations(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def given(reports: list[Report], metric: str, direction: Any, bound: float = 1.0, *between: str) -> ExpectationVerdict:
    pair = (between[0], between[1]) if between else None
    expected = Expectation("x", "x", metric, direction, bound, *([pair] if pair else []))
    (item,) = compare(reports, expectations=[expected]).predictions[len(BUILT_IN) :]
    return item


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
def test_predicted_times_are_judged_by_the_interval_of_their_ratio(
    tmp_path: Path, forwards: tuple[int, ...], direction: Any, bound: float, verdict: str
) -> None:
    reports = [report_of(tmp_path, [time + 95 for time in times]) for times in ((900, 1000, 1100), forwards)]
    item = given(reports, "forward_ns", direction, bound)
    # The second run is held against the first.
    assert list(item.figures) == ["llama lp:generic #2", "llama lp:generic #1"]
    assert item.verdict == verdict
    assert (item.reason is None) is (verdict != "not significant")
    assert (item.interval is None) is (len(forwards) < 3)


@pytest.mark.parametrize(
    ("direction", "bound", "verdict"),
    [("higher", 1.0, "equal"), ("lower", 1.005, "equal"), ("lower", 1.1, "confirmed"), ("higher", 0.9, "confirmed"),
     ("lower", 0.9, "refuted")],
)  # fmt: skip
def test_predicted_counts_are_exact(tmp_path: Path, direction: Any, bound: float, verdict: str) -> None:
    item = given([report_of(tmp_path), report_of(tmp_path)], "tokens_per_molecule", direction, bound)
    assert (item.verdict, item.ratio, item.interval) == (verdict, 1.0, None)


def test_predictions_name_runs_by_label_or_pattern(tmp_path: Path) -> None:
    free = report_of(tmp_path, processor=None, placeholder=None)
    reports = [report_of(tmp_path), free, report_of(tmp_path, processor="qwen")]
    for between, expected in (
        (("* no lp", "llama lp:generic"), ["llama no lp", "llama lp:generic"]),
        (("llama lp*", "llama lp*"), ["llama lp:generic", "llama lp:qwen"]),
        (("mistral*", "llama*"), []),
    ):
        item = given(reports, "junk_tokens", "lower", 1.0, *between)
        assert list(item.figures) == expected
    assert (item.verdict, item.reason) == ("not recorded", "no run is named 'mistral*'")
    cpu = tiny_trace.report(tmp_path / "cpu.json", tiny_trace.cpu_document())
    item = given([report_of(tmp_path), cpu], "launches_per_step", "lower")
    assert (item.verdict, item.reason) == ("not recorded", "not recorded in llama lp:generic #2")


def test_built_in_predictions(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["molprof"]["model"].update(name="hub/qwen", family="qwen3")
    content["molprof"]["timings"]["repeats"] = [tiny_trace.repeat(wall, wall - 105) for wall in (2005, 2105, 2205)]
    content["molprof"]["molecules"][1]["token_ids"].append(10)
    qwen = tiny_trace.report(tmp_path / "qwen.json", content)
    cpu = tiny_trace.report(tmp_path / "cpu.json", tiny_trace.cpu_document())
    free = report_of(tmp_path, processor=None, placeholder=None)
    names = ("fewer_tokens_per_molecule", "fewer_launches_per_molecule", "fewer_elementwise_per_attention", "faster")
    for reports, verdicts in (
        # The LLaMA run is recognized by its family, wherever it stands.
        ([qwen, report_of(tmp_path)], ["confirmed", "equal", "equal", "confirmed"]),
        ([cpu, qwen], ["confirmed", "not recorded", "not recorded", "confirmed"]),
        # A constrained run is not held against an unconstrained one.
        ([free, qwen], ["not recorded"] * 4),
    ):
        found = {item.id: item for item in compare(reports).predictions}
        assert [found[name].verdict for name in names] == verdicts
    (faster,) = (item for item in compare([qwen, report_of(tmp_path)]).predictions if item.id == "faster")
    assert faster.figures == {"llama lp:generic": 1100, "qwen lp:generic": 2105}
