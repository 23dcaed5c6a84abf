"""`--fail-if`: what is a threshold, when it is broken, and what cannot be told."""

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

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.compare.thresholds import Judgement, judge_report, judge_rows, parse_threshold
from molprof.analysis.figures import Report
from molprof.common.errors import UsageError


def report_of(tmp_path: Path, walls: Sequence[int] = (1095, 1100, 1105), **changes: Any) -> Report:
    content = tiny_trace.document()
    content["molprof"]["timings"]["repeats"] = [tiny_trace.repeat(wall, wall - 95) for wall in walls]
    content["molprof"].update(changes)
    return tiny_trace.report(tmp_path / "trace.json", content)


def foreign(tmp_path: Path) -> Report:
    return api.report(
        tiny_trace.write(tmp_path / "foreign.json", {"traceEvents": [tiny_trace.work("kernel", "k", 5, 2, 1)]})
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("launches", "'launches' is not a threshold", "launches_per_token>+5%"),
        ("launches=5", "is not a threshold", "wall_ns>2s"),
        ("launches>five", "is not a threshold", "wall_ns>2s"),
        ("launches>nan", "is not a threshold", "wall_ns>2s"),
        ("lanches_per_token>+5%", "no figure 'lanches_per_token'", "did you mean launches_per_token"),
        ("junk>0", "no figure 'junk'", "junk_tokens"),
        ("xyzzy>0", "no figure 'xyzzy'", "figures: batch_size, molecules"),
        ("vendor>0", "no figure 'vendor'", "figures: "),
        ("wall_ns>5", "wall_ns is a time", "ns us ms s"),
        ("wall_ns>5%", "wall_ns is a time", "a change such as +5%"),
        ("junk_tokens>5%", "junk_tokens has no unit %", "+5%"),
        ("junk_tokens>5ms", "junk_tokens has no unit ms", "without unit"),
        ("junk_tokens>+5", "a change must be in percent", "+5%"),
    ],
)
def test_what_is_no_threshold(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_threshold(text)
    assert message in str(caught.value)
    assert hint in str(caught.value.hint)


def test_a_change_needs_another_run() -> None:
    with pytest.raises(UsageError, match="is a change, and there is no other run"):
        parse_threshold("launches>+5%", relative=False)


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


def test_changes_of_counts_and_times(tmp_path: Path) -> None:
    first = report_of(tmp_path)
    slower = report_of(tmp_path, (1195, 1200, 1205))
    noisy = report_of(tmp_path, (1000, 1200, 1210))
    assert judge("launches>+0%", first, slower) == judge("busy_ratio<-5%", first, slower) == ((), (), ())
    assert judge("wall_ns>+5%", first, slower).failed == (
        "wall_ns>+5%: llama lp:generic #2: wall_ns is 1.20 µs, 1.10 µs in llama lp:generic #1: +9.1 % "
        "(between +8.1 % and +10.0 % at 90 %)",
    )
    assert judge("wall_ns>+8%", first, slower).failed
    assert judge("wall_ns>+9%", first, slower).within_noise
    assert judge("wall_ns>+10%", first, slower) == ((), (), ())
    (line,) = judge("wall_ns>+5%", first, noisy).within_noise
    assert line.endswith("(between -9.5 % and +10.5 % at 90 %): within noise")
    lines = judge("wall_ns>+5%", first, slower, noisy, slower).failed
    assert [line.split(":")[2][-2:] for line in lines] == ["#2", "#4"]
    # The first run is the measure, and no threshold of value is its.
    assert judge("junk_tokens>0", first, slower).failed == ("junk_tokens>0: llama lp:generic #2: junk_tokens is 1",)


DRIFTING = (1.0, 1.9, 1.2, 2.6, 1.1)


@pytest.mark.parametrize(
    ("first", "other", "beyond", "failed", "holds"),
    [
        # 10 % slower in every round, while the machine takes up to 2.6 times as long: any two passes tell nothing.
        (DRIFTING, (1.1, 2.1, 1.31, 2.87, 1.21), True, "wall_ns>+5%", "wall_ns>+12%"),
        # Every pass is slower than all of the first, but by another factor in each of only three rounds.
        ((1.0, 1.04, 1.08), (1.2, 1.12, 1.24), False, None, "wall_ns>+0%"),
    ],
)
def test_paired_runs_are_judged_as_the_table_shows_them(
    molprof: Cli,
    tmp_path: Path,
    first: Sequence[float],
    other: Sequence[float],
    beyond: bool,
    failed: str | None,
    holds: str,
) -> None:
    for name, speeds in (("a", first), ("b", other)):
        tiny_trace.write(tmp_path / f"{name}.json", in_rounds(captured(Spec(gpu=False)), name, speeds))
    (tmp_path / "mine.toml").write_text(
        '[[prediction]]\nid = "x"\ntext = "slower"\nmetric = "wall_ns"\ndirection = "higher"\n'
    )
    compared = ["compare", "a.json", "b.json", "--predictions", "mine.toml", "--format", "json"]
    shown = molprof(*compared, "--fail-if", holds)
    assert shown.returncode == 0, shown.stderr
    content = json.loads(shown.stdout)
    row = next(row for row in content["rows"] if row["id"] == "wall_ns")
    interval = row["ratio_intervals"][1]
    assert (interval["low"] > 1) is row["significant"][1] is content["difference"]["significant"] is beyond
    prediction = content["predictions"][-1]
    assert (prediction["ratio"], prediction["interval"]) == (row["ratios"][1], interval)
    assert (prediction["verdict"] == "confirmed") is beyond
    assert math.prod(content["difference"]["factors"].values()) == pytest.approx(row["ratios"][1])
    if failed is not None:
        shown = molprof(*compared, "--fail-if", failed)
        assert shown.returncode == 1
        low, high = (f"{100 * (interval[end] - 1):+.1f} %" for end in ("low", "high"))
        assert shown.stderr.endswith(f": +10.1 % (paired, between {low} and {high} at 95 %)\n")


def test_a_change_from_nothing(tmp_path: Path) -> None:
    clean = report_of(tmp_path)
    content = tiny_trace.document()
    content["traceEvents"][-5]["args"]["kind"] = ["copy", "free", "free"]
    content["molprof"]["molecules"][0]["kinds"] = "cff"
    first = tiny_trace.report(tmp_path / "first.json", content)
    assert judge("junk_tokens>+5%", first, clean).failed == (
        "junk_tokens>+5%: llama lp:generic #2: junk_tokens is 1, 0 in llama lp:generic #1",
    )
    assert judge("junk_tokens>+5%", first, first) == ((), (), ())


def test_what_is_not_recorded_cannot_be_told(tmp_path: Path) -> None:
    run, other = report_of(tmp_path), foreign(tmp_path)
    assert judge("launches_per_token>+5%", run, other).undecided == (
        "launches_per_token>+5%: foreign: launches_per_token is not recorded in foreign (not captured by molprof)",
    )
    assert judge("launches_per_token>+5%", other, run).undecided
    assert judge("kernels>+5%", other, run).failed
    assert judge_report(other, [parse_threshold("junk_tokens>0")]).undecided
    two = report_of(tmp_path, (1000, 1100))
    assert "fewer than 3 timed passes" in judge_report(two, [parse_threshold("wall_ns>1ns")]).undecided[0]
    assert "fewer than 3 timed passes" in judge("wall_ns>+5%", run, two).undecided[0]
