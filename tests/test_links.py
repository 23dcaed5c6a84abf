"""Links of calls and GPU work equal the plain reference, on random input, on random and on recorded traces."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import numpy as np
import plain_links as plain
import pytest
from hypothesis import strategies as st
from plain_tables import ask
from test_facts import RUNS
from tiny_trace import report, slice_, work, write

from molprof.analysis.facts.gaps import NONE
from molprof.analysis.facts.gpu_slices import NO_NUMBER
from molprof.analysis.facts.links import LinkedCalls, link
from molprof.analysis.facts.tables import install
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common.errors import QueryError, TraceError

CASES = Path(__file__).parent / "cases"
RANKS = st.none() | st.integers(0, 2)
NUMBERS = st.none() | st.integers(1, 5) | st.sampled_from([-(2**63) + 1, 2**63 - 1])
CALLS = st.lists(
    st.builds(
        lambda rank, number, is_launch, process, ts, dur: plain.Call(rank, number, is_launch, process, ts, ts + dur),
        RANKS, NUMBERS, st.booleans(), st.none() | st.integers(0, 1), st.integers(0, 9), st.integers(0, 6),
    ),
    max_size=9,
)  # fmt: skip
WORK = st.lists(st.tuples(RANKS, NUMBERS), max_size=9)
few = hypothesis.settings(max_examples=100, deadline=None)


def column(values: list[int | None], absent: int) -> np.ndarray:
    return np.array([absent if value is None else value for value in values], dtype=np.int64)


@few
@hypothesis.given(CALLS, WORK)
def test_work_belongs_to_the_call_with_its_number(
    calls: list[plain.Call], work: list[tuple[int | None, int | None]]
) -> None:
    found = link(
        LinkedCalls(
            column([call.rank for call in calls], NONE), column([call.number for call in calls], NO_NUMBER),
            np.array([call.is_launch for call in calls], dtype=bool), column([call.process for call in calls], NONE),
            column([call.ts for call in calls], 0), column([call.end for call in calls], 0),
        ),
        column([rank for rank, _ in work], NONE),
        column([number for _, number in work], NO_NUMBER),
    )  # fmt: skip
    expected, has_work = plain.links(calls, work)
    assert found.call.tolist() == column(expected, NONE).tolist()
    assert found.has_work.tolist() == has_work
    shared = found.shared
    columns = (shared.rank, shared.number, shared.calls, shared.follow, shared.is_ambiguous)
    rows = [tuple(row) for row in zip(*(part.tolist() for part in columns), strict=True)]
    assert rows == sorted(
        (NONE if rank is None else rank, number, *one) for (rank, number), one in plain.shared(calls).items()
    )


CALL_NAMES = (
    ("cuda_runtime", "cudaLaunchKernel"), ("cuda_runtime", "cudaGraphLaunch"), ("cuda_runtime", "cudaMemcpyAsync"),
    ("cuda_runtime", "cudaMemcpy"), ("cuda_runtime", "cudaStreamSynchronize"), ("cuda_driver", "cuLaunchKernelEx"),
    ("cuda_runtime", "urEnqueueKernelLaunch"), ("cuda_driver", "zeCommandListAppendLaunchKernel"),
    ("cpu_op", "aten::mm"), ("cpu_op", "aten::copy_"), ("user_annotation", "ProfilerStep#1"),
)  # fmt: skip
WORK_NAMES = (
    ("kernel", "gemm"), ("kernel", "add"), ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)"),
    ("gpu_memset", "Memset (Device)"),
)  # fmt: skip
# Few numbers, so that several calls have one; 0 stands for none, and numbers may lack.
ARGS = st.sampled_from([{}, {"correlation": None}, *({"correlation": number} for number in (0, 1, 2, 3, 4, 4.0))])
PLACES = st.tuples(st.integers(0, 1), st.integers(100, 101), st.integers(0, 40), st.integers(0, 12))


@st.composite
def traces(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Calls and work of two processes, or ranks, with numbers that may be shared, or lack."""
    ranked = draw(st.booleans())
    events = []
    for (category, name), args, (process, tid, ts, dur) in draw(
        st.lists(st.tuples(st.sampled_from(CALL_NAMES), ARGS, PLACES), max_size=12)
    ):
        pid = f"rank{process}_100" if ranked else 100 + process
        events.append(slice_(category, name, ts, dur, pid, tid, **args))
    for (category, name), args, (device, stream, ts, dur) in draw(
        st.lists(st.tuples(st.sampled_from(WORK_NAMES), ARGS, PLACES), max_size=12)
    ):
        pid = f"rank{device}_0" if ranked else device
        events.append(slice_(category, name, ts, dur, pid, stream, device=device, stream=stream, **args))
    return events


