"""Facts about intervals equal the plain reference: on small random input, on random and on recorded traces."""

from __future__ import annotations

import os
import re
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import numpy as np
import plain_facts as plain
import plain_links
import pytest
from hypothesis import strategies as st
from plain_tables import ask, check
from tiny_trace import slice_, work, write

from molprof import api
from molprof.analysis.facts import chains, coverage, gaps
from molprof.analysis.facts.intervals import Coverage, ends_before, on_one_line, overlaps
from molprof.analysis.facts.nesting import Nesting
from molprof.analysis.facts.tables import install
from molprof.analysis.reader import Reading
from molprof.analysis.reader.load import load_trace
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common.errors import QueryError

ROOT = Path(__file__).parent.parent
CORPUS = os.environ.get("MOLPROF_CORPUS")
FOLDERS = ("traces", "more", "native", "ranks", "graphs", "pairs", "engines", "cases")
TRACES = [
    *ROOT.glob("traces/h100-*a*-[gs]*.json.gz"),
    *ROOT.glob("traces/cpu-*-grammar.json.gz"),
    *ROOT.glob("tests/goldens/given/[gr]*.json*"),
    *(path for folder in FOLDERS if CORPUS for path in Path(CORPUS, folder).glob("*.*")),
]
TRACES = sorted(
    path for path in TRACES if re.search(r"(?<!answers)(?<!expected)(\.json|\.json\.gz|\.pftrace)$", path.name)
)
RUNS = int(os.environ.get("MOLPROF_FUZZ_RUNS", "10"))  # of whole traces
few = hypothesis.settings(max_examples=100, deadline=None)
QUEUES = ("not recorded", "queued", "nothing", "late")
MOMENTS = st.integers(0, 24)
INTERVAL = st.tuples(st.integers(0, 2), MOMENTS, st.integers(0, 8)).map(lambda one: (one[0], one[1], one[1] + one[2]))
INTERVALS = st.lists(INTERVAL, max_size=16)
# So much longer times, and larger keys, are beyond one line of 64 bits.
SCALES = st.sampled_from([1, 2**57])
Keyed = tuple[int, int, int]  # key, start, end


def columns(rows: list[tuple[int, ...]], width: int = 3) -> list[np.ndarray]:
    return list(np.array(rows, dtype=np.int64).reshape(-1, width).T)


def scaled(rows: list[Keyed], scale: int) -> list[Keyed]:
    return [(key, start * scale, end * scale) for key, start, end in rows]


@few
@hypothesis.given(INTERVALS, INTERVALS, st.sampled_from([1, 2**40, 2**57]))
def test_keys_on_one_line_keep_order_and_equality(some: list[Keyed], more: list[Keyed], scale: int) -> None:
    (keys, times, _), (other_keys, other_times, _) = columns(some), columns(more)
    lines = on_one_line([keys, other_keys], [times * scale - 3, other_times * scale - 3])
    assert [len(line) for line in lines] == [len(some), len(more)]
    moved = list(zip([row[:2] for row in some + more], np.concatenate(lines).tolist(), strict=True))
    for (place, line), (other_place, other) in combinations(moved, 2):
        assert (place < other_place, place == other_place) == (line < other, line == other)
        if scale == 1 and place[0] == other_place[0]:
            assert other - line == other_place[1] - place[1]


@few
@hypothesis.given(INTERVALS, SCALES)
def test_ends_before(rows: list[Keyed], scale: int) -> None:
    rows = sorted(scaled(rows, scale), key=lambda row: row[:2])
    expected = []
    for place, (key, *_) in enumerate(rows):
        before = [other for other in range(place) if rows[other][0] == key]
        expected.append(max(before, key=lambda other: (rows[other][2], -other), default=-1))
    assert ends_before(*columns(rows)).tolist() == expected


@few
@hypothesis.given(INTERVALS, INTERVALS, SCALES)
def test_overlaps(some: list[Keyed], more: list[Keyed], scale: int) -> None:
    some, more = scaled(some, scale), scaled(more, scale)
    found = overlaps(tuple(columns(some)), tuple(columns(more)))  # type: ignore[arg-type]
    assert sorted(zip(*(part.tolist() for part in found), strict=True)) == [
        (one, other)
        for one, (key, start, end) in enumerate(some)
        for other, (other_key, other_start, other_end) in enumerate(more)
        if key == other_key and max(start, other_start) < min(end, other_end)
    ]


