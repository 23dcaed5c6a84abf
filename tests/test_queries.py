"""The SQL package: cases in `sql/*.txt`, sums on real traces, and rules for every module.

A case is a title, events, and queries with the rows that they give. `python tests/test_queries.py` writes them.

    # A kernel and its call
    runtime cudaLaunchKernel 0 2 #1            category, name, start and duration in us, correlation
    kernel "void gemm()" 5 20 #1 @0/7 bytes=4  process and thread (device and stream of GPU work); args
    ? SELECT name, dur FROM molprof_gpu_work   or the name of a table: all of its columns but ids
    void gemm() | 20000

    memory 1024 5 7 4096 8192                  bytes, time, address, allocated and reserved in all

`for i in 1..9:` before an event repeats it, `bare` leaves device and stream out of the args of GPU work, `trace` names
a file to read, and other kinds of events are JSON.
"""

from __future__ import annotations

import bisect
import gzip
import json
import os
import re
import shlex
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import tiny_trace
from tiny_trace import HOST, memory_event, slice_, write
from trace_rows import losses

from molprof.analysis.facts.tables import install
from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.query import find_statement
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.queries import PACKAGE, modules
from molprof.queries.catalog import catalog, standalone_sql

TESTS = Path(__file__).parent
CASES = TESTS / "sql"
CATALOG = catalog()
ENTRIES = {entry.name: entry for module in CATALOG.values() for entry in module.entries}
CORPUS = os.environ.get("MOLPROF_CORPUS")
TRACES = sorted(Path(CORPUS, "traces").glob("*.json.gz")) if CORPUS else []
needs_traces = pytest.mark.skipif(not TRACES, reason="MOLPROF_CORPUS is not set: no real traces to read")
CATEGORIES = {
    "runtime": "cuda_runtime", "driver": "cuda_driver", "op": "cpu_op", "mark": "user_annotation",
    "python": "python_function", "memcpy": "gpu_memcpy", "memset": "gpu_memset",
}  # fmt: skip
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
KINDS = {"c": "copy", "f": "free", "l": "filler", "j": "junk", "e": "eos"}
Rows = list[tuple[Any, ...]]


class Case(NamedTuple):
    """Lines of a case: its title and events, then its queries, each with its rows."""

    head: list[str]
    queries: list[tuple[str, list[str]]]


def read_cases(path: Path) -> list[Case]:
    cases = []
    for block in path.read_text(encoding="utf-8").rstrip("\n").split("\n\n"):
        case = Case([], [])
        for line in block.split("\n"):
            if line.startswith("? "):
                case.queries.append((line[2:], []))
            elif case.queries and line.startswith("    "):
                case.queries[-1] = (f"{case.queries[-1][0]} {line.strip()}", [])
            else:
                (case.queries[-1][1] if case.queries else case.head).append(line)
        cases.append(case)
    return cases


def events_of(line: str) -> Iterator[dict[str, Any]]:
    """The events of a line of a case."""
    if repeated := re.fullmatch(r"for i in (\d+)\.\.(\d+): (.*)", line):
        first, last, each = repeated.groups()
        for i in range(int(first), int(last) + 1):
            yield from events_of(re.sub(r"\{(.*?)\}", lambda found, i=i: str(eval(found[1], {"i": i})), each))
    elif line.startswith("{"):
        yield json.loads(line)
    elif not line.startswith("#"):
        kind, *words = shlex.split(line)
        special = {"sequence": sequence, "memory": memory}.get(kind)
        yield special(words) if special else complete(CATEGORIES.get(kind, kind), words)


def complete(category: str, words: list[str]) -> dict[str, Any]:
    name, ts, dur, *more = words
    is_work = category in GPU_WORK
    pid, tid = ("0", "7") if is_work else (str(HOST), str(HOST))
    args: dict[str, Any] = {}
    for word in more:
        if word[0] == "#":
            args["correlation"] = int(word[1:])
        elif word[0] == "@":
            pid, _, tid = word[1:].partition("/")
        elif word != "bare":
            args |= argument(word)
    place = {"pid": int(pid) if pid.isdigit() else pid, "tid": int(tid)}
    if is_work and "bare" not in more:
        args = {"device": place["pid"], "stream": place["tid"], **args}
    return {"ph": "X", "cat": category, "name": name, "ts": float(ts), "dur": float(dur), "args": args, **place}


