"""Facts about steps equal the plain reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_trace
from hypothesis import given
from hypothesis import strategies as st
from tiny_trace import slice_, work

from molprof import api
from molprof.analysis.facts.steps import StepMarks, are_prefills, steps_of, up_to_next, whole_steps

Spans = list[tuple[int, int, int, int]]  # rank, thread, start, length
spans = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=12)


def marks_of(rows: Spans) -> StepMarks:
    rank, thread, ts, dur = (np.array([row[place] for row in rows], dtype=np.int64) for place in range(4))
    return StepMarks(np.arange(len(rows)), rank, np.zeros(len(rows), dtype=bool), thread, ts, ts + dur)


@given(spans)
def test_steps_are_the_outermost_marks_of_the_lowest_rank(rows: Spans) -> None:
    ordered = sorted(rows, key=lambda row: (row[2], -row[3]))
    best = [row for row in ordered if row[0] == min(row[0] for row in ordered)]
    expected = []
    for place, (_, thread, ts, dur) in enumerate(best):
        ends = [start + length for _, other, start, length in best[:place] if other == thread]
        if all(end < ts + dur for end in ends):
            expected.append((thread, ts, ts + dur))
    found = steps_of(marks_of(ordered))
    assert list(zip(found.thread.tolist(), found.ts.tolist(), found.ts_end.tolist(), strict=True)) == sorted(expected)


@given(spans, spans, spans)
def test_steps_of_engines_go_from_schedule_to_schedule(steps: Spans, schedules: Spans, phases: Spans) -> None:
    mine = steps_of(marks_of(sorted((1, *row[1:]) for row in steps)))
    other, every = marks_of(sorted(schedules)), marks_of(sorted(phases))
    marked = [(int(t), int(at), 0, int(n)) for t, at, n in zip(other.thread, other.ts, other.id, strict=True)]
    marked += [(int(t), int(at), 1, int(n)) for t, at, n in zip(mine.thread, mine.ts, mine.id, strict=True)]
    marked.sort()
    expected = {}
    for place, (thread, ts, is_step, number) in enumerate(marked):
        if not is_step:
            continue
        has_schedule = place > 0 and marked[place - 1][0] == thread and not marked[place - 1][2]
        start = marked[place - 1][1] if has_schedule else ts
        if place + 1 < len(marked) and marked[place + 1][0] == thread:
            end = marked[place + 1][1]
        else:
            later = zip(every.thread, every.ts, every.ts_end, strict=True)
            own = int(mine.ts_end[mine.id.tolist().index(number)])
            end = max([own, *(int(until) for t, begin, until in later if t == thread and begin >= start)])
        expected[number] = (start, end, has_schedule)
    found = zip(*(column.tolist() for column in whole_steps(mine, other, every)), strict=True)
    assert dict(zip(mine.id.tolist(), found, strict=True)) == expected


@given(spans)
def test_a_step_ends_where_the_next_of_its_lane_starts(rows: Spans) -> None:
    marks = marks_of(sorted(rows))
    found = up_to_next(marks.thread, marks.ts, marks.ts_end, marks.id)
    order = sorted(range(len(rows)), key=lambda n: (marks.thread[n], marks.ts[n], marks.ts_end[n], n))
    for place, number in enumerate(order):
        following = [n for n in order[place + 1 : place + 2] if marks.thread[n] == marks.thread[number]]
        expected = min([marks.ts_end[number], *(marks.ts[n] for n in following)])
        assert found[number] == expected


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([84, 17, 16, 16], [True, False, False, False]),
        ([16, 84, 17, 90], [False, True, False, True]),
        ([20, 17, 16, 16], None),
        ([40], None),
        ([0, 0], None),
        ([0, 8, 16], [False, False, True]),
    ],
)
def test_prefills_by_length(lengths: list[int], expected: list[bool] | None) -> None:
    found = are_prefills(np.array(lengths))
    assert (None if found is None else found.tolist()) == expected


FRAME = "vllm/v1/worker/gpu_model_runner.py(1002): execute_model"


def frames(*lengths: int, name: str = FRAME, gpu_us: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Functions 1,000 us apart, each with a launch and its kernel."""
    events = []
    for number, length in enumerate(lengths):
        start = 1000 * number
        events.append(slice_("python_function", name, start, length))
        if gpu_us:
            events.append(slice_("cuda_runtime", "cudaLaunchKernel", start + 5, 2, correlation=number + 1))
            events.append(work("kernel", "gemm", start + 10, gpu_us[number], number + 1))
    return events


def steps(tmp_path: Path, events: list[dict[str, Any]], columns: str) -> list[tuple[Any, ...]]:
    with api.load(tiny_trace.write(tmp_path / "a.json", {"traceEvents": events})) as trace:
        sql = f"INCLUDE PERFETTO MODULE molprof.steps; SELECT {columns} FROM molprof_any_step"
        return [tuple(row) for row in trace.sql(sql).rows()]


def test_functions_of_engines_are_steps(tmp_path: Path) -> None:
    # The kind goes by GPU time: a stall of the host makes no prefill of a decode step.
    events = frames(900, 500, 950, 500, gpu_us=(800, 100, 110, 100))
    # Called with nothing to run, and inside another one.
    events += [slice_("python_function", FRAME, 4000, 20), slice_("python_function", FRAME, 1100, 50)]
    found = steps(tmp_path, events, "ts / 1000, dur / 1000, source, kind, kind_is_inferred, is_whole")
    assert found == [
        (0, 1000, "vllm", "prefill", 1, 0),
        (1000, 1000, "vllm", "decode", 1, 0),
        (2000, 1000, "vllm", "decode", 1, 0),
        (3000, 500, "vllm", "decode", 1, 0),
    ]


def test_annotations_of_engines_go_before_functions(tmp_path: Path) -> None:
    events = frames(900, 500, gpu_us=(800, 100))
    events.append(slice_("user_annotation", "execute_context_0(0)_generation_4(4)", 1001, 400))
    assert steps(tmp_path, events, "source, kind, kind_is_inferred") == [("vllm", "decode", 0)]


def test_functions_of_engines_go_before_the_profilers_steps(tmp_path: Path) -> None:
    events = [*frames(900, 500, gpu_us=(800, 100)), slice_("user_annotation", "ProfilerStep#1", 0, 5000)]
    assert [row[0] for row in steps(tmp_path, events, "source")] == ["vllm", "vllm"]


def test_of_nested_functions_of_one_engine_the_outer_kind_counts(tmp_path: Path) -> None:
    events = frames(900, 500, name="sglang/srt/managers/scheduler.py(9): run_batch", gpu_us=(800, 100))
    for event in frames(700, 300, name="sglang/srt/model_executor/model_runner.py(7): forward"):
        events.append({**event, "ts": event["ts"] + 50, "tid": 101})
    assert steps(tmp_path, events, "source, kind") == [("sglang", "prefill"), ("sglang", "decode")]
