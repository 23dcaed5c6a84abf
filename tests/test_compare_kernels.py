"""Two traces kernel by kernel: literal events with known sums, and real traces against a plain recount with json."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from tiny_trace import slice_, work, write

from molprof import api
from molprof.analysis.compare.kernels.read import cut
from molprof.analysis.compare.kernels.sums import Summed, part_of, summed
from molprof.analysis.documents.kernels import kernel_verdict, kernels_document
from molprof.analysis.render import render

CORPUS = os.environ.get("MOLPROF_CORPUS")
RECORDED = Path(__file__).parent.parent / "traces"
needs_traces = pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")


def ran(*kernels: tuple[str, str, float, float], step: float | None = None) -> dict[str, Any]:
    """A trace of these kernels: operator, name, start and time, µs. Each operator begins 100 µs before its kernel."""
    events = [] if step is None else [slice_("user_annotation", "ProfilerStep#1", 0, step)]
    for number, (operator, name, ts, dur) in enumerate(kernels):
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


def test_every_nanosecond_has_a_part(tmp_path: Path) -> None:
    result = compared(tmp_path, FIRST, OTHER)
    assert result.whole.parts == {
        "slower": 4_000,
        "faster": -3_000,
        "inserted": 2_000,
        "deleted": -3_000,
        "moved": 2_000,
        "idle": 7_000 - 3_000,
    }
    assert result.span_ns == 38_000 - 32_000
    assert result.whole.counts == {"matched": 4, "inserted": 1, "deleted": 1, "moved": 1}
    assert (result.residual_ns, result.problems) == (0, ())
    assert [part_of(change) for change in result.changes] == [
        "slower", "deleted", "inserted", "faster", "equal", "equal", "moved",
    ]  # fmt: skip


def test_the_other_way_round_changes_signs(tmp_path: Path) -> None:
    one, two = compared(tmp_path, FIRST, OTHER), compared(tmp_path, OTHER, FIRST)
    swapped = {"slower": "faster", "faster": "slower", "inserted": "deleted", "deleted": "inserted"}
    assert {swapped.get(part, part): -ns for part, ns in one.whole.parts.items()} == two.whole.parts


def test_a_trace_against_itself(tmp_path: Path) -> None:
    result = compared(tmp_path, FIRST, FIRST)
    assert {part_of(change) for change in result.changes} == {"equal"}
    assert kernel_verdict(result, ("a", "b")) == ("b and a ran the same kernels in the same time.",)


def test_work_side_by_side_counts_once(tmp_path: Path) -> None:
    beside = {"traceEvents": [*FIRST["traceEvents"], work("kernel", "beside", 222, 20, 99, tid=8)]}
    result = compared(tmp_path, FIRST, beside)
    # From 225 on the other stream is busy until 242; what ran meanwhile adds nothing.
    assert (result.span_ns, result.whole.total_ns, result.problems) == (10_000, 10_000, ())
    assert result.whole.other[1] + result.whole.other[2] == 42_000
    assert result.whole.counts["inserted"] == 1


def test_work_of_two_steps_that_starts_together(tmp_path: Path) -> None:
    def trace(beside: float) -> dict[str, Any]:
        events = [slice_("user_annotation", f"ProfilerStep#{step}", 100 * step, 90) for step in (0, 1)]
        for number, (called, dur, stream) in enumerate(((10, 40, 7), (110, beside, 8))):
            events.append(slice_("cuda_runtime", "cudaLaunchKernel", called, 1, correlation=number))
            events.append(work("kernel", "gemm", 120, dur, number, tid=stream))
        return {"traceEvents": events}

    result = compared(tmp_path, trace(18), trace(25), "steps")
    # The shorter one ends first, so its time is its own, and the longer one's is the rest; the span is the longer's.
    assert [(lane.span_ns, lane.items[0].own_ns) for lane in result.first.lanes] == [(22_000, 22_000), (18_000, 18_000)]
    assert (result.span_ns, result.whole.parts["faster"], result.whole.parts["slower"]) == (0, -7_000, 7_000)
    assert result.problems == ()


def test_the_verdict_says_what_and_where(tmp_path: Path) -> None:
    said = " ".join(kernel_verdict(compared(tmp_path, FIRST, OTHER), ("a", "b")))
    assert said.startswith("b takes 38.0 µs against 32.0 µs of a (+6.00 µs, 1.19x): ")
    assert "It adds 1 kernel (+2.00 µs): 1 between aten::mm and aten::add: 1 aten::copy_." in said
    assert "It leaves out 1 kernel (-3.00 µs): 1 between aten::mm and aten::add: 1 aten::relu." in said
    assert "It moves 1 kernel (+2.00 µs)" in said


def test_a_sum_that_does_not_hold_is_said(tmp_path: Path) -> None:
    result = compared(tmp_path, FIRST, OTHER)
    result.whole.parts["idle"] += 1
    assert result.residual_ns == -1
    document = kernels_document(result, "trace")
    assert document.warnings[0] == "the sum does not hold: the parts add up to 6001 ns, the difference is 6000 ns"
    assert "unexplained" in render(document, "table")
    assert json.loads(render(document, "json"))["difference"]["residual_ns"] == -1


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


def ns(us: Any) -> int:
    return int((Decimal(us) * 1000).to_integral_value())


def raw_events(path: Path) -> list[dict[str, Any]]:
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


@needs_traces
def test_two_vendors_against_a_plain_recount() -> None:
    paths = [
        Path(str(CORPUS), name) for name in ("traces/h100_qwen1.5_0.5b.json.gz", "pairs/mi300_qwen1.5_0.5b.json.gz")
    ]
    recorded = [api.recorded(path)[0] for path in paths]
    result = summed(*(cut(item, "trace") for item in recorded))
    spans, sides = [], []
    for path in paths:
        kernels = [event for event in raw_events(path) if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
        ends = sorted((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])) for event in kernels)
        busy_ns, until = 0, ends[0][0]
        for start, end in ends:
            busy_ns += max(0, end - max(start, until))
            until = max(until, end)
        spans.append(until - ends[0][0])
        sides.append((len(kernels), busy_ns, spans[-1] - busy_ns, Counter(event["name"] for event in kernels)))
    for amounts, side, name in zip((result.whole.first, result.whole.other), sides, ("first", "other"), strict=True):
        assert tuple(amounts) == side[:3]
        items = [getattr(change, name) for change in result.changes]
        assert Counter(item.name for item in items if item) == side[3]
    assert sum(result.whole.parts.values()) == result.span_ns == spans[1] - spans[0]
    assert result.problems == ()
    step = summed(*(cut(item, "step") for item in recorded))
    assert step.problems == ()
    # Each layer has the same kernels on both, but for sets before matrix products and a fill before attention.
    assert [(item.count, item.first, item.other) for item in step.hunks if item.count > 1] == [
        (72, ("aten::addmm (memset)",), ()),
        (24, (), ("aten::fill_ (fill)",)),
        (72, ("aten::mm (memset)",), ()),
        (24, ("aten::mm (memset)",), ()),
    ]


def test_command(molprof: Cli, tmp_path: Path) -> None:
    for name, content in (("a", FIRST), ("b", OTHER)):
        write(tmp_path / f"{name}.json", content)
    shown = molprof("compare", "a.json", "b.json", "--by", "kernel")
    assert shown.returncode == 0, shown.stderr
    assert "matched and slower 1 +4.00 µs +12.5 %" in " ".join(shown.stdout.split())
    data = json.loads(molprof("compare", "a.json", "b.json", "--by", "kernel", "--format", "json").stdout)
    assert sum(data["difference"]["parts"].values()) == data["difference"]["span_ns"] == 6_000
    assert data["names"][data["sequence"][0]["other"]["name"]] == "Cijk_Ailk"
    rows = molprof("compare", "a.json", "b.json", "--by", "kernel", "--format", "csv").stdout.splitlines()
    assert len(rows) == 8
    molprof("compare", "a.json", "b.json", "--by", "kernel", "-o", "k.html", "--format", "html")
    page = (tmp_path / "k.html").read_text()
    assert 'id="sum-' in page
    assert page.index("aten::mm") < page.index("Side by side")
    assert page.count('<tr class="marked">') == 3


def test_what_cannot_be_compared(molprof: Cli, tmp_path: Path) -> None:
    write(tmp_path / "gpu.json", FIRST)
    write(tmp_path / "cpu.json", {"traceEvents": [slice_("cpu_op", "aten::mm", 0, 5)]})
    for arguments, code, text in (
        (("gpu.json", "cpu.json"), 3, "gpu.json records GPU work and cpu.json does not"),
        (("gpu.json", "gpu.json", "--of", "step"), 3, "no steps are marked in gpu.json"),
        (("gpu.json", "gpu.json", "cpu.json"), 2, "--by kernel compares two traces, and 3 are given"),
        (("gpu.json", "cpu.json", "--fail-if", "launches>1"), 2, "--by kernel takes no --fail-if"),
    ):
        result = molprof("compare", *arguments, "--by", "kernel")
        assert result.returncode == code
        assert text in result.stderr
    assert molprof("compare", "gpu.json", "gpu.json", "--of", "trace").returncode == 2