def argument(word: str) -> dict[str, Any]:
    name, _, value = word.partition("=")
    try:
        return {name: json.loads(value)}
    except ValueError:
        return {name: value}


def memory(words: list[str]) -> dict[str, Any]:
    """Bytes, time, address, and what torch's allocator has allocated and reserved then; `cpu` for the host's."""
    size, ts, address, total, reserved = map(float, words[:5])
    return memory_event(size, ts, address, total, reserved, on_host=words[5:] == ["cpu"])


def sequence(words: list[str]) -> dict[str, Any]:
    """The slice of a sequence, whose tokens are words such as `1.0:f:0`: text, kind, block."""
    number, *words = words
    tokens = [word.rsplit(":", 2) for word in words if re.search(r":[cflje]:-?\d+$", word)]
    arrays = {name: value for word in words[len(tokens) :] for name, value in argument(word).items()}
    texts, kinds, blocks = zip(*tokens, strict=True)
    return slice_(
        "molprof.sequence", f"sequence {number}", 0, 100, tiny_trace.TOKENS, int(number) + 1, sequence=int(number),
        batch=0, row=int(number), smiles="C", tokens=len(tokens), token_id=[1] * len(tokens), text=list(texts),
        kind=[KINDS[kind] for kind in kinds], block=list(map(int, blocks)), **arrays,
    )  # fmt: skip


def ask(engine: TraceProcessor, text: str) -> Rows:
    """Rows of SQL, or of a table without its ids, which are those of one engine."""
    statement = find_statement(text, {}, files=False)
    includes = "".join(f"INCLUDE PERFETTO MODULE {PACKAGE}.{module}; " for module in statement.modules)
    columns = engine.query(includes + statement.sql)
    if text in ENTRIES:
        ids = {column.name for column in ENTRIES[text].columns if column.type.startswith(("JOINID", "ARGSETID"))}
        columns = {name: column for name, column in columns.items() if name not in ids}
    return list(zip(*(column.tolist() for column in columns.values()), strict=True))


def opened(engine: TraceProcessor, path: Path, **how: bool) -> TraceProcessor:
    load_trace(path, engine, **how)
    install(engine)
    return engine


def answered(case: Case, folder: Path, **how: bool) -> str:
    """The case as its file has it, with the rows that are found in the trace read so."""
    if case.head[1].startswith("trace "):
        path = TESTS / case.head[1].removeprefix("trace ")
    else:
        path = write(folder / "case.json", {"traceEvents": list(chain.from_iterable(map(events_of, case.head)))})
    lines = list(case.head)
    with open_engine() as engine:
        opened(engine, path, **how)
        for sql, _ in case.queries:
            lines += textwrap.wrap(f"? {sql}", 118, subsequent_indent="    ", break_on_hyphens=False)
            lines += [" | ".join(map(cell, row)).rstrip() for row in ask(engine, sql)]
    return "\n".join(lines)


def cell(value: Any) -> str:
    if isinstance(value, float):
        return repr(value) if len(repr(value)) <= 12 else f"{value:.9g}"
    return "null" if value is None else str(value)


def text_of(case: Case) -> str:
    lines = list(case.head)
    for sql, rows in case.queries:
        lines += [*textwrap.wrap(f"? {sql}", 118, subsequent_indent="    ", break_on_hyphens=False), *rows]
    return "\n".join(lines)


@pytest.mark.parametrize("path", sorted(CASES.glob("*.txt")), ids=lambda path: path.stem)
def test_cases(tmp_path: Path, path: Path) -> None:
    for case in read_cases(path):
        assert answered(case, tmp_path) == text_of(case), "python tests/test_queries.py writes them anew"


@pytest.mark.parametrize("name", ["engines", "kinds", "ranks", "run", "tokens"])
def test_cases_read_as_reports_read_traces(tmp_path: Path, name: str) -> None:
    """With the args alone that the modules use, and of Python stacks the functions alone that mark phases."""
    for case in read_cases(CASES / f"{name}.txt"):
        assert answered(case, tmp_path, all_args=False, stacks=False) == text_of(case)


ENGINES = json.loads(Path(CORPUS, "engines", "expected.json").read_text(encoding="utf-8")) if CORPUS else {}