@hypothesis.settings(max_examples=RUNS, deadline=None)
@hypothesis.given(traces())
def test_links_of_random_traces(events: list[dict[str, Any]]) -> None:
    """With the slices of the reader, and with those that another engine with the same trace is asked for."""
    with TemporaryDirectory() as folder, open_engine() as engine:
        load_trace(write(Path(folder, "random.json"), {"traceEvents": events}), engine, all_args=False)
        state = engine.state()
        install(engine)
        plain.check(engine)
        with open_engine(state=state) as other:
            install(other)
            plain.check(other)


def test_a_correlation_number_of_0_is_none(tmp_path: Path) -> None:
    """Kernels of which the profiler lost the number (ROCm/roctracer#100) were not launched before the recording."""
    found = report(tmp_path / "zero.json", json.loads((CASES / "zero.json").read_text()))
    assert (found.counts.launches_without_gpu_work, found.counts.kernels_without_call) == (2, 2)
    reasons = [doubt.reason for doubt in found.certificate.doubts]
    assert "2 kernels without correlation number" in reasons
    assert not any("before the recording" in reason for reason in reasons)


@pytest.mark.parametrize("all_args", [False, True])
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"correlation": "first"}, "kernel a has correlation number 'first'"),
        ({"correlation": 2**70}, f"kernel a has correlation number '{2**70}'"),
        ({"stream": "first"}, "kernel a has stream 'first'"),
        ({"stream": True}, "kernel a has stream 'true'"),
    ],
)
def test_text_in_place_of_a_number_is_refused(
    engine: TraceProcessor, tmp_path: Path, args: dict[str, Any], message: str, all_args: bool
) -> None:
    events = [work("kernel", "a", 0, 5, 1) | {"args": {"device": 0, **args}}]
    load_trace(write(tmp_path / "a.json", {"traceEvents": events}), engine, all_args=all_args)
    install(engine)
    for _ in range(2):
        with pytest.raises(QueryError, match=f"^{message}, where a number must stand$"):
            ask(engine, "SELECT * FROM molprof_gpu_work", "gpu_work")


@pytest.mark.parametrize("category", ["molprof.token", "molprof.sequence", "kernel"])
@pytest.mark.parametrize("all_args", [False, True])
def test_args_that_are_null(engine: TraceProcessor, tmp_path: Path, category: str, all_args: bool) -> None:
    """A block with an event of molprof's own tracks keeps the text of args."""
    events = [slice_(category, "a", 0, 5) | {"args": None}, slice_("molprof.token", "b", 7, 1, step=3)]
    load_trace(write(tmp_path / "a.json", {"traceEvents": events}), engine, all_args=all_args)
    assert ask(engine, "SELECT name, EXTRACT_ARG(arg_set_id, 'args.step') FROM slice ORDER BY ts") == [
        ("a", None), ("b", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("args", [[], 5, "x", True])
def test_args_of_a_token_that_are_no_object(engine: TraceProcessor, tmp_path: Path, args: Any) -> None:
    events = [slice_("molprof.token", "a", 0, 5) | {"args": args}]
    with pytest.raises(TraceError, match=r"wrong event 1: Expected `object \| null`"):
        load_trace(write(tmp_path / "a.json", {"traceEvents": events}), engine, all_args=False)
