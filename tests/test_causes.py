"""What a comparison names as a cause: parts beyond their own noise, never the machine at equal work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from msgspec.structs import replace
from synthetic import Spec, captured

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.compare.difference import same_work
from molprof.analysis.documents.comparison import comparison_verdict
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import RepeatFigures, Run, Spread
from molprof.common.manifest import PHASES, Session
from molprof.common.settings import recorded

# Host times of a pass on a quiet machine, ms.
QUIET = {
    "template": 4, "tokenize": 2, "setup": 3, "prefill": 30, "forward": 800, "processor": 40, "sampling": 60,
    "bookkeeping": 10, "text": 1,
}  # fmt: skip
# How much slower the machine was in each round.
SPEEDS = (1.0, 1.9, 1.2, 2.6, 1.1)


@pytest.fixture
def base(tmp_path: Path) -> Report:
    return api.report(tiny_trace.write(tmp_path / "trace.json", captured(Spec(gpu=False))))


def measured(report: Report, speeds: Sequence[float], run: str | None = None, **more_ms: float) -> Report:
    """The report with a timed pass at each speed, of `more_ms` in phases; `run` is its name in a session."""
    assert report.run is not None
    noise = itertools.cycle((1.0, 1.003, 0.998, 1.001, 0.999) if run == "b" else (1.001, 0.999, 1.002, 0.998))
    repeats = []
    for speed in speeds:
        phases = {name: round(1e6 * speed * next(noise) * (QUIET[name] + more_ms.get(name, 0.0))) for name in PHASES}
        repeats.append(RepeatFigures(sum(phases.values()), phases, 0, 0))
    ordered = sorted(repeats, key=lambda repeat: repeat.wall_ns)
    middle = ordered[len(ordered) // 2]
    walls = [repeat.wall_ns for repeat in repeats]
    session = None if run is None else Session("one", 0, run, [], list(range(len(speeds))), [0] * len(speeds))
    setup = report.run.setup
    changed = replace(
        report.run,
        setup=replace(setup, processor="slow" if more_ms else setup.processor),
        phases={name: replace(item, wall_ns=middle.phases_ns[name]) for name, item in report.run.phases.items()},
        wall_ns=Spread(middle.wall_ns, min(walls), max(walls), len(walls)),
        repeats=tuple(repeats),
        session=session,
    )
    return replace(report, run=changed)


def test_rounds_find_what_the_machine_hides_from_separate_captures(base: Report) -> None:
    first, other = measured(base, SPEEDS, "a"), measured(base, SPEEDS, "b", processor=30)
    item = compare([first, other]).differences[0]
    assert item is not None
    assert (item.paired, item.rounds, item.significant, item.causes) == (True, 5, True, ("processor.host",))
    assert item.wall_ns == sum(item.parts.values()) + item.residual_ns
    low, high = item.intervals["processor.host"].low, item.intervals["processor.host"].high
    assert low < 30e6 * sum(SPEEDS) / 5 < high

    apart = measured(base, SPEEDS), measured(base, SPEEDS[::-1], processor=30)
    item = compare(apart).differences[0]
    assert item is not None
    assert (item.paired, item.causes) == (False, ())


def test_a_machine_that_slows_down_is_named_as_such(base: Report) -> None:
    quiet, busy = measured(base, (1.0,) * 4), measured(base, (2.67,) * 4)
    comparison = compare([quiet, busy])
    (item,) = comparison.differences
    assert item is not None
    assert item.causes == ()
    (sentence,) = comparison_verdict(comparison)
    assert "takes 2.67x the time of" in sentence
    assert (
        " No part of unequal work differs beyond noise. The same work at another speed, so the machine: +" in sentence
    )
    assert sentence.endswith(". Not reliable: equal work took 2.67x the time in the other run.")
    assert any(note.startswith("not paired with ") for note in comparison.notes)
    assert item.parts["machine.forward"] > 0.8 * item.wall_ns


def test_the_same_run_twice_has_no_causes(base: Report) -> None:
    item = compare([measured(base, SPEEDS, "a"), measured(base, SPEEDS, "b")]).differences[0]
    assert item is not None
    assert (item.causes, item.significant) == ((), False)
    assert all(part.startswith("machine.") for part, ns in item.parts.items() if ns)


def test_more_steps_are_a_cause_and_their_speed_is_not(base: Report, tmp_path: Path) -> None:
    longer = Spec(batches=(("cffffe", "cfe"),), gpu=False)
    other = api.report(tiny_trace.write(tmp_path / "longer.json", captured(longer)))
    item = compare([measured(base, SPEEDS[:4]), measured(other, SPEEDS[:4])]).differences[0]
    assert item is not None
    assert "tokens.useful" in item.causes
    assert not {part for part in item.causes if part.startswith(("forward", "machine"))}
    assert item.parts["machine.forward"] < 0  # as long for more steps


def test_too_few_rounds_give_no_interval(base: Report) -> None:
    comparison = compare([measured(base, SPEEDS[:2], "a"), measured(base, SPEEDS[:2], "b", processor=30)])
    item = comparison.differences[0]
    assert item is not None
    assert (item.significant, item.intervals, item.causes) == (None, {}, ())
    assert any(note.startswith("no intervals with fewer than 3 rounds") for note in comparison.notes)
    three = compare([measured(base, SPEEDS[:3], "a"), measured(base, SPEEDS[:3], "b")])
    assert not any("reach" in note for note in three.notes)
    (sentence,) = comparison_verdict(comparison)
    assert ": 1.42 s against 1.38 s, +44.2 ms (means of 2 paired rounds, too few to know the noise)." in sentence
    assert sentence.endswith(" Largest parts, of unknown noise: processor: host time (+43.4 ms).")


def changed(run: Run, **setup: Any) -> Run:
    return replace(run, setup=replace(run.setup, **setup))


def test_equal_work_is_told_by_settings_shapes_and_operators(base: Report) -> None:
    run = base.run
    assert run is not None
    assert run.shapes is not None
    other = changed(run, processor="other")
    always = {"tokenize", "setup", "prefill", "forward"}
    assert same_work(run, other) == always
    assert same_work(changed(run, processor=None), changed(run, processor=None)) == set(PHASES)
    assert same_work(run, run) == always  # two captures of one processor's name may have two versions of it
    for name in (*recorded("forward"), "parameters", "logits_width", "gpu", "torch", "transformers"):
        assert same_work(run, changed(other, **{name: "else"})) == set(), name
    free = changed(run, processor=None)
    for name in recorded("tokens"):
        assert same_work(free, changed(free, **{name: "else"})) == always, name
    wide = replace(run.shapes, prompt_widths=(99,))
    assert same_work(run, replace(other, shapes=wide)) == {"forward"}
    assert same_work(run, replace(other, shapes=replace(run.shapes, rows=(9,)))) == set()
    forward = run.phases["forward"]
    more = {**run.phases, "forward": replace(forward, leaf_operators=2 * (forward.leaf_operators or 1) + 9)}
    assert "forward" not in same_work(run, replace(other, phases=more)) or forward.leaf_operators is None