@needs_traces
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("stacks", [True, False], ids=["stacks", "no stacks"])
def test_phases_of_engines_are_what_a_plain_recount_finds(engine: TraceProcessor, name: str, stacks: bool) -> None:
    opened(engine, Path(str(CORPUS), "engines", name), all_args=False, stacks=stacks)
    found = {
        phase: (count, time_ns)
        for phase, count, time_ns in ask(engine, "SELECT phase, count, time_ns FROM molprof_phase_total")
    }
    for phase, expected in ENGINES[name].items():
        if expected is None or "time_ns" in (expected if isinstance(expected, dict) else {}):
            assert found[phase] == ((expected["count"], expected["time_ns"]) if expected else (None, None)), phase
    assert ask(engine, "SELECT COUNT(), SUM(kind = 'decode') FROM molprof_any_step") == [(ENGINES[name]["steps"], 23)]


def test_modules_include_what_they_use_and_have_the_documented_columns() -> None:
    """Each on an engine that has included no other."""
    sql = modules()
    for module in CATALOG.values():
        declared = re.findall(r"^CREATE PERFETTO \w+ (\w+)", module.sql, re.MULTILINE)
        assert all(name.startswith(("molprof_", "_molprof_")) for name in declared)
        assert [entry.name for entry in module.entries] == [name for name in declared if name[0] != "_"] != []
        for included in module.includes:
            names = re.findall(r"^CREATE PERFETTO \w+ (\w+)", sql[f"{PACKAGE}.{included}"], re.MULTILINE)
            assert any(re.search(rf"\b{name}\b", module.sql) for name in names), f"{module.key} does not use {included}"
        with open_engine() as fresh:
            fresh.feed(b'{"traceEvents":[]}')
            fresh.finish()
            install(fresh)
            ask(fresh, module.name)  # its example
            for entry in module.entries:
                query = find_statement(entry.name, {}).sql.replace(",\n  ".join(c.name for c in entry.columns), "*")
                shown = fresh.query(f"INCLUDE PERFETTO MODULE {module.key}; {query}")
                assert list(shown) == [column.name for column in entry.columns], entry.name


def test_causes_of_idle_time_are_explained_as_reports_name_them() -> None:
    explained = re.findall(r'^-- (\w+) \("(.*?)"\): ', CATALOG["idle_causes"].sql, re.MULTILINE)
    assert dict(explained) == IDLE_CAUSES


def test_pattern_priorities_name_one_class_each(engine: TraceProcessor) -> None:
    opened(engine, TESTS / "goldens/given/tiny.json")
    sql = "SELECT priority FROM molprof_kernel_pattern GROUP BY priority HAVING COUNT(DISTINCT class) > 1"
    assert ask(engine, sql) == []


def test_totals_where_the_engine_does_not_number_stacks(engine: TraceProcessor, tmp_path: Path) -> None:
    path = TESTS / "goldens/given/run.json"
    tables = ("molprof_top_cpu_operation", "molprof_work_total")
    with open_engine() as numbered:
        opened(numbered, path)
        expected = [ask(numbered, name) for name in tables]
    opened(engine, path)
    engine.register_package(PACKAGE, {key: sql.replace("stack_id", "no_id") for key, sql in modules().items()})
    assert [ask(engine, name) for name in tables] == expected


def test_standalone_texts_can_be_pasted_in_any_order_and_again(engine: TraceProcessor) -> None:
    path = TESTS / "goldens/given/run.json"
    opened(engine, path)
    engine.query(f"INCLUDE PERFETTO MODULE {PACKAGE}.*")
    for name in (*CATALOG, *list(CATALOG)[::-9]):
        engine.query(standalone_sql(name, CATALOG))
    pasted = {name: engine.query(f"SELECT * FROM {name}") for name, entry in ENTRIES.items() if not entry.arguments}
    with open_engine() as packaged:
        opened(packaged, path)
        for name, columns in pasted.items():
            kept = [
                column.name for column in ENTRIES[name].columns if not column.type.startswith(("JOINID", "ARGSETID"))
            ]
            assert ask(packaged, name) == list(zip(*(columns[key].tolist() for key in kept), strict=True)), name