@few
@hypothesis.given(INTERVALS, INTERVALS, SCALES)
def test_coverage(rows: list[Keyed], windows: list[Keyed], scale: int) -> None:
    rows, windows = scaled(rows, scale), scaled(windows, scale)
    covered = Coverage(*columns(rows))
    merged = {key: plain.union(row[1:] for row in rows if row[0] == key) for key in range(3)}
    assert list(zip(covered.keys.tolist(), covered.starts.tolist(), covered.ends.tolist(), strict=True)) == [
        (key, *interval) for key in range(3) for interval in merged[key]
    ]
    assert covered.length_ns == sum(map(plain.length, merged.values()))
    parts = [plain.common(merged[key], start, end) for key, start, end in windows]
    assert covered.covered(*columns(windows)).tolist() == list(map(plain.length, parts))
    # A window of no length has no part that is covered, but its moment may be.
    inside = [any(start <= ts < end for start, end in merged[key]) for key, ts, _ in windows]
    assert covered.first(*columns(windows)).tolist() == [
        window[1] if is_in else part[0][0] if part else window[2]
        for window, part, is_in in zip(windows, parts, inside, strict=True)
    ]


@few
@hypothesis.given(INTERVALS)
def test_time_between_all(rows: list[Keyed]) -> None:
    _, starts, ends = columns(sorted(rows, key=lambda row: row[1:]))
    found = gaps.between_all(starts, ends, 0, 40)
    assert list(zip(*(part.tolist() for part in found), strict=True)) == plain.between_all(
        [row[1:] for row in rows], 0, 40
    )


@few
@hypothesis.given(INTERVALS)
def test_segments_are_of_the_innermost_slice(rows: list[Keyed]) -> None:
    threads, starts, ends = columns(rows)
    nest = Nesting(threads, starts, ends, np.zeros(len(rows), dtype=np.int64))
    slices = zip(nest.threads.tolist(), nest.starts.tolist(), nest.ends.tolist(), strict=True)
    expected = plain.innermost(plain.Lane(place, 0, *slice_) for place, slice_ in enumerate(slices))
    found = zip(*(part.tolist() for part in nest.segments), strict=True)
    assert list(found) == sorted((lane.tid, lane.ts, lane.end, lane.id) for lane in expected)


@st.composite
def gpu_work(draw: st.DrawFn) -> list[plain.Piece]:
    """Work on several devices and streams, started by calls of several threads; some calls are missing."""
    scale = draw(st.sampled_from([1, 1_500, 30_000, 200_000]))
    times = st.tuples(MOMENTS, st.integers(0, 8)).map(lambda one: (one[0] * scale, (one[0] + one[1]) * scale))
    calls = [
        plain.Call(number, *interval, thread)
        for number, (interval, thread) in enumerate(draw(st.lists(st.tuples(times, st.integers(0, 2)), max_size=6)))
    ]
    rows = st.tuples(
        st.integers(0, 1), st.sampled_from([None, 3, 7]), times, st.sampled_from([None, *calls]), st.integers(0, 3)
    )
    return [
        plain.Piece(number, device, stream, *interval, call, name)
        for number, (device, stream, interval, call, name) in enumerate(draw(st.lists(rows, max_size=16)))
    ]


def ordered(work: list[plain.Piece]) -> list[plain.Piece]:
    """The work in the order of `gaps.Work`."""
    return sorted(work, key=lambda piece: (piece.device, piece.ts, piece.id))


def calls_of(work: list[plain.Piece]) -> list[plain.Call]:
    return sorted({piece.call for piece in work if piece.call})


def arrays(work: list[plain.Piece]) -> gaps.GpuWork:
    index = {call: number for number, call in enumerate(calls_of(work))}
    rows = [
        (
            piece.id, piece.device, gaps.NO_STREAM if piece.stream is None else piece.stream, piece.ts, piece.end,
            index[piece.call] if piece.call else gaps.NONE, piece.call.ts if piece.call else piece.ts,
            piece.call.end if piece.call else piece.ts,
        )
        for piece in ordered(work)
    ]  # fmt: skip
    return gaps.GpuWork(*columns(rows, 8))


