"""The difference between two runs with a known cause is explained by that cause, and adds up."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations
from math import isclose, prod
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from synthetic import Cost, Spec, captured, costs

from molprof.analysis.compare import compare
from molprof.analysis.compare.difference import Difference, Factor, attribute, rounded, same_work
from molprof.analysis.documents.comparison import comparison_verdict
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import PassTimes, PhaseBound, PhaseFigures, RepeatFigures, Run
from molprof.common.manifest import PHASES, STEP_PHASES, Session
from molprof.common.settings import recorded

# Steps of the plain run: one batch of rows with 4 and 3 tokens.
STEPS = 4
STEP_NS = sum(cost.ns for cost in costs().values())


def report_of(folder: Path, spec: Spec, torch: str = "2.0") -> Report:
    content = captured(spec)
    content["molprof"]["environment"]["torch"] = torch
    report = tiny_trace.report(folder / "trace.json", content)
    assert [check.id for check in report.checks if not check.holds] == []
    return report


def both_ways(first: Report, other: Report) -> Difference:
    """The difference, after what must hold of any: parts add up, and swapped sides negate them."""
    (there,), (back,) = (compare(pair, anyway=True).differences for pair in ([first, other], [other, first]))
    assert there is not None
    assert back is not None
    assert sum(there.parts.values()) + there.residual_ns == there.wall_ns
    assert back.parts == {part: -value for part, value in there.parts.items()}
    assert (back.wall_ns, back.residual_ns) == (-there.wall_ns, -there.residual_ns)
    return there


def explained(folder: Path, first: Spec, other: Spec) -> Difference:
    """With two versions of torch no work counts as equal."""
    return both_ways(report_of(folder, first), report_of(folder, other, "2.1"))


def nonzero(item: Difference) -> dict[str, int]:
    return {part: value for part, value in item.parts.items() if value}


def one(*kinds: str) -> Spec:
    """One batch."""
    return Spec(batches=(kinds,))


SLOWER = Spec(costs=costs(processor=Cost(200, 100, 350)))
# Of three causes: rows, steps per row, and the processor, which alone takes time.
CHEAP = {phase: Cost(0) for phase in STEP_PHASES}
FEW = Spec(batches=(("ce", "ce"),), costs={**CHEAP, "processor": Cost(60)}, once_ns={}, prefill=Cost(1))
MANY = Spec(batches=(("cffffe",),), costs={**CHEAP, "processor": Cost(120)}, once_ns={}, prefill=Cost(1))


@pytest.mark.parametrize(
    ("first", "other", "parts"),
    [
        # 500 µs more per step in the processor: 300 of GPU, 100 of waiting for an idle GPU, 100 of issuing.
        (Spec(), SLOWER, {f"processor.{bound}": STEPS * ns for bound, ns in (
            ("gpu", 300_000), ("launch", 100_000), ("sync", 100_000),
        )}),
        # The forward of step 0 is the prefill.
        (Spec(), Spec(costs=costs(forward=Cost(1001, 13, 705))),
         {"forward.gpu": 15_000, "forward.launch": 3_000, "forward.sync": 9_000}),
        (Spec(), Spec(costs=costs(sampling=Cost(50, 20, 30), bookkeeping=Cost(40, 5))),
         {"sampling.launch": -40_000, "bookkeeping.sync": 20_000}),
        # Without GPU work in both windows a phase is one part.
        (Spec(gpu=False), SLOWER, {"processor.host": STEPS * 500_000}),
        (Spec(), dataclasses.replace(SLOWER, gpu=False), {"processor.host": STEPS * 500_000}),
        (Spec(), Spec(once_ns={"template": 1_900, "tokenize": 400, "setup": 300, "text": 27}),
         {"setup.template": 1_000, "setup.tokenize": -100, "text": 20}),
        (Spec(), Spec(prefill=Cost(3000, 40, 500)), {"prefill": 40_000}),
        # A run without templates has no such phase.
        (Spec(), Spec(once_ns={"tokenize": 500, "setup": 350, "text": 7}),
         {"setup.template": -900, "setup.generate": 50}),
        # Two steps more, in rows that all are as long as each other.
        (one("cffe", "cffe"), one("cffffe", "cffffe"), {"tokens.useful": 2 * STEP_NS}),
        (one("cffe", "cffe"), one("cffjje", "cffjje"), {"tokens.junk": 2 * STEP_NS}),
        (one("cffe", "cffe"), one("cfflle", "cfflle"), {"tokens.filler": 2 * STEP_NS}),
        # Half of the rows' two steps more is junk.
        (one("cffe", "cffe"), one("cffffe", "cffjje"), {"tokens.useful": STEP_NS, "tokens.junk": STEP_NS}),
        # Junk in the place of useful tokens costs nothing more in all.
        (one("cffffe", "cffffe"), one("cffjje", "cffjje"), {"tokens.useful": -2 * STEP_NS, "tokens.junk": 2 * STEP_NS}),
        # Rows of unlike lengths together: two steps more, in which half of the rows had finished.
        (Spec(batches=(("cffffe", "cffffe"), ("ce", "ce"))), Spec(batches=(("cffffe", "ce"), ("cffffe", "ce"))),
         {"steps.idle": 4 * STEP_NS}),
        # Each row alone: the same row-steps in twice the steps; of the four forwards more one is a prefill.
        (one("cffe", "cffe"), Spec(batches=(("cffe",), ("cffe",))),
         {"prefill": Spec().prefill.ns, "steps.batching": 4 * STEP_NS - costs()["forward"].ns}),
        # Twice the steps at twice the processor's cost: the midpoint, as the formula has it.
        (one("ce", "ce"), Spec(batches=(("cfffe",) * 2,), costs=costs(processor=Cost(300))), {
            "tokens.useful": 3 * (STEP_NS - 150_000) + 3 * 450_000 // 2,
            "processor.gpu": -(2 + 5) * 50_000 // 2,
            "processor.launch": (2 + 5) * 200_000 // 2,
        }),
        # Row-steps 4 -> 6, steps per row-step 1/2 -> 1, cost 60 -> 120 µs, with the weights 1/3, 1/6, 1/6, 1/3.
        (FEW, MANY, {
            "tokens.useful": 2 * (30 * 2 + 60 + 60 + 120 * 2) * 1000 // 6,
            "steps.batching": (240 * 2 + 480 + 360 + 720 * 2) * 1000 // 6 // 2,
            "processor.host": 60 * (2 * 2 + 4 + 3 + 6 * 2) * 1000 // 6,
        }),
    ],
)  # fmt: skip
def test_a_cause_is_explained_as_itself_and_nothing_else(
    tmp_path: Path, first: Spec, other: Spec, parts: dict[str, int]
) -> None:
    item = explained(tmp_path, first, other)
    assert (nonzero(item), item.residual_ns) == (parts, 0)
    gpu = first.gpu and other.gpu and "processor.host" not in parts
    assert item.gpu_beyond_ns == ((0, 0) if gpu else None)
    of_window = {f"{phase}.{bound}" for phase in STEP_PHASES for bound in ("gpu", "launch", "sync")}
    assert {part for part, basis in item.basis.items() if basis == "window"} == (of_window if gpu else set())


def test_prompts_have_runaway_tokens_and_no_junk(tmp_path: Path) -> None:
    reports = []
    for kinds, torch in (("cffe", "2.0"), ("cffjje", "2.1")):
        content = captured(one(kinds, kinds))
        content["molprof"]["environment"]["torch"] = torch
        for item in content["molprof"]["molecules"]:
            item["smiles"] = None
        reports.append(tiny_trace.report(tmp_path / "trace.json", content))
    assert nonzero(both_ways(*reports)) == {"tokens.runaway": 2 * STEP_NS}


def test_factors_and_what_is_beside_the_parts(tmp_path: Path) -> None:
    spec = dataclasses.replace(one("cffffe", "cfe"), outside_ns=123)  # time in no phase is the residual
    item = explained(tmp_path, Spec(), spec)
    here_ns, there_ns = (sum(each.phases_ns().values()) for each in (Spec(), spec))
    assert (item.residual_ns, item.residual_ratio) == (123, 123 / (there_ns + 123 - here_ns))
    assert item.factors["tokens"] == 9 / 7
    assert item.factors["steps_per_token"] == (6 / 9) / (4 / 7)
    assert item.factor_values["tokens"] == (7.0, 9.0)
    assert isclose(prod(item.factors.values()), (there_ns + 123) / here_ns, rel_tol=1e-4)
    run = report_of(tmp_path, Spec()).run
    assert run is not None
    assert run.first_pass_extra_ns == 5_000_000
    # GPU time without room: 3 forwards of 700, and 4 times 50 and 30 µs, in 4 phases of 1 µs.
    content = captured(Spec())
    phases_ns = dict.fromkeys(content["molprof"]["timings"]["repeats"][0]["phases_ns"], 1_000)
    content["molprof"]["timings"]["repeats"] = [{"wall_ns": 9_000, "phases_ns": phases_ns, "steps_ns": []}]
    report = tiny_trace.report(tmp_path / "trace.json", content)
    beyond_ns = 2_100_000 + 320_000 - 4_000
    assert both_ways(report, report).gpu_beyond_ns == (beyond_ns, beyond_ns)


def foreign(folder: Path, *busy: tuple[float, float]) -> Report:
    """A trace of other origin: launches long before, work where given."""
    calls = [tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", ts - 3, 1, correlation=ts) for ts, _ in busy]
    kernels = [tiny_trace.work("kernel", "k", ts, dur, int(ts)) for ts, dur in busy]
    name = f"{len(busy)}-{busy[-1][0] if busy else 0}.json"
    return tiny_trace.report(
        folder / name, {"traceEvents": [*calls, *kernels, tiny_trace.slice_("cpu_op", "aten::mm", 0, 1)]}
    )


def test_traces_of_other_origin_differ_in_their_recorded_span(tmp_path: Path) -> None:
    first, other = foreign(tmp_path, (10, 5), (16, 4), (40, 5)), foreign(tmp_path, (10, 5), (30, 9))
    comparison = compare([first, other, first]).to_json()
    assert comparison["difference"] == [None, None]
    # Gaps: 1 µs with work queued, and 20 µs with none; then 15 µs with none.
    assert comparison["trace_difference"][0] == {
        "span_ns": -6_000,
        "parts": {"busy": 0, "idle.cpu_outside": -5_000, "idle.launching": 0, "idle.short": -1_000},
        "residual_ns": 0,
        "devices": [1, 1],
        "per_step": None,
    }
    assert set(comparison["trace_difference"][1]["parts"].values()) == {0}
    ours = tiny_trace.report(tmp_path / "ours.json", tiny_trace.document())
    for pair in ([foreign(tmp_path), other], [ours, ours]):
        assert compare(pair).to_json()["trace_difference"] is None
    mixed = compare([ours, foreign(tmp_path, (10, 5))]).to_json()
    assert mixed["difference"] is None
    assert mixed["trace_difference"]["span_ns"] == 5_000 - 149_000


def test_phases_of_engines_differ_per_step_and_per_token(tmp_path: Path) -> None:
    def served(name: str, sequences: int, *events: tuple[str, str, float, float]) -> Report:
        mark = f"execute_context_0(0)_generation_{sequences}({sequences})"
        steps = [(mark, "user_annotation", ts, 100.0) for ts in sorted({ts // 100 * 100 for *_, ts, _ in events})]
        slices = [tiny_trace.slice_(kind, name, ts, dur) for name, kind, ts, dur in (*steps, *events)]
        return tiny_trace.report(tmp_path / name, {"traceEvents": slices})

    forward, runner = ("gpu_model_runner: forward", "user_annotation"), "vllm/v1/worker/gpu_model_runner.py(1)"
    mask = ("vllm/v1/structured_output/utils.py(1): apply_grammar_bitmask", "python_function")
    prepare = (f"{runner}: _prepare_inputs", "python_function")
    plain = served("plain.json", 4, (*prepare, 0, 10), (*forward, 10, 60), (*forward, 110, 60))
    other = served("other.json", 2, (*forward, 10, 50), (*mask, 70, 20))
    found = compare([plain, other]).to_json()["phase_difference"]
    parts = {name: ns for name, ns in found["parts"].items() if ns}
    assert parts == {"forward": -10_000, "prepare": -5_000, "mask_apply": 20_000, "outside": -5_000}
    assert (found["first_ns"], found["span_ns"]) == (100_000, 0)
    each = found["per_token"]
    assert {name: ns for name, ns in each["parts"].items() if ns} == {
        "forward": 10_000, "prepare": -1_250, "mask_apply": 10_000, "outside": 6_250,
    }  # fmt: skip
    assert (each["first_ns"], each["span_ns"], each["per_token"]) == (25_000, 25_000, None)
    shown = " ".join(comparison_verdict(compare([plain, other])))
    assert "Of the recorded span per step, 0 ns (+25.0 µs per generated token): mask_apply +20.0 µs" in shown


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return tiny_trace.report(tmp_path_factory.mktemp("plain") / "tiny.json", tiny_trace.document())


def with_run(report: Report, torch: str = "2.0", **changes: Any) -> Report:
    assert report.run is not None
    return replace(report, run=replace(report.run, setup=replace(report.run.setup, torch=torch), **changes))


def bounded(wall_ns: int, count: int, *bound_ns: int) -> PhaseFigures:
    """A phase of the run's `wall_ns`, recorded `count` times; then GPU busy, waiting and issuing in the window."""
    return PhaseFigures(wall_ns, *[None] * 7, bound=PhaseBound(count, *bound_ns))