@pytest.mark.parametrize(
    ("name", "dropped"),
    [
        ("tests/goldens/given/run.json", 0),
        pytest.param("traces/torch_compile_triton.json.gz", 0, marks=needs_traces),
        pytest.param("traces/b200_vllm_eager.json.gz", 42, marks=needs_traces),
    ],
)
def test_perfettos_own_reader_gives_the_same_rows_unless_it_drops_events(name: str, dropped: int) -> None:
    path = Path(TESTS.parent if name.startswith("tests") else str(CORPUS), name)
    raw = path.read_bytes()
    times = ("TIMESTAMP", "JOINID", "ARGSETID")  # counted from another moment
    with open_engine() as ours, open_engine() as plain:
        opened(ours, path)
        plain.feed(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        plain.finish()
        install(plain)
        ours_shows, plain_shows = (ask(engine, "SELECT COUNT() FROM slice")[0][0] for engine in (ours, plain))
        assert losses(plain).get("slice_drop_overlapping_complete_event", 0) == ours_shows - plain_shows == dropped
        for entry in ENTRIES.values() if not dropped else ():
            names = [column.name for column in entry.columns if not column.type.startswith(times)]
            if names and not entry.arguments:
                sql = f"SELECT {', '.join(names)} FROM {entry.name}"
                assert sorted(ask(plain, sql), key=repr) == sorted(ask(ours, sql), key=repr), entry.name


@needs_traces
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.split(".")[0])
def test_sums_of_real_traces(path: Path, engine: TraceProcessor) -> None:
    """Figures that are counted in different ways agree, some of them with plain loops."""
    load_trace(path, engine, stacks=False)
    install(engine)
    devices = ask(engine, "SELECT device, span_ns, busy_ns, idle_ns FROM molprof_device")
    running = "SELECT device, SUM(time_ns), SUM(time_ns * (running > 0)) FROM molprof_concurrency GROUP BY device"
    assert ask(engine, running) == [(device, span, busy) for device, span, busy, _ in devices]
    ((count, time_ns, kernels),) = ask(
        engine, "SELECT COUNT(), SUM(dur), SUM(category = 'kernel') FROM molprof_gpu_work"
    )
    assert ask(engine, "SELECT SUM(count), SUM(time_ns), SUM(kernels) FROM molprof_stream") == [
        (count, time_ns, kernels)
    ]
    assert ask(engine, "SELECT IFNULL(SUM(count), 0) FROM molprof_memory_direction") == [(count - kernels,)]
    steps = ask(engine, "SELECT id, ts, ts + dur, tid FROM molprof_any_step")
    if steps:
        assert ask(engine, "SELECT SUM(kernels), SUM(gpu_ns) FROM molprof_step_launch") == [(kernels, time_ns)]
    if len({tid for *_, tid in steps}) == 1:
        calls = ask(engine, "SELECT id, ts FROM molprof_gpu_call ORDER BY id")
        inside = [(call, [(start, step) for step, start, end, _ in steps if start <= ts < end]) for call, ts in calls]
        assert ask(engine, "SELECT id, step_id FROM molprof_call_step") == [
            (c, max(all_)[1]) for c, all_ in inside if all_
        ]

    sql = "SELECT SUM(kind = 'launch'), SUM(kind = 'graph_launch'), SUM(kernels) FROM molprof_launch"
    assert ask(engine, sql) == ask(
        engine, "SELECT launches, graph_launches, kernels_with_call FROM molprof_launch_count"
    )
    delays = "SELECT name, kind, count, mean_delay_ns FROM {} ORDER BY name, kind"
    by_call = ask(engine, delays.format("molprof_launch_summary"))
    assert by_call == ask(engine, delays.format("molprof_launch_queue_summary"))
    graphs = "SELECT name, 'graph_launch', graph_launches, mean_delay_ns FROM molprof_graph_summary ORDER BY name"
    assert ask(engine, graphs) == [row for row in by_call if row[1] == "graph_launch"]

    sql = """SELECT work.device, call.ts, work.ts + work.dur FROM molprof_gpu_work_call AS link
        JOIN molprof_gpu_work AS work ON work.id = link.work_id JOIN molprof_gpu_call AS call ON call.id = link.call_id
        WHERE work.dur > 0"""
    submitted, ended = defaultdict(list), defaultdict(list)
    for device, start, end in ask(engine, sql):
        bisect.insort(submitted[device], start)
        bisect.insort(ended[device], end)
    for device, ts, depth in ask(engine, "SELECT device, ts, queue_depth FROM molprof_launch"):
        waiting = bisect.bisect_left(submitted[device], ts) - bisect.bisect_right(ended[device], ts)
        assert depth == (None if device is None else waiting)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        for path in sorted(CASES.glob("*.txt")):
            path.write_text(
                "\n\n".join(answered(case, Path(folder)) for case in read_cases(path)) + "\n", encoding="utf-8"
            )
