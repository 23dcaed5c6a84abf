"""The difference between two runs of which the truth is known: each cause is explained as itself, and adds up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from functools import partial
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

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.compare.difference import Difference, Factor, attribute, rounded
from molprof.analysis.compare.parts import PART_LABELS
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import PhaseBound, PhaseFigures, Spread
from molprof.common.manifest import PHASES, STEP_PHASES

Reports = Callable[..., Report]
# Steps of the plain run: one batch of rows with 4 and 3 tokens.
STEPS = 4
STEP_NS = sum(cost.ns for cost in costs().values())


@pytest.fixture
def report_of(tmp_path: Path) -> Reports:
    return partial(_load, tmp_path)


def _load(folder: Path, spec: Spec, torch: str = "2.0") -> Report:
    content = captured(spec)
    content["molprof"]["environment"]["torch"] = torch
    report = tiny_trace.report(folder / "trace.json", content)
    assert [check.id for check in report.checks if not check.holds] == []
    return report


def explained(report_of: Reports, other: Spec, first: Spec | None = None) -> Difference:
    """The difference, after what must hold of any. With two versions of torch no work counts as equal."""
    return both_ways(report_of(first or Spec()), report_of(other, "2.1"))


def both_ways(first: Report, other: Report) -> Difference:
    (there,), (back,) = (compare(pair, anyway=True).differences for pair in ([first, other], [other, first]))
    assert there is not None
    assert back is not None
    assert sum(there.parts.values()) + there.residual_ns == there.wall_ns
    assert back.parts == {part: -value for part, value in there.parts.items()}
    assert (back.wall_ns, back.residual_ns) == (-there.wall_ns, -there.residual_ns)
    return there


def nonzero(item: Difference) -> dict[str, int]:
    return {part: value for part, value in item.parts.items() if value}


def test_an_extra_cost_in_one_phase_is_explained_as_that_and_nothing_else(report_of: Reports) -> None:
    """500 µs more per step in the processor: 300 of GPU, 100 of waiting for an idle GPU, 100 of issuing."""
    item = explained(report_of, Spec(costs=costs(processor=Cost(200, 100, 350))))
    assert item.wall_ns == STEPS * 500_000
    assert nonzero(item) == {
        "processor.gpu": STEPS * 300_000,
        "processor.launch": STEPS * 100_000,
        "processor.sync": STEPS * 100_000,
    }
    assert item.residual_ns == 0
    assert item.gpu_beyond_ns == (0, 0)
    assert list(item.parts) == [
        part for part in PART_LABELS if not part.endswith(".host") and not part.startswith("machine.")
    ]
    assert {part for part, basis in item.basis.items() if basis == "window"} == {
        f"{phase}.{bound}" for phase in STEP_PHASES for bound in ("gpu", "launch", "sync")
    }


def test_each_phase_of_the_steps(report_of: Reports) -> None:
    # The forward of step 0 is the prefill.
    item = explained(report_of, Spec(costs=costs(forward=Cost(1001, 13, 705))))
    assert nonzero(item) == {"forward.gpu": 15_000, "forward.launch": 3_000, "forward.sync": 9_000}
    item = explained(report_of, Spec(costs=costs(sampling=Cost(50, 20, 30), bookkeeping=Cost(40, 5))))
    assert nonzero(item) == {"sampling.launch": -40_000, "bookkeeping.sync": 20_000}


def test_without_gpu_work_in_both_windows_a_phase_is_one_part(report_of: Reports) -> None:
    slower = Spec(costs=costs(processor=Cost(200, 100, 350)))
    for first, other in ((Spec(gpu=False), slower), (Spec(), dataclasses.replace(slower, gpu=False))):
        item = explained(report_of, other, first)
        assert nonzero(item) == {"processor.host": STEPS * 500_000}
        assert item.gpu_beyond_ns is None
        assert set(item.basis.values()) == {"measured"}


def test_set_up_prefill_and_text(report_of: Reports) -> None:
    item = explained(report_of, Spec(once_ns={"template": 1_900, "tokenize": 400, "setup": 300, "text": 27}))
    assert nonzero(item) == {"setup.template": 1_000, "setup.tokenize": -100, "text": 20}
    item = explained(report_of, Spec(prefill=Cost(3000, 40, 500)))
    assert nonzero(item) == {"prefill": 40_000}
    # A run without templates has no such phase.
    item = explained(report_of, Spec(once_ns={"tokenize": 500, "setup": 350, "text": 7}))
    assert nonzero(item) == {"setup.template": -900, "setup.generate": 50}


def test_time_in_no_phase_is_the_residual(report_of: Reports) -> None:
    item = explained(report_of, Spec(outside_ns=123, prefill=Cost(3000, 0, 501)))
    assert nonzero(item) == {"prefill": 1_000}
    assert (item.residual_ns, item.residual_ratio) == (123, 123 / 1_123)


def one(*kinds: str) -> Spec:
    """One batch."""
    return Spec(batches=(kinds,))


@pytest.mark.parametrize(
    ("first", "other", "parts"),
    [
        # Two steps more, in rows that all are as long as each other.
        (one("cffe", "cffe"), one("cffffe", "cffffe"), {"tokens.useful": 2 * STEP_NS}),
        (one("cffe", "cffe"), one("cffjje", "cffjje"), {"tokens.junk": 2 * STEP_NS}),
        (one("cffe", "cffe"), one("cfflle", "cfflle"), {"tokens.filler": 2 * STEP_NS}),
        # Half of the rows' two steps more is junk.
        (one("cffe", "cffe"), one("cffffe", "cffjje"), {"tokens.useful": STEP_NS, "tokens.junk": STEP_NS}),
        # Junk in the place of useful tokens costs nothing more in all.
        (one("cffffe", "cffffe"), one("cffjje", "cffjje"), {"tokens.useful": -2 * STEP_NS, "tokens.junk": 2 * STEP_NS}),
        # Rows of unlike lengths together: two steps more, in which half of the rows had finished.
        (
            Spec(batches=(("cffffe", "cffffe"), ("ce", "ce"))),
            Spec(batches=(("cffffe", "ce"), ("cffffe", "ce"))),
            {"steps.idle": 4 * STEP_NS},
        ),
    ],
    ids=["useful", "junk", "filler", "both", "instead", "idle"],
)
def test_steps_are_explained_by_the_rows_that_made_them(
    report_of: Reports, first: Spec, other: Spec, parts: dict[str, int]
) -> None:
    item = explained(report_of, other, first)
    assert nonzero(item) == parts
    assert item.residual_ns == 0


def test_smaller_batches(report_of: Reports) -> None:
    """Each row alone: the same row-steps in twice the steps; of the four forwards more one is a prefill."""
    alone = Spec(batches=(("cffe",), ("cffe",)))
    item = explained(report_of, alone, one("cffe", "cffe"))
    assert nonzero(item) == {
        "prefill": alone.prefill.ns,
        "steps.batching": 4 * STEP_NS - costs()["forward"].ns,
    }


def test_two_causes_share_what_they_cause_together(report_of: Reports) -> None:
    """Twice the steps at twice the processor's cost: the midpoint, as the formula has it."""
    item = explained(report_of, Spec(batches=(("cfffe",) * 2,), costs=costs(processor=Cost(300))), one("ce", "ce"))
    processor_ns = 150_000, 300_000
    assert nonzero(item) == {
        "tokens.useful": 3 * (STEP_NS - processor_ns[0]) + 3 * sum(processor_ns) // 2,
        "processor.gpu": -(2 + 5) * 50_000 // 2,
        "processor.launch": (2 + 5) * 200_000 // 2,
    }


