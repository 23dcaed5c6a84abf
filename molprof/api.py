"""The Python API for commands, the MCP server and notebooks: load, compare and query traces, many at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molprof.analysis.reader import Reading
from molprof.common.errors import MolprofError, TraceError, UsageError
from molprof.common.notebook import shown_by

if TYPE_CHECKING:
    from molprof.analysis.compare import Comparison
    from molprof.analysis.compare.kernels.pick import Kernels
    from molprof.analysis.compare.kernels.read import RecordedRows
    from molprof.analysis.compare.thresholds import Expectation
    from molprof.analysis.critical.path import CriticalPath
    from molprof.analysis.figures import Report
    from molprof.analysis.frame import Frame
    from molprof.analysis.memory import Memory
    from molprof.analysis.origin.match import Segment
    from molprof.analysis.origin.opened import Opened
    from molprof.analysis.origin.read import Origins
    from molprof.analysis.predict.predict import Prediction
    from molprof.analysis.predict.run import CallSequence
    from molprof.analysis.predict.sizes import Sizes
    from molprof.analysis.predict.table import CostTable, HeldOutCheck
    from molprof.analysis.query import QueryResult, Statement
    from molprof.analysis.ranks import RankedJob
    from molprof.analysis.reader import TraceInfo
    from molprof.analysis.roofline.read import Roofline
    from molprof.analysis.roofline.script import ScriptCall
    from molprof.analysis.trace import Trace
    from molprof.analysis.trace_processor import TraceProcessor
    from molprof.common.jobs import JobExecutor

_USUAL = Reading(cached=True)  # as commands read
AnyPath = str | os.PathLike[str]
Notes = tuple[str, ...]


def load(path: AnyPath, reading: Reading | None = None, **how: Any) -> Trace:
    """Return the trace at `path`. how: fields of `Reading` that override `reading`, such as `cached=False`.

    Nothing is read before it is asked for. By default the user's cache has what commands read, and keeps it for them.
    """
    from molprof.analysis.trace import Trace

    return Trace(path, _reading(reading or _USUAL, how))


def read_many(paths: AnyPath | Sequence[AnyPath], reading: Reading | None = None, **how: Any) -> Frame:
    """Return the figures of traces as a frame with a row for each: of those in a folder, or of paths.

    Several are read at the same time.

    Columns: `path`, `label` (what ran), `problem` (why it could not be read, else None), then each figure by its id,
    None where not recorded. Arguments are those of `load`. Raises UsageError for a folder without traces.
    """
    from molprof.analysis.figures.catalog import FIGURES
    from molprof.analysis.figures.labels import report_label
    from molprof.analysis.frame import Frame
    from molprof.analysis.reader.source import traces_in

    inputs = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    each = [item for path in inputs for item in (traces_in(path) if path.is_dir() else [path])]
    if not each:
        raise UsageError(f"{' '.join(map(str, inputs))} holds no traces", hint="name a folder with traces in it")
    rows: list[tuple[Any, ...]] = []
    for path, report in zip(each, each_report(each, _reading(reading or _USUAL, how)), strict=True):
        if isinstance(report, MolprofError):
            rows.append((str(path), None, str(report), *(None for _ in FIGURES)))
        else:
            rows.append((str(path), report_label(report), None, *(figure.value(report) for figure in FIGURES)))
    names = ("path", "label", "problem", *(figure.id for figure in FIGURES))
    return Frame.of_rows(names, rows, units={figure.id: figure.unit for figure in FIGURES})


def report(path: AnyPath, reading: Reading | None = None, **how: Any) -> Report:
    """Return the report of one trace. Arguments are those of `load`."""
    with _load(path, reading, **how) as trace:
        return trace.report


def reports(
    paths: Sequence[AnyPath], reading: Reading | None = None, *, stored: bool = True, **how: Any
) -> list[Report]:
    """Return the reports of traces in order, each read once, several at the same time.

    stored: a path may be a report that `molprof report --format json` wrote. Raises TraceError or EngineError for the
    first that cannot be read.
    """
    each = list(dict.fromkeys(map(Path, paths)))
    by_path: dict[Path, Report] = {}
    for path, report in zip(each, each_report(each, _reading(reading, how), stored), strict=True):
        if isinstance(report, MolprofError):
            raise report
        by_path[path] = report
    return [by_path[Path(path)] for path in paths]


def each_report(
    paths: Sequence[Path],
    reading: Reading | None = None,
    stored: bool = True,
    executor: JobExecutor | None = None,
) -> Iterator[Report | MolprofError]:
    """Yield the report of each path, in order and as soon as it is ready; the error for an unreadable one.

    executor: what reads them, in place of processes of this machine.
    """
    from molprof.analysis.reports import read_stored
    from molprof.analysis.trace import Trace, each_trace, report_of

    def kept(path: Path) -> Report | None:
        return Trace(path, reading).kept_report() or (read_stored(path) if stored else None)

    return each_trace(paths, report_of, reading, known=kept, executor=executor)


def compare(
    *traces: Trace | Report | AnyPath,
    anyway: bool = False,
    expectations: Sequence[Expectation] = (),
    base: int | None = None,
) -> Comparison:
    """Return the comparison of two or more traces, reports or their paths with one of them, which comes first.

    base: the place of that one; None: the only run without a constraint where there is just one, else the first.
    anyway: also of runs of different prompts or sampling. Raises NotComparableError.
    """
    from molprof.analysis.compare import compare_with
    from molprof.analysis.figures import Report

    paths = [item for item in traces if isinstance(item, str | os.PathLike)]
    read = dict(zip(paths, reports(paths, _USUAL), strict=True)) if paths else {}

    def report(item: Trace | Report | AnyPath) -> Report:
        if isinstance(item, str | os.PathLike):
            return read[item]
        return item if isinstance(item, Report) else item.report

    return compare_with(base, [report(item) for item in traces], anyway=anyway, expectations=expectations)


def query(
    traces: AnyPath | Sequence[AnyPath],
    statement: str | Statement,
    parameters: Mapping[str, str] | None = None,
    reading: Reading | None = None,
    **how: Any,
) -> QueryResult:
    """Run a query on one trace or each of several: the name of a module or table, a .sql file, or SQL.

    parameters: values for `$name` in it. Raises QueryError, UsageError, TraceError, EngineError.
    """
    from molprof.analysis.query import find_statement, joined

    parsed = find_statement(statement, parameters or {}) if isinstance(statement, str) else statement
    results = []
    paths = [traces] if isinstance(traces, str | os.PathLike) else traces
    for path in paths:
        with _load(path, reading, **how) as trace:
            results.append(trace.run(parsed))
    return joined([os.fspath(path) for path in paths], results)


def ranks(
    paths: Sequence[Path],
    reading: Reading | None = None,
    *,
    parts: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, files: None,
    executor: JobExecutor | None = None,
    **how: Any,
) -> RankedJob:
    """Return the ranks of a distributed job side by side, from their traces, or folders with them.

    A file that cannot be read is in `unread`, and the others are shown without it. parts: a folder, here or in a
    bucket, that keeps what is read of each file, and is asked first. progress: files done, and how many there are.
    executor: what reads them, in place of processes of this machine. Raises UsageError where there are no traces,
    TraceError where none can be read or they are not the ranks of one job, EngineError.
    """
    from molprof.analysis.fleet.ranks import read_ranks

    return read_ranks(paths, _reading(reading, how), parts, progress, executor)


def origins(
    path: AnyPath,
    reading: Reading | None = None,
    capture: Path | None = None,
    names_from: Path | None = None,
    peaks: Sequence[str] = (),
) -> tuple[Origins, Opened, Notes]:
    """Return the origin of GPU work, and the graphs that the trace replays, opened with another trace.

    capture: the trace in which the graphs were captured, or a folder of such traces. names_from: in place of it, the
    trace of a run of the same program with graphs off. peaks: as for `roofline`, of a trace without either. Third are
    notes about the trace. Raises TraceError where it replays no graph, `capture` captures none, `names_from` replays
    graphs or has no steps, or peaks lack shapes; NotComparableError where `names_from` is of another program.
    """
    from molprof.analysis.origin.opened import read_opened
    from molprof.analysis.roofline.operands import RECORD_SHAPES
    from molprof.analysis.roofline.peaks import peaks_of
    from molprof.analysis.roofline.read import read_pieces

    peaks_of(None, peaks)
    if names_from is not None:
        from molprof.analysis.origin.other_run import read_named, read_run

        with _load(names_from, reading) as other:
            run = other.read(read_run, stacks=True, all_args=True)
        with _load(path, reading) as trace:
            both = trace.read(lambda engine, info: read_named(engine, info, run), stacks=True, all_args=True)
            return *both, tuple(trace.info.notes())
    name = None if capture is None else str(capture)

    def read(engine: TraceProcessor, info: TraceInfo) -> tuple[Origins, Opened]:
        origin, opened = read_opened(engine, info, name, segments, remarks)
        if peaks and not engine.facts.has_arguments:
            raise TraceError(f"{path} has no shapes, so that peaks cannot be applied", hint=RECORD_SHAPES)
        if capture is None and engine.facts.has_arguments:
            origin = replace(origin, pieces=read_pieces(engine, info, peaks))
        return origin, opened

    with _load(path, reading) as trace:
        layers = _layers(capture)
        segments, remarks = _segments(capture, reading, trace, layers)
        origin, opened = trace.read(read, **layers)
        return origin, opened, tuple(trace.info.notes())


def roofline(
    path: AnyPath, reading: Reading | None = None, peaks: Sequence[str] = (), capture: Path | None = None
) -> tuple[Roofline, Notes]:
    """Return the least and the recorded time of the GPU's work, by operator and arguments; and notes about the trace.

    peaks: of the device, such as `bf16=989`, in place of those known by its name. capture: as for `origins`. Raises
    TraceError where no GPU work is recorded, no graph is replayed or captured.
    """
    from molprof.analysis.origin.opened import captured_calls, read_opened
    from molprof.analysis.roofline.peaks import peaks_of
    from molprof.analysis.roofline.read import read_roofline

    peaks_of(None, peaks)

    def read(engine: TraceProcessor, info: TraceInfo) -> Roofline:
        calls = captured_calls(read_opened(engine, info, str(capture), segments)[1]) if segments else {}
        return read_roofline(engine, info, peaks, calls)

    with _load(path, reading) as trace:
        layers = _layers(capture)
        segments, remarks = _segments(capture, reading, trace, layers)
        return trace.read(read, **layers), (*trace.info.notes(), *remarks)


def _layers(capture: Path | None) -> dict[str, bool]:
    """Return what is read of a trace: grid sizes, which a capture is compared by, are in no report."""
    return {"stacks": True, "all_args": capture is not None}


def _segments(
    capture: Path | None, reading: Reading | None, trace: Trace, layers: Mapping[str, bool]
) -> tuple[list[Segment], list[str]]:
    """Return the graphs that a trace captures, or those of a folder, and remarks on the folder; none without one."""
    from molprof.analysis.origin.capture import read_segments
    from molprof.analysis.origin.folder import read_folder
    from molprof.analysis.origin.opened import replayed_batches
    from molprof.analysis.ranks.read import file_rank

    def read(file: Path) -> list[Segment]:
        with _load(file, reading) as other:
            return other.read(read_segments, stacks=True, all_args=True)

    if capture is None or not capture.is_dir():
        return [] if capture is None else read(capture), []
    batches = trace.read(lambda engine, _: replayed_batches(engine), **layers)
    return read_folder(capture, set(batches.values()), trace.path, read, file_rank)


def called_operators(path: AnyPath, reading: Reading | None = None) -> tuple[tuple[ScriptCall, ...], Notes]:
    """Return operators of a trace by their arguments, the longest first, for `molprof replay`; and notes.

    Raises TraceError where no shapes are recorded.
    """
    from molprof.analysis.roofline.script import read_called

    with _load(path, reading) as trace:
        return trace.read(read_called, stacks=True), tuple(trace.info.notes())


def memory(path: AnyPath, reading: Reading | None = None) -> tuple[Memory, Notes]:
    """Return the memory of a trace over time by category, the need of a batch of N, and notes about the trace.

    Raises TraceError where neither memory events nor a captured model are recorded.
    """
    from molprof.analysis.memory import read_memory

    with _load(path, reading) as trace:
        return trace.read(read_memory, stacks=True, all_args=True), tuple(trace.info.notes())


def critical_path(
    path: AnyPath, reading: Reading | None = None, changes: Sequence[str] = ()
) -> tuple[CriticalPath, Notes]:
    """Return the critical path of a trace over its host, streams and syncs; and notes about the trace.

    changes: what would be faster, such as `elementwise=0.2x,launches=graph`. Raises UsageError where one is none or
    selects nothing, TraceError where the trace records nothing of the host.
    """
    from molprof.analysis.critical.changes import parse_changes
    from molprof.analysis.critical.path import read_critical_path

    parsed = parse_changes(changes)
    with _load(path, reading) as trace:
        critical = trace.read(lambda engine, info: read_critical_path(engine, info, parsed), stacks=True)
        return critical, tuple(trace.info.notes())


def predict(
    path: AnyPath, device: str, reading: Reading | None = None, changes: Sequence[str] = (),
    measured: Sequence[Path] = (),
) -> Prediction:  # fmt: skip
    """Predict a run with recorded shapes on a GPU such as h100 or mi300, with the error of each figure.

    changes: as for `critical_path`. measured: files of `molprof replay --op N --format json` on the device. Raises
    UsageError for others, a device that is not known or a change that selects nothing, TraceError where shapes are not
    recorded, or much time is in operators that no trace has shown.
    """
    from molprof.analysis.critical.changes import parse_changes
    from molprof.analysis.predict.predict import predict as predicted

    parsed = parse_changes(changes)
    (run,), table, checks = _predictable([path], device, reading, measured)
    return predicted(run, table, checks, parsed)


def predict_sizes(
    path: AnyPath, device: str, sizes: str, rows: int | None = None, beside: AnyPath | None = None,
    reading: Reading | None = None,
) -> tuple[Prediction, Sizes]:  # fmt: skip
    """Return the same as `predict`, and the run at batch sizes such as `1,8` or `1:256` (powers of two).

    rows: of the run, where it does not tell them. beside: another run of the program, of other rows, whose shapes are
    compared with those predicted. Raises TraceError too where shapes do not tell the rows.
    """
    from molprof.analysis.predict import sizes as by_size
    from molprof.analysis.predict.predict import predict as predicted

    batch_sizes = by_size.parse_sizes(sizes)
    (run, *others), table, checks = _predictable([path] if beside is None else [path, beside], device, reading)
    return predicted(run, table, checks), by_size.sizes(run, table, checks, batch_sizes, rows, *others)


def _predictable(
    paths: Sequence[AnyPath], device: str, reading: Reading | None, measured: Sequence[Path] = ()
) -> tuple[list[CallSequence], CostTable, Sequence[HeldOutCheck]]:
    """Return runs as input of predictions, with the known costs of a GPU and their errors."""
    from molprof.analysis.predict.measured import read_measured
    from molprof.analysis.predict.predict import device_of
    from molprof.analysis.predict.run import read_run
    from molprof.analysis.predict.table import CostTable, launching_of, quiet_of, stored

    peaks, costs = device_of(device), stored()
    read = partial(read_run, launching=launching_of(costs.sources), quiet=quiet_of(costs.sources))
    runs = []
    for path in paths:
        with _load(path, reading) as trace:
            runs.append(trace.read(read, stacks=True))
    return runs, CostTable(costs.sources, peaks, read_measured(measured, peaks, runs)), costs.checks


def recorded(path: Path, reading: Reading | None = None, host: str | None = None) -> tuple[RecordedRows, Notes]:
    """Return the recorded work of a trace in order, for a comparison kernel by kernel; and notes about it.

    host: `module`, `source` or `phase`, to tell where threads were. Raises TraceError where neither GPU work nor
    operators are recorded.
    """
    from molprof.analysis.compare.kernels.read import read_recorded

    with _load(path, reading) as trace:
        return trace.read(partial(read_recorded, host=host), stacks=True), tuple(trace.info.notes())


def compare_kernels(
    paths: Sequence[Path], region: str | None = None, reading: Reading | None = None, by: str = "kernel"
) -> Kernels:
    """Compare two traces by kernel, operator, module, source or phase; return the difference and notes.

    region: `step` of median time, all `steps`, or `trace`; None: medians over all steps where both mark steps, else
    the trace. Raises NotComparableError where only one of them records GPU work, or the steps that are asked for, or
    neither has work in them, or one lacks what they are to be compared by.
    """
    from molprof.analysis.compare.kernels.pick import compared

    host = by if by in ("module", "source", "phase") else None
    read = [recorded(path, reading, host) for path in paths]
    notes = (f"{path}: {remark}" for path, (_, remarks) in zip(paths, read, strict=True) for remark in remarks)
    return compared([rows for rows, _ in read], region, by, tuple(notes))


def _shown(result: Any, form: str) -> str:
    """Return a trace, a report or a comparison as text, as commands show it in a format."""
    from molprof.analysis.compare import Comparison
    from molprof.analysis.documents.comparison import comparison_document
    from molprof.analysis.documents.report import report_document
    from molprof.analysis.figures import Report
    from molprof.analysis.render import render

    if isinstance(result, Comparison):
        return render(comparison_document(result), form, whole=False)
    return render(report_document(result if isinstance(result, Report) else result.report), form, whole=False)


shown_by(_shown)


def _load(path: AnyPath, reading: Reading | None = None, **how: Any) -> Trace:
    """Load as `load` does, but without the user's cache if `reading` does not ask for it."""
    return load(path, _reading(reading, how))


def _reading(reading: Reading | None, how: Mapping[str, Any]) -> Reading:
    return replace(reading or Reading(), **how)