def test_a_cpu_that_is_not_slowed_runs_ahead_of_the_gpu(plain: Report) -> None:
    """What the GPU does not get done within a phase's unprofiled time, it does during the next ones."""
    busy = {
        # 1500 of GPU per step and room for 1000: 3 x 500 go on.
        "forward": bounded(3_000, 2, 3_000, 0, 9_999),
        "processor": bounded(400, 2, 0, 20, 9_999),
        "sampling": bounded(800, 2, 100, 0, 9_999),
        # 1500 - 400 + 4 x 50 - 800 = 500 are left; then 4 x 100 of waiting have room for 300.
        "bookkeeping": bounded(800, 2, 0, 200, 9_999),
    }
    idle = {name: bounded(4 if name == "sampling" else 0, 2, 0, 0, 9_999) for name in busy}
    assert plain.run is not None
    first, other = (
        with_run(plain, torch, steps=4, batches=1, row_steps=8, phases={**plain.run.phases, **phases})
        for torch, phases in (("2.0", idle), ("2.1", busy))
    )
    item = both_ways(first, other)
    assert nonzero(item) == {
        "forward.gpu": 3_000, "processor.gpu": 400, "sampling.gpu": 800, "sampling.launch": -4,
        "bookkeeping.gpu": 500, "bookkeeping.sync": 300,
    }  # fmt: skip
    assert item.gpu_beyond_ns == (0, 0)


