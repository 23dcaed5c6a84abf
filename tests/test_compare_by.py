"""Two traces by kernel, operator, module, function and phase over all steps; checked by a plain recount."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from test_cli import called
from tiny_trace import slice_, work, write

from molprof import api
from molprof.analysis.compare.kernels.by import BySteps

TRACES = Path(__file__).parent.parent / "traces"
STEPS = 12


def program(
    path: Path, mask_us: int = 10, masks: int = 1, jitter_us: int = 0, stacks: bool = True, sleep: int = 0
) -> Path:
    """Steps of a model and a mask, of 100 us and more: mm of 40 us in Linear, and `masks` where in mask()."""
    events: list[dict[str, Any]] = []
    start = 1000
    for number in range(STEPS):
        late = jitter_us * (number % 3)
        times = [("aten::mm", start + 10, 40 + late)]
        times += [("aten::where", start + 60 + late + number_ * (mask_us + 2), mask_us) for number_ in range(masks)]
        end = times[-1][1] + mask_us + 5 + sleep
        if stacks:
            events += [
                slice_("python_function", "run.py(1): step", start + 1, end - start - 1),
                slice_("python_function", "nn.Module: Linear_0", start + 8, 44 + late),
                slice_("python_function", "run.py(9): mask", start + 58 + late, end - start - 58 - late),
            ]
        events += [slice_("cpu_op", name, ts, dur) for name, ts, dur in times]
        events.append(slice_("user_annotation", f"ProfilerStep#{number}", start, end - start + 2))
        start = end + 20
    return write(path, {"traceEvents": events})


def compared(first: Path, other: Path, by: str) -> BySteps:
    (found, *_) = api.compare_kernels([first, other], by=by).steps
    assert not found.problems
    return found


def plainly(path: Path) -> tuple[list[int], dict[str, list[int]], dict[str, list[int]]]:
    """Of a trace of one thread without GPU work: each step's time, own times by operator, and calls; ns."""
    raw = path.read_bytes()
    events = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)["traceEvents"]
    some = [event for event in events if event.get("ph") == "X"]
    mine = [event for event in some if event.get("cat") == "cpu_op"]
    # Of nested annotations the engine's steps are the captured run's; else the profiler's.
    steps = [event for event in some if event["name"].startswith("molprof.step ")]
    steps = steps or [event for event in some if event["name"].startswith("ProfilerStep#")]
    (thread,) = {(event["pid"], event["tid"]) for event in steps}

    def ns(us: Any) -> int:
        return round(float(us) * 1000)

    operators = [(ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]), event["name"]) for event in mine
                 if (event["pid"], event["tid"]) == thread]  # fmt: skip
    operators.sort(key=lambda item: (item[0], -item[1]))
    spans: list[int] = []
    times: dict[str, list[int]] = defaultdict(lambda: [0] * len(steps))
    calls: dict[str, list[int]] = defaultdict(lambda: [0] * len(steps))
    for place, step in enumerate(sorted(steps, key=lambda event: float(event["ts"]))):
        begin, end = ns(step["ts"]), ns(step["ts"]) + ns(step["dur"])
        spans.append(end - begin)
        own: Counter[int] = Counter()
        stack: list[int] = []
        for index, (ts, stop, _) in enumerate(operators):
            if not begin <= ts < end:
                continue
            while stack and operators[stack[-1]][1] <= ts:
                stack.pop()
            own[index] += stop - ts
            if stack:
                own[stack[-1]] -= stop - ts
            stack.append(index)
        for index, time_ns in own.items():
            times[operators[index][2]][place] += time_ns
            calls[operators[index][2]][place] += 1
    return spans, times, calls


@pytest.mark.parametrize("name", ["made", "cpu-qwen", "cpu-llama-generic"])
def test_rows_are_those_of_a_plain_recount(tmp_path: Path, name: str) -> None:
    path = program(tmp_path / "a.json", masks=3, jitter_us=4) if name == "made" else TRACES / f"{name}.json.gz"
    found = compared(path, path, "operator")
    spans, times, calls = plainly(path)
    rows = {row.name: row for row in found.rows}
    count = found.steps[0]
    # Steps of another kind, such as the prefill, are not among them.
    assert count in (len(spans), len(spans) - 1)
    first = len(spans) - count
    assert found.whole.first.median_ns == pytest.approx(statistics.median(spans[first:]), abs=2)
    for operator, each in times.items():
        row = rows[operator].first
        assert row.median_ns == pytest.approx(statistics.median(each[first:]), abs=60)  # times are rounded to ns
        assert row.count == pytest.approx(statistics.fmean(calls[operator][first:]))
    assert sum(row.first.times.total for row in found.rows) == found.whole.first.times.total