@few
@hypothesis.given(gpu_work())
def test_gaps_of_devices(work: list[plain.Piece]) -> None:
    pieces = ordered(work)
    found = gaps.device_gaps(arrays(work))
    rows = zip(found.last.tolist(), found.next.tolist(), found.queue.tolist(), strict=True)
    expected = plain.device_gaps(work)
    assert [plain.Gap(pieces[last], pieces[next_], QUEUES[queue]) for last, next_, queue in rows] == expected
    assert found.ts.tolist() == [gap.last.end for gap in expected]
    assert found.ts_end.tolist() == [gap.next.ts for gap in expected]
    span, idle, count = (part.tolist() for part in gaps.busy_time(arrays(work), found, 2))
    for device in range(2):
        mine = [piece for piece in work if piece.device == device]
        busy = plain.length(plain.union(piece[3:5] for piece in mine))
        whole = max(piece.end for piece in mine) - min(piece.ts for piece in mine) if mine else 0
        assert (span[device], idle[device], count[device]) == (whole, whole - busy, len(mine))


HOST = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), MOMENTS, st.integers(0, 8)), max_size=12)


@few
@hypothesis.given(gpu_work(), HOST, st.integers(0, 3), st.integers(0, 3))
def test_idle_time_and_what_it_went_to(
    work: list[plain.Piece], did: list[tuple[int, int, int, int]], early: int, late: int
) -> None:
    """did: thread, kind (index in CAUSES_OF_HOST), start and length, in the unit of the work's times."""
    unit = max([piece.end - piece.ts for piece in work] + [1])
    intervals = [(thread, kind, ts * unit // 4, (ts + dur) * unit // 4) for thread, kind, ts, dur in did]
    layers = [[(one[0], *one[2:]) for one in intervals if one[1] <= kind] for kind in reversed(range(6))]
    did_when = gaps.HostTime(*(Coverage(*columns(layer)) for layer in layers))
    host = {
        thread: tuple(plain.union(one[2:] for one in intervals if one[:2] == (thread, kind)) for kind in range(6))
        for thread in range(3)
    }
    span = min((piece.ts for piece in work), default=0) - early * unit, 60 * unit + late
    pieces, array = ordered(work), arrays(work)
    bounds = np.full(len(work), span[0]), np.full(len(work), span[1])
    found = gaps.idle_time(array, gaps.device_gaps(array), bounds)
    threads = np.array([call.thread for call in calls_of(work)], dtype=np.int64)

    expected = plain.idle_time(work, {None: span})
    assert idle_rows(found, pieces, calls_of(work)) == [tuple(one) for one in expected]
    assert found.is_long.tolist() == [one.position != "between" or one.end - one.ts > 1_000_000 for one in expected]
    windows = gaps.host_windows(found, threads)
    waited = gaps.waited_for(found, windows, did_when, threads)
    until = gaps.until_own(windows, waited)
    assert window_rows(until) == sorted(
        (number, *wait) for number, one in enumerate(expected) for wait in plain.waits(one, host)
    )
    parts = gaps.idle_parts(array, found, windows, waited, did_when)
    divided = plain.idle_parts(expected, work, host)
    assert part_rows(parts, len(expected)) == divided
    assert [sum(part.values()) for part in divided] == (found.ts_end - found.ts).tolist()
    largest = gaps.largest_part(parts, len(expected)).tolist()
    assert [gaps.CAUSES[cause] for cause in largest] == list(map(plain.largest_part, divided))


def idle_rows(found: gaps.Idle, pieces: list[plain.Piece], calls: list[plain.Call]) -> list[tuple[Any, ...]]:
    """The idle time as `plain.Idle` has it, devices as numbers."""
    names = ("device", "position", "ts", "ts_end", "next", "queue", "host_end", "call", "before")
    known = [*calls, None]  # the last is that of NONE
    return [
        (
            device,
            gaps.POSITIONS[position],
            ts,
            end,
            [*pieces, None][next_],
            QUEUES[queue],
            host,
            known[call],
            known[was],
        )
        for device, position, ts, end, next_, queue, host, call, was in zip(
            *(getattr(found, name).tolist() for name in names), strict=True
        )
    ]


def window_rows(windows: gaps.Windows) -> list[tuple[int, ...]]:
    return sorted(zip(*(getattr(windows, name).tolist() for name in ("idle", "track", "ts", "ts_end")), strict=True))


def part_rows(parts: gaps.Parts, size: int) -> list[dict[str, int]]:
    found: list[dict[str, int]] = [{} for _ in range(size)]
    for number, cause, time_ns in zip(parts.idle.tolist(), parts.cause.tolist(), parts.time_ns.tolist(), strict=True):
        assert gaps.CAUSES[cause] not in found[number]
        found[number][gaps.CAUSES[cause]] = time_ns
    return found


@few
@hypothesis.given(gpu_work())
def test_exposed_and_shared_time(work: list[plain.Piece]) -> None:
    array, names = arrays(work), np.array([piece.name for piece in ordered(work)], dtype=np.int64)
    found = coverage.exposure(array, names, 4)
    expected = plain.exposure(work, lambda piece: piece.name)
    assert list(zip(found.busy.tolist(), found.exposed.tolist(), strict=True)) == [
        expected.get(name, (0, 0)) for name in range(4)
    ]
    shared = coverage.shared_time(array, names, 4)
    pairs = {(one, other): int(shared[one, other]) for one, other in zip(*np.nonzero(shared), strict=True)}
    assert pairs == plain.shared_time(work, lambda piece: piece.name)
    for name, (busy_ns, exposed_ns) in expected.items():
        # Of two names, what is hidden is shared with the one other.
        assert busy_ns - exposed_ns <= sum(time_ns for pair, time_ns in pairs.items() if pair[0] == name)


@few
@hypothesis.given(gpu_work(), st.integers(0, 3))
def test_work_that_runs_alone(work: list[plain.Piece], name: int) -> None:
    array, chosen = arrays(work), np.array([piece.name == name for piece in ordered(work)], dtype=bool)
    overlaps = coverage.overlapping(array)
    of_device = [[other for other in work if other.device == piece.device] for piece in ordered(work)]
    for piece, others, is_marked in zip(ordered(work), of_device, overlaps.tolist(), strict=True):
        inside = [
            other for other in others if other is not piece and min(piece.end, other.end) > max(piece.ts, other.ts)
        ]
        assert is_marked or not inside
    expected = plain.exposure(work, lambda piece: piece.name == name)
    assert coverage.alone_ns(array, chosen, overlaps) == expected.get(True, (0, 0))[1]


def test_more_keys_than_pairs_can_be_told_of() -> None:
    with pytest.raises(ValueError, match="63 keys"):
        coverage.shared_time(arrays([]), np.empty(0, dtype=np.int64), 63)


FORMS = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=4)),
    max_size=4,
)