SMALL, TIMES = st.integers(0, 40), st.integers(0, 10**12)
BOUNDS = st.none() | st.builds(PhaseBound, st.integers(1, 20), TIMES, TIMES, TIMES)


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """What makes a run: any numbers, contradictory ones too."""
    tokens, idle = draw(SMALL), draw(SMALL)
    bounds = {phase: draw(BOUNDS) for phase in STEP_PHASES} if draw(st.booleans()) else {}
    phases = {phase: PhaseFigures(draw(st.none() | TIMES), *[None] * 7, bound=bounds.get(phase)) for phase in PHASES}
    known_ns = sum(phase.wall_ns or 0 for phase in phases.values())
    return {
        "wall_ns": PassTimes(known_ns + draw(st.integers(-1000, 1000)), None, None, 1),
        "generated_tokens": tokens,
        "junk_tokens": draw(st.integers(0, tokens)),
        "filler_tokens": draw(st.integers(0, tokens)),
        "idle_row_steps": idle,
        "row_steps": tokens + idle,
        "steps": draw(SMALL),
        "batches": draw(st.integers(0, 5)),
        "phases": phases,
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(changes(), changes())
def test_parts_always_add_up_and_change_sign_with_the_direction(
    plain: Report, first: dict[str, Any], other: dict[str, Any]
) -> None:
    reports = with_run(plain, **first), with_run(plain, "2.1", **other)
    there, same = both_ways(*reports), both_ways(reports[0], reports[0])
    assert set(same.parts.values()) == {0}
    assert all(isinstance(value, int) for value in there.parts.values())
    # What the phases took is in the parts, wherever a run has steps that took it.
    if all(run["row_steps"] and run["steps"] > run["batches"] for run in (first, other)):
        took = [sum(phase.wall_ns or 0 for phase in run["phases"].values()) for run in (first, other)]
        assert sum(there.parts.values()) == took[1] - took[0]


def test_a_product_of_three_against_every_order_of_change() -> None:
    values = [(Fraction(2), Fraction(3)), (Fraction(5), Fraction(11)), (Fraction(7), Fraction(1))]
    expected = dict.fromkeys("abc", Fraction(0))
    for order in permutations(range(3)):
        now = [first for first, _ in values]
        for place in order:
            before = prod(now, start=Fraction(1))
            now[place] = values[place][1]
            expected["abc"[place]] += (prod(now, start=Fraction(1)) - before) / 6
    assert attribute([tuple(Factor(name, *pair) for name, pair in zip("abc", values, strict=True))]) == expected


SHARES = st.dictionaries(st.text(max_size=3), st.fractions(-1000, 1000, max_denominator=50), max_size=8)


@settings(max_examples=15)
@given(SHARES)
def test_rounded_shares_add_up_and_are_less_than_one_away(shares: dict[str, Fraction]) -> None:
    whole = rounded(shares)
    assert list(whole) == list(shares)
    assert sum(whole.values()) == round(sum(shares.values(), Fraction(0)))
    assert all(abs(whole[part] - share) < 1 for part, share in shares.items())
    assert rounded({part: -share for part, share in shares.items()}) == {part: -value for part, value in whole.items()}
    # The largest remainder takes what is left over; of equal ones the first.
    assert rounded({"a": Fraction(1, 3), "b": Fraction(2, 3), "c": Fraction(-4, 3), "d": Fraction(10, 3)}) == {
        "a": 0, "b": 1, "c": -1, "d": 3,
    }  # fmt: skip
    assert rounded({"a": Fraction(1, 2), "b": Fraction(1, 2)}) == {"a": 1, "b": 0}


# Host times of a pass on a quiet machine, ms, and how much slower the machine was in each round.
QUIET = {
    "template": 4, "tokenize": 2, "setup": 3, "prefill": 30, "forward": 800, "processor": 40, "sampling": 60,
    "bookkeeping": 10, "text": 1,
}  # fmt: skip
SPEEDS = (1.0, 1.9, 1.2, 2.6, 1.1)


def measured(report: Report, speeds: Sequence[float], run: str | None = None, **more_ms: float) -> Report:
    """The report with a timed pass at each speed, of `more_ms` in phases; `run` is its name in a session."""
    assert report.run is not None
    noise = itertools.cycle((1.0, 1.003, 0.998, 1.001, 0.999) if run == "b" else (1.001, 0.999, 1.002, 0.998))
    repeats = []
    for speed in speeds:
        phases = {name: round(1e6 * speed * next(noise) * (ms + more_ms.get(name, 0.0))) for name, ms in QUIET.items()}
        phases = {name: phases.get(name, 0) for name in PHASES}
        repeats.append(RepeatFigures(sum(phases.values()), phases, 0, 0))
    middle = sorted(repeats, key=lambda repeat: repeat.wall_ns)[len(repeats) // 2]
    walls = [repeat.wall_ns for repeat in repeats]
    session = None if run is None else Session("one", 0, run, [], list(range(len(speeds))), [0] * len(speeds))
    setup = report.run.setup
    changed = replace(
        report.run,
        setup=replace(setup, processor="slow" if more_ms else setup.processor),
        phases={name: replace(item, wall_ns=middle.phases_ns[name]) for name, item in report.run.phases.items()},
        wall_ns=PassTimes(middle.wall_ns, min(walls), max(walls), len(walls)),
        repeats=tuple(repeats),
        session=session,
    )
    return replace(report, run=changed)


@pytest.fixture
def base(tmp_path: Path) -> Report:
    return report_of(tmp_path, Spec(gpu=False))


def caused(first: Report, other: Report) -> Difference:
    (item,) = compare([first, other]).differences
    assert item is not None
    assert item.wall_ns == sum(item.parts.values()) + item.residual_ns
    return item


def test_rounds_find_what_the_machine_hides_from_separate_captures(base: Report) -> None:
    item = caused(measured(base, SPEEDS, "a"), measured(base, SPEEDS, "b", processor=30))
    assert (item.paired, item.rounds, item.significant, item.causes) == (True, 5, True, ("processor.host",))
    assert item.intervals["processor.host"].low < 30e6 * sum(SPEEDS) / 5 < item.intervals["processor.host"].high
    apart = caused(measured(base, SPEEDS), measured(base, SPEEDS[::-1], processor=30))
    assert (apart.paired, apart.causes) == (False, ())
    same = caused(measured(base, SPEEDS, "a"), measured(base, SPEEDS, "b"))
    assert (same.causes, same.significant) == ((), False)
    assert all(part.startswith("machine.") for part in nonzero(same))


def test_a_machine_that_slows_down_is_named_as_such(base: Report) -> None:
    comparison = compare([measured(base, (1.0,) * 4), measured(base, (2.67,) * 4)])
    (item,) = comparison.differences
    assert item is not None
    assert (item.causes, item.parts["machine.forward"] > 0.8 * item.wall_ns) == ((), True)
    (sentence,) = comparison_verdict(comparison)
    said = " No part of unequal work differs beyond noise. The same work at another speed, so the machine: +"
    assert said in sentence
    assert sentence.endswith(". Not reliable: equal work took 2.67x the time in the other run.")
    assert any(note.startswith("not paired with ") for note in comparison.notes)


def test_more_steps_are_a_cause_and_their_speed_is_not(base: Report, tmp_path: Path) -> None:
    other = report_of(tmp_path, Spec(batches=(("cffffe", "cfe"),), gpu=False))
    item = caused(measured(base, SPEEDS[:4]), measured(other, SPEEDS[:4]))
    assert "tokens.useful" in item.causes
    assert not {part for part in item.causes if part.startswith(("forward", "machine"))}
    assert item.parts["machine.forward"] < 0  # as long for more steps


def test_too_few_rounds_give_no_interval(base: Report) -> None:
    comparison = compare([measured(base, SPEEDS[:2], "a"), measured(base, SPEEDS[:2], "b", processor=30)])
    (item,) = comparison.differences
    assert item is not None
    assert (item.significant, item.intervals, item.causes) == (None, {}, ())
    assert any(note.startswith("no intervals with fewer than 3 rounds") for note in comparison.notes)
    (sentence,) = comparison_verdict(comparison)
    assert ": 1.42 s against 1.38 s, +44.2 ms (means of 2 paired rounds, too few to know the noise)." in sentence
    assert sentence.endswith(" Largest parts, of unknown noise: processor: host time (+43.4 ms).")
    three = compare([measured(base, SPEEDS[:3], "a"), measured(base, SPEEDS[:3], "b")])
    assert not any("reach" in note for note in three.notes)


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
    few, many = ({**run.phases, "forward": replace(run.phases["forward"], leaf_operators=n)} for n in (9, 27))
    assert same_work(replace(run, phases=few), replace(other, phases=many)) == always - {"forward"}