def test_three_causes_at_once(report_of: Reports) -> None:
    """Rows x steps per row x cost, worked out by hand with the weights 1/3, 1/6, 1/6, 1/3."""
    cheap = {phase: Cost(0) for phase in STEP_PHASES}
    first = Spec(batches=(("ce", "ce"),), costs={**cheap, "processor": Cost(60)}, once_ns={}, prefill=Cost(1))
    other = Spec(batches=(("cffffe",),), costs={**cheap, "processor": Cost(120)}, once_ns={}, prefill=Cost(1))
    # Row-steps 4 -> 6, steps per row-step 1/2 -> 1, cost 60 -> 120 µs: time 120 -> 720 µs.
    item = explained(report_of, other, first)
    assert nonzero(item) == {
        "tokens.useful": 2 * (30 * 2 + 60 + 60 + 120 * 2) * 1000 // 6,
        "steps.batching": (240 * 2 + 480 + 360 + 720 * 2) * 1000 // 6 // 2,
        "processor.host": 60 * (2 * 2 + 4 + 3 + 6 * 2) * 1000 // 6,
    }


def test_gpu_time_without_room_is_told(tmp_path: Path) -> None:
    content = captured(Spec())
    phases_ns = dict.fromkeys(content["molprof"]["timings"]["repeats"][0]["phases_ns"], 1_000)
    content["molprof"]["timings"]["repeats"] = [{"wall_ns": 9_000, "phases_ns": phases_ns, "steps_ns": []}]
    report = tiny_trace.report(tmp_path / "trace.json", content)
    # 3 forwards of 700, and 4 times 50 and 30 µs; 4 phases of 1 µs to hold them.
    beyond_ns = 2_100_000 + 320_000 - 4_000
    assert both_ways(report, report).gpu_beyond_ns == (beyond_ns, beyond_ns)