@few
@hypothesis.given(gpu_work(), FORMS)
def test_chains(work: list[plain.Piece], forms: list[plain.Form]) -> None:
    names = np.array([piece.name for piece in ordered(work)], dtype=np.int64)
    # Forms are made of names that occur.
    forms = [(chain, [place & set(names.tolist()) for place in places]) for chain, places in forms]
    forms = [form for form in forms if all(form[1])]
    known = [chains.Form(chain, tuple(map(frozenset, places))) for chain, places in forms]
    found = chains.find_chains(arrays(work), names, known)
    first = [ordered(work)[place] for place in found.first.tolist()]
    expected = plain.find_chains(work, forms)
    assert list(zip(found.chain, first, found.kernels.tolist(), strict=True)) == [
        (chain, pieces[0], len(pieces)) for chain, pieces in expected
    ]
    times = [[piece.end - piece.ts for piece in pieces] for _, pieces in expected]
    assert found.time_ns.tolist() == list(map(sum, times))
    assert found.longest_ns.tolist() == list(map(max, times))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}")
def test_facts_of_recorded_traces(path: Path) -> None:
    with open_trace(path, all_args=False, stacks=False, partial=True) as (engine, _):
        check(engine)
        plain_links.check(engine)


@pytest.mark.parametrize("name", ["h100-llama", "h100-qwen-static-generic.graphs"])
def test_a_second_thread_computes_the_same_facts(name: str) -> None:
    path = ROOT / f"traces/{name}.json.gz"
    one, two = (api.report(path, Reading(cached=False, processes=processes)) for processes in (1, 2))
    assert one == two