@pytest.mark.parametrize("by", ["kernel", "operator", "module", "source"])
def test_two_recordings_of_a_program_have_no_cause(tmp_path: Path, by: str) -> None:
    """At any speed of the machine: the same work in another time is shown, and no cause."""
    first, again = program(tmp_path / "a.json"), program(tmp_path / "b.json", jitter_us=2)
    slower = program(tmp_path / "c.json", mask_us=30)
    for other in (first, again, slower):
        found = compared(first, other, by)
        assert found.unlike == ()
        document = called(["compare", str(first), str(other), "--by", by], tmp_path)
        assert document[0] == 0
        assert "other work" not in " ".join(document[1].split())
    assert any(row.change_ns == 20_000 for row in compared(first, slower, by).slower)


@pytest.mark.parametrize(
    ("by", "name", "count"),
    [("kernel", "aten::where", 5), ("operator", "aten::where", 5), ("module", "(no module)", 5),
     ("source", "run.py(9): mask", 5)],
)  # fmt: skip
def test_more_work_is_the_cause(tmp_path: Path, by: str, name: str, count: int) -> None:
    first, other = program(tmp_path / "a.json", jitter_us=1), program(tmp_path / "b.json", masks=5, jitter_us=1)
    found = compared(first, other, by)
    (row,) = [row for row in found.unlike if row.name == name]
    assert (row.first.count, row.other.count) == (1, count)
    wanted = 4 * 10_000 if by in ("kernel", "operator") else 4 * 12_000
    assert row.change_ns == wanted
    back = compared(other, first, by)
    assert [row.change_ns for row in back.unlike if row.name == name] == [-wanted]
    _, text, _ = called(["compare", str(first), str(other), "--by", by], tmp_path)
    said = " ".join(text.split())
    assert "b takes more for other work: " in said
    assert f"({count} instead of 1)" in said


def test_python_without_operators_counts(tmp_path: Path) -> None:
    """Time that a function takes beside operators is its own, and noise is known from the steps."""
    first, other = program(tmp_path / "a.json", jitter_us=3), program(tmp_path / "b.json", sleep=500, jitter_us=3)
    found = compared(first, other, "source")
    rows = {row.name: row for row in found.rows}
    assert rows["run.py(9): mask"].change_ns == 500_000
    assert not rows["run.py(9): mask"].within_noise
    assert rows["run.py(1): step"].within_noise
    assert found.unlike == ()


def test_a_difference_in_the_spread_is_noise(tmp_path: Path) -> None:
    first, other = program(tmp_path / "a.json", jitter_us=9), program(tmp_path / "b.json", jitter_us=10)
    found = compared(first, other, "operator")
    (row,) = [row for row in found.rows if row.name == "aten::mm"]
    assert (row.change_ns, row.noise_ns, row.within_noise) == (1_000, 18_000 - 9_000 + 10_000, True)
    code, text, _ = called(["compare", str(first), str(other), "--by", "operator"], tmp_path)
    assert code == 0
    assert "within the noise" in " ".join(text.split())


@pytest.mark.parametrize("by", ["module", "source"])
def test_traces_without_stacks_say_so_in_one_line(tmp_path: Path, by: str) -> None:
    first, other = program(tmp_path / "a.json", stacks=False), program(tmp_path / "b.json", stacks=False)
    code, _, err = called(["compare", str(first), str(other), "--by", by], tmp_path)
    assert code == 3
    assert f"record no {'modules' if by == 'module' else 'Python functions'}" in err
    assert "molprof run --stacks" in err
    assert called(["compare", str(first), str(other), "--by", "phase"], tmp_path)[0] == 3


def test_gpu_steps_add_up_by_module_and_kernel(tmp_path: Path) -> None:
    """Work of a GPU and the gaps before it; what the host was in meanwhile has the gaps."""

    def steps(path: Path, copies: int) -> Path:
        events = []
        for number in range(4):
            start = 1000 + 1000 * number
            names = ["mm", *["copy"] * copies]
            events += [
                slice_("user_annotation", f"ProfilerStep#{number}", start, 900),
                slice_("python_function", "run.py(1): step", start + 5, 800),
            ]
            for place, name in enumerate(names):
                link = 10 * number + place + 1
                events.append(slice_("cuda_runtime", "cudaLaunchKernel", start + 20 + 50 * place, 5, correlation=link))
                events.append(work("kernel", name, start + 40 + 50 * place, 30, link))
        return write(path, {"traceEvents": events})

    first, other = steps(tmp_path / "a.json", 1), steps(tmp_path / "b.json", 3)
    found = compared(first, other, "kernel")
    (row,) = [row for row in found.unlike if row.name == "copy"]
    assert (row.first.count, row.other.count, row.change_ns) == (1, 3, 60_000)
    item = compared(first, other, "source")
    assert sum(row.other.times.total for row in item.rows) == item.whole.other.times.total