def test_factors_multiply_to_the_ratio_of_times(report_of: Reports) -> None:
    spec = one("cffffe", "cfe")
    item = explained(report_of, spec)
    here_ns, there_ns = (sum(each.phases_ns().values()) for each in (Spec(), spec))
    assert item.factors == {
        "tokens": 9 / 7,
        "steps_per_token": (6 / 9) / (4 / 7),
        "time_per_step": (there_ns / 6) / (here_ns / 4),
    }
    assert item.factor_values["tokens"] == (7.0, 9.0)
    assert isclose(prod(item.factors.values()), there_ns / here_ns)


def test_first_pass_is_beside_the_difference(report_of: Reports) -> None:
    run = report_of(Spec()).run
    assert run is not None
    assert run.first_pass_extra_ns == 5_000_000


def foreign(busy: list[tuple[float, float]]) -> dict[str, Any]:
    """A trace of other origin: launches long before, work where given."""
    calls = [tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", ts - 3, 1, correlation=ts) for ts, _ in busy]
    return {"traceEvents": [*calls, *(tiny_trace.work("kernel", "k", ts, dur, int(ts)) for ts, dur in busy)]}


def test_traces_of_other_origin_differ_in_their_recorded_span(tmp_path: Path) -> None:
    first = api.report(tiny_trace.write(tmp_path / "a.json", foreign([(10, 5), (16, 4), (40, 5)])))
    other = api.report(tiny_trace.write(tmp_path / "b.json", foreign([(10, 5), (30, 9)])))
    comparison = compare([first, other, first]).to_json()
    assert comparison["difference"] == [None, None]
    # Gaps: 1 µs with work queued, and 20 µs with none; then 15 µs with none.
    assert comparison["trace_difference"][0] == {
        "span_ns": -6_000,
        "parts": {"busy": 0, "idle.cpu_outside": -5_000, "idle.launching": 0, "idle.short": -1_000},
        "residual_ns": 0,
        "devices": [1, 1],
    }
    assert set(comparison["trace_difference"][1]["parts"].values()) == {0}


def test_no_recorded_difference_without_gpu_work_or_beside_an_unprofiled_one(tmp_path: Path) -> None:
    cpu = api.report(
        tiny_trace.write(tmp_path / "a.json", {"traceEvents": [tiny_trace.slice_("cpu_op", "aten::mm", 0, 1)]})
    )
    gpu = api.report(tiny_trace.write(tmp_path / "b.json", foreign([(10, 5)])))
    ours = tiny_trace.report(tmp_path / "c.json", tiny_trace.document())
    assert compare([cpu, gpu]).to_json()["trace_difference"] is None
    assert compare([ours, ours]).to_json()["trace_difference"] is None
    mixed = compare([ours, gpu]).to_json()
    assert mixed["difference"] is None
    assert mixed["trace_difference"]["span_ns"] == 5_000 - 149_000


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
    first, other = (
        with_run(plain, torch, steps=4, batches=1, row_steps=8, phases={**plain.run.phases, **phases})
        for torch, phases in (("2.0", idle), ("2.1", busy))
        if plain.run is not None
    )
    item = both_ways(first, other)
    assert nonzero(item) == {
        "forward.gpu": 3_000,
        "processor.gpu": 400,
        "sampling.gpu": 800,
        "sampling.launch": -4,
        "bookkeeping.gpu": 500,
        "bookkeeping.sync": 300,
    }
    assert item.gpu_beyond_ns == (0, 0)


SMALL, TIMES = st.integers(0, 40), st.integers(0, 10**12)
BOUNDS = st.none() | st.builds(PhaseBound, st.integers(1, 20), TIMES, TIMES, TIMES)


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """What makes a run: any numbers, contradictory ones too."""
    tokens = draw(SMALL)
    bounds = {phase: draw(BOUNDS) for phase in STEP_PHASES} if draw(st.booleans()) else {}
    phases = {phase: PhaseFigures(draw(st.none() | TIMES), *[None] * 7, bound=bounds.get(phase)) for phase in PHASES}
    steps, batches, idle = draw(SMALL), draw(st.integers(0, 5)), draw(SMALL)
    known_ns = sum(phase.wall_ns or 0 for phase in phases.values())
    return {
        "wall_ns": Spread(known_ns + draw(st.integers(-1000, 1000)), None, None, 1),
        "generated_tokens": tokens,
        "junk_tokens": draw(st.integers(0, tokens)),
        "filler_tokens": draw(st.integers(0, tokens)),
        "idle_row_steps": idle,
        "row_steps": tokens + idle,
        "steps": steps,
        "batches": batches,
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


NUMBERS = st.fractions(min_value=-1000, max_value=1000, max_denominator=50)


def test_a_product_of_three_against_every_order_of_change() -> None:
    values = [(Fraction(2), Fraction(3)), (Fraction(5), Fraction(11)), (Fraction(7), Fraction(1))]
    expected = dict.fromkeys("abc", Fraction(0))
    for order in permutations(range(3)):
        now = [first for first, _ in values]
        for place in order:
            before = prod(now, start=Fraction(1))
            now[place] = values[place][1]
            expected["abc"[place]] += (prod(now, start=Fraction(1)) - before) / 6
    term = tuple(Factor(name, *pair) for name, pair in zip("abc", values, strict=True))
    assert attribute([term]) == expected


def test_rounding_goes_to_the_largest_remainder() -> None:
    thirds = {"a": Fraction(1, 3), "b": Fraction(2, 3), "c": Fraction(-4, 3), "d": Fraction(10, 3)}
    assert rounded(thirds) == {"a": 0, "b": 1, "c": -1, "d": 3}
    # Equal remainders: the first one.
    assert rounded({"a": Fraction(1, 2), "b": Fraction(1, 2)}) == {"a": 1, "b": 0}
    assert rounded({}) == {}


@given(st.dictionaries(st.text(max_size=3), NUMBERS, max_size=8))
def test_rounded_shares_add_up_and_are_less_than_one_away(shares: dict[str, Fraction]) -> None:
    whole = rounded(shares)
    assert list(whole) == list(shares)
    assert sum(whole.values()) == round(sum(shares.values(), Fraction(0)))
    assert all(abs(whole[part] - share) < 1 for part, share in shares.items())
    assert rounded({part: -share for part, share in shares.items()}) == {part: -value for part, value in whole.items()}
