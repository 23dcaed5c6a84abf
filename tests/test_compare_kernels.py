"""Two traces kernel by kernel: sums of literal events are exact. Those of real traces are in `tests/goldens`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_trace import slice_, work, write

from molprof import api
from molprof.analysis.compare.kernels.pick import Kernels
from molprof.analysis.compare.kernels.read import cut
from molprof.analysis.compare.kernels.sums import Summed, part_of, summed
from molprof.analysis.documents.kernels import kernel_verdict, kernels_document
from molprof.analysis.render import render
from molprof.common.errors import NotComparableError


def ran(*kernels: tuple[str, str, float, float], step: float | None = None) -> dict[str, Any]:
    """A trace of these kernels: operator, name, start and time, µs. Each operator begins 100 µs before its kernel."""
    events = [] if step is None else [slice_("user_annotation", "ProfilerStep#1", 0, step)]
    for number, (operator, name, ts, dur) in enumerate(kernels, start=1):
        events += [
            slice_("cpu_op", operator, ts - 100, 1),
            slice_("cuda_runtime", "cudaLaunchKernel", ts - 99.75, 0.5, correlation=number),
            work("kernel", name, ts, dur, number),
        ]
    return {"traceEvents": events}


def compared(folder: Path, first: dict[str, Any], other: dict[str, Any], region: str = "trace") -> Summed:
    paths = [write(folder / f"{name}.json", content) for name, content in (("first", first), ("other", other))]
    return summed(*(cut(api.recorded(path)[0], region) for path in paths))


FIRST = ran(
    ("aten::mm", "sm90_gemm", 200, 10),
    ("aten::relu", "relu_kernel", 212, 3),
    ("aten::add", "add_kernel", 215, 4),
    ("aten::mul", "mul_kernel", 220, 5),
    ("aten::sum", "reduce_kernel", 225, 6),
    ("aten::cumsum", "scan_kernel", 231, 1),
)
# Another kernel for mm; the multiplication comes last; the activation is gone; a copy is new.
OTHER = ran(
    ("aten::mm", "Cijk_Ailk", 300, 14),
    ("aten::copy_", "direct_copy_kernel", 320, 2),
    ("aten::add", "add_kernel", 322, 1),
    ("aten::sum", "reduce_kernel", 323, 6),
    ("aten::cumsum", "scan_kernel", 330, 1),
    ("aten::mul", "mul_kernel", 331, 7),
)


def test_matched_work_is_more_or_slower(tmp_path: Path) -> None:
    def sized(rows: int, us: float) -> dict[str, Any]:
        content = ran(("aten::mm", "sm90_gemm", 200, us), ("aten::cumsum", "scan_kernel", 230, us))
        sizes = {"Input Dims": [[rows, 8], [8, 4]], "Input type": ["float", "float"]}
        content["traceEvents"][0]["args"] |= sizes
        return content

    found = compared(tmp_path, sized(16, 4), sized(32, 10)).whole
    # Twice the FLOPs at 4 / 1024 and 10 / 2048 ns for each; of the other kernel no shapes are recorded.
    mean_rate, mean_flops = (4_000 / 1024 + 10_000 / 2048) / 2, 1536
    assert found.split == [1024 * mean_rate, (10_000 / 2048 - 4_000 / 1024) * mean_flops, 6_000]
    assert sum(found.split) == found.parts["slower"] + found.parts["faster"]
    # Amounts of two operators are not of one kind.
    other = sized(32, 10)
    other["traceEvents"][0] |= {"name": "aten::bmm"}
    other["traceEvents"][0]["args"]["Input Dims"] = [[1, 32, 8], [1, 8, 4]]
    assert compared(tmp_path, sized(16, 4), other).whole.split == [0, 0, 12_000]


def test_every_nanosecond_has_a_part(tmp_path: Path) -> None:
    result = compared(tmp_path, FIRST, OTHER)
    assert result.whole.parts == {
        "slower": 4_000, "faster": -3_000, "inserted": 2_000, "deleted": -3_000, "moved": 2_000, "idle": 7_000 - 3_000,
    }  # fmt: skip
    assert result.span_ns == 38_000 - 32_000
    assert result.whole.counts == {"matched": 4, "inserted": 1, "deleted": 1, "moved": 1}
    assert (result.residual_ns, result.problems) == (0, ())
    assert [part_of(change) for change in result.changes] == [
        "slower", "deleted", "inserted", "faster", "equal", "equal", "moved",
    ]  # fmt: skip
    said = " ".join(kernel_verdict(result, ("a", "b")))
    assert said.startswith("b has a recorded GPU span of 38.0 µs, a of 32.0 µs (+6.00 µs, 1.19x): ")
    assert "It adds 1 kernel (+2.00 µs): 1 between aten::mm and aten::add: 1 aten::copy_." in said
    assert "It leaves out 1 kernel (-3.00 µs): 1 between aten::mm and aten::add: 1 aten::relu." in said
    assert "It moves 1 kernel (+2.00 µs)" in said

    swapped = {"slower": "faster", "faster": "slower", "inserted": "deleted", "deleted": "inserted"}
    parts = {swapped.get(part, part): -ns for part, ns in result.whole.parts.items()}
    assert compared(tmp_path, OTHER, FIRST).whole.parts == parts
    itself = compared(tmp_path, FIRST, FIRST)
    assert {part_of(change) for change in itself.changes} == {"equal"}
    assert kernel_verdict(itself, ("a", "b")) == ("b and a ran the same kernels in the same time.",)

    # A sum that does not hold is said.
    result.whole.parts["idle"] += 1
    assert result.residual_ns == -1
    document = kernels_document(Kernels("trace", (), result, ()))
    assert document.warnings[0] == "the sum does not hold: the parts add up to 6001 ns, the difference is 6000 ns"
    assert "unexplained" in render(document, "table")
    assert json.loads(render(document, "json"))["difference"]["residual_ns"] == -1


def test_work_side_by_side_counts_once(tmp_path: Path) -> None:
    beside = {"traceEvents": [*FIRST["traceEvents"], work("kernel", "beside", 222, 20, 99, tid=8)]}
    result = compared(tmp_path, FIRST, beside)
    # From 225 on the other stream is busy until 242; what ran meanwhile adds nothing.
    assert (result.span_ns, result.whole.total_ns, result.problems) == (10_000, 10_000, ())
    assert result.whole.other.span_ns == 42_000
    assert result.whole.counts["inserted"] == 1


def test_work_of_two_steps_that_starts_together(tmp_path: Path) -> None:
    def trace(beside: float) -> dict[str, Any]:
        events = [slice_("user_annotation", f"ProfilerStep#{step}", 100 * step, 90) for step in (0, 1)]
        for number, (called, dur, stream) in enumerate(((10, 40, 7), (110, beside, 8)), start=1):
            events.append(slice_("cuda_runtime", "cudaLaunchKernel", called, 1, correlation=number))
            events.append(work("kernel", "gemm", 120, dur, number, tid=stream))
        return {"traceEvents": events}

    result = compared(tmp_path, trace(18), trace(25), "steps")
    # The shorter one ends first, so its time is its own, and the longer one's is the rest; the span is the longer's.
    assert [(lane.span_ns, lane.items[0].own_ns) for lane in result.first.lanes] == [(22_000, 22_000), (18_000, 18_000)]
    assert (result.span_ns, result.whole.parts["faster"], result.whole.parts["slower"]) == (0, -7_000, 7_000)
    assert result.problems == ()


def test_operators_without_those_that_they_call(tmp_path: Path) -> None:
    def trace(inner: float) -> dict[str, Any]:
        return {
            "traceEvents": [
                slice_("user_annotation", "ProfilerStep#1", 0, 60 + inner),
                slice_("cpu_op", "aten::linear", 10, 20 + inner),
                slice_("cpu_op", "aten::mm", 15, 5 + inner),
                slice_("cpu_op", "aten::add", 40 + inner, 10),
                slice_("cpu_op", "aten::late", 90, 10),
            ]
        }

    result = compared(tmp_path, trace(0), trace(7), "step")
    assert [(item.first.own_ns, item.other.own_ns, item.first.gap_ns) for item in result.changes] == [  # type: ignore[union-attr]
        (15_000, 15_000, 10_000),
        (5_000, 12_000, 0),
        (10_000, 10_000, 10_000),
    ]
    assert result.first.lanes[0].tail_ns == 10_000
    assert (result.span_ns, result.whole.parts["slower"], result.problems) == (7_000, 7_000, ())


def test_kernels_without_a_call_are_in_the_step_around_them(tmp_path: Path) -> None:
    alone = [work("kernel", "alone", ts, 1, 99) for ts in (190, 217, 240)]
    first = ran(("aten::mm", "gemm", 210, 5), ("aten::mm", "gemm", 220, 5), step=400)
    part = cut(api.recorded(write(tmp_path / "a.json", {"traceEvents": [*first["traceEvents"], *alone]}))[0], "step")
    (lane,) = part.lanes
    assert [item.name for item in lane.items] == ["gemm", "alone", "gemm"]
    assert (lane.span_ns, lane.items[0].gap_ns, part.outside) == (225_000 - 191_000, 19_000, (2, 2_000))


def test_steps_without_work_are_refused(tmp_path: Path) -> None:
    steps = [slice_("user_annotation", f"ProfilerStep#{number}", 10 * number, 8) for number in (1, 2)]
    path = write(tmp_path / "steps.json", {"traceEvents": [*steps, work("kernel", "late", 500, 1, 1)]})
    with pytest.raises(NotComparableError, match="no work is recorded in the steps of either"):
        api.compare_kernels([path, path])
