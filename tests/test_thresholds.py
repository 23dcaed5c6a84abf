"""`--fail-if`: what is a threshold, when it is broken, and what cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_trace

from molprof import api
from molprof.analysis.compare.thresholds import Outcome, judge_comparison, judge_report, parse_threshold
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
    ("text", "metric", "operator", "bound", "relative"),
    [
        ("launches_per_token>+5%", "launches_per_token", ">", 1.05, True),
        ("wall_ns < -2.5%", "wall_ns", "<", 0.975, True),
        ("wall_ns>=2s", "wall_ns", ">=", 2e9, False),
        ("wall_ns<=1.5ms", "wall_ns", "<=", 1.5e6, False),
        ("forward_ns>20us", "forward_ns", ">", 20_000, False),
        ("forward_ns>20µs", "forward_ns", ">", 20_000, False),
        ("forward_ns>1e3 ns", "forward_ns", ">", 1000, False),
        ("wall_ns>0", "wall_ns", ">", 0, False),
        ("junk_tokens>0", "junk_tokens", ">", 0, False),
        ("busy_ratio<50%", "busy_ratio", "<", 0.5, False),
        ("busy_ratio<0.5", "busy_ratio", "<", 0.5, False),
        ("busy_ratio<-5%", "busy_ratio", "<", 0.95, True),
    ],
)
def test_what_a_threshold_says(text: str, metric: str, operator: str, bound: float, relative: bool) -> None:
    found = parse_threshold(text)
    assert (found.metric.id, found.operator, found.relative) == (metric, operator, relative)
    assert found.bound == pytest.approx(bound)


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
        ("junk_tokens>0", "broken"),
        ("junk_tokens>=2", ""),
        ("launches>4", ""),
        ("launches>=4", "broken"),
        ("busy_ratio<45%", "broken"),
        ("wall_ns>1094ns", "broken"),
        ("wall_ns>1095ns", "notes"),  # the median's interval begins there
        ("wall_ns>1100ns", ""),
        ("wall_ns<1105ns", "notes"),
        ("wall_ns<1106ns", "broken"),
        ("setup_ns>1ns", "broken"),
    ],
)
def test_values(tmp_path: Path, text: str, kind: str) -> None:
    outcome = judge_report(report_of(tmp_path), [parse_threshold(text)])
    assert [name for name, lines in outcome._asdict().items() if lines] == ([kind] if kind else [])


def test_changes_of_counts_and_times(tmp_path: Path) -> None:
    first = report_of(tmp_path)
    slower = report_of(tmp_path, (1195, 1200, 1205))
    noisy = report_of(tmp_path, (1000, 1200, 1210))

    def judge(text: str, *others: Report) -> Outcome:
        labels = ["a", *(f"b{number}" for number in range(len(others)))]
        return judge_comparison(labels, [first, *others], [parse_threshold(text)])

    assert judge("launches>+0%", slower) == Outcome((), (), ())
    assert judge("wall_ns>+5%", slower).broken == (
        "wall_ns>+5%: b0: wall_ns is 1.20 µs, 1.10 µs in a: +9.1 % (between +8.1 % and +10.0 % at 90 %)",
    )
    assert judge("wall_ns>+8%", slower).broken
    assert judge("wall_ns>+9%", slower).notes
    assert judge("wall_ns>+10%", slower) == Outcome((), (), ())
    assert judge("wall_ns>+5%", noisy).notes[0].endswith("(between -9.5 % and +10.5 % at 90 %): within noise")
    assert [line.split(":")[1] for line in judge("wall_ns>+5%", slower, noisy, slower).broken] == [" b0", " b2"]
    # The first run is the measure, and no threshold of value is its.
    assert judge("junk_tokens>0", slower).broken == ("junk_tokens>0: b0: junk_tokens is 1",)


def test_a_change_from_nothing(tmp_path: Path) -> None:
    clean = report_of(tmp_path)
    content = tiny_trace.document()
    content["traceEvents"][-5]["args"]["kind"] = ["copy", "free", "free"]
    content["molprof"]["molecules"][0]["kinds"] = "cff"
    first = tiny_trace.report(tmp_path / "first.json", content)
    threshold = [parse_threshold("junk_tokens>+5%")]
    assert judge_comparison(("a", "b"), (first, clean), threshold).broken == (
        "junk_tokens>+5%: b: junk_tokens is 1, 0 in a",
    )
    assert judge_comparison(("a", "b"), (first, first), threshold) == Outcome((), (), ())


def test_what_is_not_recorded_cannot_be_told(tmp_path: Path) -> None:
    run, other = report_of(tmp_path), foreign(tmp_path)
    threshold = [parse_threshold("launches_per_token>+5%")]
    assert judge_comparison(("ours", "theirs"), (run, other), threshold).untold == (
        "launches_per_token>+5%: theirs: launches_per_token is not recorded in theirs (not captured by molprof)",
    )
    assert judge_comparison(("theirs", "ours"), (other, run), threshold).untold
    assert judge_comparison(("a", "b"), (other, run), [parse_threshold("kernels>+5%")]).broken
    assert judge_report(other, [parse_threshold("junk_tokens>0")]).untold
    two = report_of(tmp_path, (1000, 1100))
    assert "fewer than 3 timed passes" in judge_report(two, [parse_threshold("wall_ns>1ns")]).untold[0]
    assert (
        "fewer than 3 timed passes"
        in judge_comparison(("a", "b"), (run, two), [parse_threshold("wall_ns>+5%")]).untold[0]
    )