KERNELS = ("gemm", "nccl_AllReduce", "vllm::rotary_embedding_kernel<f>", "vllm::reshape_and_cache_flash_kernel<f>")
CALLS = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaStreamSynchronize", "cudaMemcpyAsync")
MARKS = ("step batch=0 step=", "forward batch=0 step=", "mask_fill batch=0 step=", "sampling batch=0 step=")
TIMES = st.tuples(st.integers(0, 24), st.integers(0, 8))
THREADS = st.integers(100, 101)


@st.composite
def traces(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Operators, calls and annotations of two threads, which partly overlap; work of two devices. Or of two ranks."""
    scale, ranked = draw(st.sampled_from([1, 7, 60, 400])), draw(st.booleans())
    events = []
    marked: list[tuple[int, int, int]] = []
    for number, (kind, tid, (ts, dur)) in enumerate(
        draw(st.lists(st.tuples(st.integers(0, 9), THREADS, TIMES), max_size=14))
    ):
        category, name, args = "cpu_op", f"aten::op{kind}", {}
        if kind < 4:
            category, name, args = "cuda_runtime", CALLS[kind], {"correlation": number}
        elif kind < 8:
            category, name = "user_annotation", f"molprof.{MARKS[kind - 4]}{number}"
            if any(other == tid and (ts < begin < ts + dur < end or begin < ts < end < ts + dur)
                   for other, begin, end in marked):  # fmt: skip
                continue  # annotations of a thread are nested
            marked.append((tid, ts, ts + dur))
        pid = f"rank{tid - 100}_100" if ranked else 100
        events.append(slice_(category, name, ts * scale, dur * scale, pid, tid, **args))
    rows = st.tuples(st.sampled_from(KERNELS), st.integers(0, 1), st.sampled_from([7, 9]), TIMES, st.integers(0, 15))
    for name, device, stream, (ts, dur), number in draw(st.lists(rows, max_size=14)):
        event = work("kernel", name, ts * scale, dur * scale, number, stream)
        pid = f"rank{device}_0" if ranked else device
        events.append(event | {"pid": pid, "args": event["args"] | {"device": device}})
    return events


@hypothesis.settings(max_examples=RUNS, deadline=None)
@hypothesis.given(traces())
def test_facts_of_random_traces(events: list[dict[str, Any]]) -> None:
    """With the slices of the reader, and with those that another engine with the same trace is asked for."""
    with TemporaryDirectory() as folder, open_engine() as engine:
        load_trace(write(Path(folder, "random.json"), {"traceEvents": events}), engine, all_args=False)
        state, is_fed = engine.state(), engine.fed is not None
        install(engine)
        check(engine)
        with open_engine(state=state) as other:
            assert (is_fed, other.fed) == (True, None)
            install(other)
            check(other)


@pytest.mark.parametrize(
    "sql",
    [
        "INCLUDE PERFETTO MODULE molprof.devices; SELECT busy_ns FROM molprof_device",
        "include  perfetto\n\tmodule molprof.devices;SELECT busy_ns FROM molprof_device",
        "SELECT 1; Include Perfetto Module  molprof.exposed;\nSELECT busy_ns FROM molprof_device",
        "INCLUDE PERFETTO MODULE molprof.*; SELECT busy_ns FROM molprof_device",
        "INCLUDE PERFETTO MODULE *; SELECT busy_ns FROM molprof_device",
        "SELECT busy_ns FROM _molprof_fact_device",
    ],
)
def test_facts_are_there_however_sql_includes_them(engine: TraceProcessor, tmp_path: Path, sql: str) -> None:
    events = [work("kernel", "a", 0, 5, 1), work("kernel", "b", 10, 20, 2)]
    load_trace(write(tmp_path / "a.json", {"traceEvents": events}), engine)
    install(engine)
    for _ in range(2):
        assert ask(engine, sql) == [(25000,)]


def test_why_facts_cannot_be_made_is_told_again(engine: TraceProcessor, tmp_path: Path) -> None:
    events = [work("kernel", "a", 0, 5, 1) | {"args": {"device": 0, "stream": "first"}}]
    load_trace(write(tmp_path / "a.json", {"traceEvents": events}), engine)
    install(engine)
    for _ in range(2):
        with pytest.raises(QueryError, match="kernel a has stream 'first'"):
            ask(engine, "SELECT * FROM molprof_stream", "streams")
