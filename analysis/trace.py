"""A recorded trace that is read lazily and once; and many traces at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace as changed

from molprof.analysis.reader import Reading, is_stream
from molprof.analysis.reader.remote import has_secret, placed
from molprof.analysis.trace_processor import NATIVE_PATH_VARIABLE
from molprof.common.cache import cache_key, read_entry, write_entry
from molprof.common.errors import EngineError, MolprofError
from molprof.common.memory import processors
from molprof.common.notebook import in_frame
from molprof.common.text import escaped, is_utf8
from molprof.queries import PACKAGE

# What reads a file is imported when one is read: that takes three times as long as all else of a report in the cache.
if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from molprof.analysis.facts.stacks import Stacks
    from molprof.analysis.figures.model import Certificate, Findings, Report
    from molprof.analysis.frame import Frame
    from molprof.analysis.query import QueryResult, Statement
    from molprof.analysis.reader import TraceInfo
    from molprof.analysis.trace_processor import TraceProcessor
    from molprof.common.jobs import JobExecutor
    from molprof.common.values import Value

# Modules of the package whose tables need Python stacks; of them, those that need all arguments.
_OF_ARGS = {f"{PACKAGE}.memory"}
_OF_STACKS = {f"{PACKAGE}.origin"} | _OF_ARGS
# Cached reports: about a thousand.
MAX_BYTES = 384 << 20
_FOLDER = "reports"
# Traces given to each process ahead, so that none of them waits. Few, as their answers are held.
_AHEAD = 3
_HINT = "if memory ran out, read the traces one by one with molprof report"

T = TypeVar("T")


class Trace:
    """The trace at `path`, in Chrome or Perfetto format, compressed or not; `-` for standard input.

    Nothing is read before it is asked for. Whatever reads the file raises TraceError if it cannot be read or trusted,
    EngineError if the trace processor failed.

    Frames, whose columns `Frame.meanings` explains: `work` (kernels, copies and sets of the GPU), `kernels` of it,
    `calls` (launches, copies, sets, syncs), `launches` of them (of kernels and graphs), `syncs` (calls that wait for
    the GPU), `operators`, `functions` (modules, ranges and Python functions around them), `memory` (allocations and
    frees), `phases`, `steps`, `tokens`. All but the last three read Python stacks.
    """

    work: Frame
    kernels: Frame
    calls: Frame
    launches: Frame
    syncs: Frame
    operators: Frame
    functions: Frame
    memory: Frame
    phases: Frame
    steps: Frame
    tokens: Frame

    def __init__(self, path: str | os.PathLike[str], reading: Reading | None = None) -> None:
        self.path, self.reading = placed(path), reading or Reading()
        self._stack = ExitStack()
        self._loaded: tuple[TraceProcessor, TraceInfo] | None = None
        self._layers = (False, False)  # Python stacks, all arguments
        self._info: TraceInfo | None = None
        self._report: Report | None = None
        self._frames: dict[str, Frame] = {}

    def loaded(self, *, stacks: bool = False, all_args: bool = False) -> tuple[TraceProcessor, TraceInfo]:
        """Return the trace processor that holds the trace, and the reader's counts and notes of the file.

        stacks: with Python stacks, and what operators were called with. all_args: all args as SQL reads them, flow and
        memory events too; slow. The file is read again if what is loaded lacks them.
        """
        has_stacks, has_args = self._layers
        stacks = stacks or self.reading.stacks
        if self._loaded is not None and has_stacks >= stacks and has_args >= all_args:
            return self._loaded
        return self._load((stacks or has_stacks, all_args or has_args), cached=self.reading.cached)

    @property
    def info(self) -> TraceInfo:
        """Counts and notes of the reader about the file."""
        return self._info or self.loaded()[1]

    @property
    def report(self) -> Report:
        """All figures, tables, checks and findings; from the user's cache if stored there.

        The advice on a constraint names engines that were measured beside the trace: other captures, `bench masks`.
        """
        if self._report is None:
            self._report = self.kept_report() or self._made()
            if self._report.run is not None and not is_stream(self.path):
                from molprof.analysis.bench.beside import with_measured

                self._report = with_measured(self._report)
        return self._report

    @property
    def figures(self) -> dict[str, Value]:
        """The value of each figure by its id, None where it is not recorded."""
        from molprof.analysis.figures.catalog import FIGURES

        return {figure.id: figure.value(self.report) for figure in FIGURES}

    @property
    def findings(self) -> Findings:
        """The findings of the report."""
        from molprof.analysis.figures.model import Findings

        return Findings(self.report.findings)

    @property
    def certificate(self) -> Certificate | None:
        """Certificate: for each group of figures, exact, bounded or not to be had."""
        return self.report.certificate

    def origin(self, by: str = "module", depth: int | None = None) -> Frame:
        """Return the origin of GPU work as `molprof report by` shows it: a row for each node of the tree.

        Columns: `depth` from 0 for the whole trace, `path` with the names of the nodes above, `name`, `kind`, `count`
        of alike nodes in one; then sums with all nodes below it, such as `gpu_ns`, `launches`, `syncs`, `operators`,
        and by `own_` its own alone. Parents stand before their children.

        by: `module`, `source`, `operator` or `kernel`. depth: of the deepest nodes; None: all. Raises UsageError.
        """
        from molprof.analysis.frame import Frame
        from molprof.analysis.origin.read import origins_of
        from molprof.analysis.origin.tree import AMOUNTS, BYS, build_tree
        from molprof.common.setting import one_of

        one_of("by", by, BYS)
        tree = build_tree(self.read(origins_of, stacks=True), by)
        above: list[str] = []
        rows = []
        for level, node in tree.walk():
            above[level:] = [node.name]
            if depth is None or level <= depth:
                rows.append((level, "/".join(above[1:]), node.name, node.kind, node.count, *node.inclusive, *node.own))
        return Frame.of_rows(
            ("depth", "path", "name", "kind", "count", *AMOUNTS, *(f"own_{name}" for name in AMOUNTS)), rows
        )

    def sql(self, sql: str, **parameters: object) -> Frame:
        """Return the rows of one SELECT, or of a module, table or view of the SQL package by its name.

        parameters: values for `$name` in the SQL. Raises QueryError, UsageError.
        """
        from molprof.analysis.query import find_statement

        return self.run(find_statement(sql, {name: str(value) for name, value in parameters.items()})).frame

    def run(self, statement: Statement) -> QueryResult:
        """Return the result of each statement of a query, and notes about the trace."""
        from molprof.analysis.query import run_statement

        return run_statement(*self.loaded(all_args=True), statement)

    def read(
        self, make: Callable[[TraceProcessor, TraceInfo], T], *, stacks: bool = False, all_args: bool = False
    ) -> T:
        """Return the result of `make` on a trace with the SQL package and these layers (see `loaded`)."""
        from molprof.analysis.reader.open import values_named

        engine, info = self.loaded(stacks=stacks, all_args=all_args)
        with values_named(engine, self.path):
            return make(engine, info)

    def __getattr__(self, name: str) -> Frame:
        from molprof.analysis.frame import FRAMES, read_frame

        if name not in FRAMES:
            raise AttributeError(f"a trace has no {name!r}; its frames are {', '.join(FRAMES)}")
        if name not in self._frames:
            from molprof.queries.catalog import homes

            home = homes()[FRAMES[name].view]
            layers = {"stacks": home in _OF_STACKS, "all_args": home in _OF_ARGS}
            self._frames[name] = self.read(lambda engine, _: read_frame(engine, name), **layers)
        return self._frames[name]

    def kept_report(self) -> Report | None:
        """Return the report from the user's cache; None if it is not stored, or the cache is off."""
        if (key := self._key()) is None or (text := read_entry(_FOLDER, key)) is None:
            return None
        from molprof.analysis.figures.model import decode_report

        report: Report = decode_report(text)
        trace = report.trace
        # An equal file may have been read under another name.
        problem = None if trace.problem is None else trace.problem.replace(trace.path, str(self.path), 1)
        return changed(report, trace=changed(trace, path=str(self.path), problem=problem))

    def close(self) -> None:
        """Free the trace processor. Read results stay; others load the trace again."""
        self._loaded, self._layers = None, (False, False)
        self._stack.close()

    def __repr__(self) -> str:
        from molprof.analysis.frame import FRAMES

        return (
            f"<Trace {escaped(str(self.path))}: report, figures, findings, certificate, origin(by), sql(query); frames"
            f" {', '.join(FRAMES)}>"
        )

    def __dir__(self) -> list[str]:
        from molprof.analysis.frame import FRAMES

        return sorted({*super().__dir__(), *FRAMES})

    def _repr_html_(self) -> str | None:
        return in_frame(self)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _load(
        self, layers: tuple[bool, bool], *, cached: bool, check: bool = True, beside: list[Stacks] | None = None
    ) -> tuple[TraceProcessor, TraceInfo]:
        from molprof.analysis.reader.open import open_trace

        self.close()
        stacks, all_args = layers
        opened = open_trace(
            self.path, self.reading, stacks=stacks, all_args=all_args, cached=cached, check=check, beside=beside
        )
        self._loaded, self._layers = self._stack.enter_context(opened), layers
        self._info = self._loaded[1]
        return self._loaded

    def _made(self) -> Report:
        from molprof.analysis.facts.tables import computed_ahead
        from molprof.analysis.figures.build import build_report
        from molprof.analysis.findings import TraceFacts, bottleneck_of, find_all
        from molprof.analysis.reader.load import checked
        from molprof.analysis.reader.open import values_named
        from molprof.analysis.samples import SAMPLES_KEY, from_json

        # Figures say what was read, so they are made of the same layers, whatever is loaded.
        layers = (self.reading.stacks, False)
        fresh = self._loaded is None or self._layers != layers
        stacks: list[Stacks] = []
        engine, info = self._load(layers, cached=False, check=False, beside=stacks) if fresh else self.loaded()
        with values_named(engine, self.path):
            if fresh:
                self._info = info = checked(engine, info)
                self._loaded = engine, info
            with computed_ahead(engine, self.reading.processes):
                report = build_report(engine, info)
            if report.trace.whole_steps:
                samples = [one.moved(-info.origin_ns) for one in from_json(info.keys.get(SAMPLES_KEY, []))]
                known = TraceFacts(engine, report, stacks[0] if stacks else None, samples)
                report = changed(report, findings=find_all(known), bottleneck=bottleneck_of(known))
        if key := self._key():
            path = escaped(report.trace.path)  # which may be no UTF-8
            problem = report.trace.problem and report.trace.problem.replace(report.trace.path, path, 1)
            stored = changed(report, trace=changed(report.trace, path=path, problem=problem))
            write_entry(_FOLDER, key, msgspec.json.encode(stored), MAX_BYTES)
        return report

    def _key(self) -> str | None:
        """Return the cache key of a report: the file's hash, molprof's version, and the options that change figures."""
        if not self.reading.cached or is_stream(self.path):
            return None
        native_path = self.reading.native_path or os.environ.get(NATIVE_PATH_VARIABLE)
        return cache_key((self.path,), native_path, self.reading.stacks, self.reading.partial)


def report_of(trace: Trace) -> Report:
    """Return the report of a trace: a job of `each_trace`."""
    return trace.report


def each_trace(
    paths: Sequence[Path],
    job: Callable[[Trace], T],
    reading: Reading | None = None,
    *,
    known: Callable[[Path], T | None] = lambda path: None,
    at_once: int | None = None,
    hint: str = _HINT,
    executor: JobExecutor | None = None,
) -> Iterator[T | MolprofError]:
    """Yield the result of `job` for each trace, in order and as soon as it is ready; the error for an unreadable one.

    Each process reads one trace after the other. Only this one reads streams, addresses with secrets, and files whose
    names are not UTF-8. An interrupt waits for none.

    Args:
        job: a function of a module, which other processes import; what it returns is pickled.
        known: an answer that needs no reading, or None; asked in this process.
        at_once: the most processes; 0 or 1: this one alone, None: one per processor.
        hint: what to do should a process fail.
        executor: what runs the jobs, as many at once as it says, in place of processes of this machine; its caller
            ends it. A job array that is refused ends the reading (SchedulerError).
    """
    at_once = executor.at_once if executor is not None else max(1, processors() if at_once is None else at_once)
    answers = ((path, _caught(known, path)) for path in paths)
    first = list(islice(answers, _AHEAD * at_once))
    is_all = len(first) == len(paths)
    count = min(at_once, sum(answer is None for _, answer in first)) if is_all else at_once
    reading = reading or Reading()
    reading = replace(reading, processes=reading.processes or max(1, processors() // max(1, count)))
    make = partial(_of_trace, job, reading)
    with ExitStack() as stack:
        workers: Executor | None = executor
        if workers is None and count > 1:
            from molprof.common.process import can_copy
            from molprof.common.process.workers import Workers

            workers = Workers(count, copied=is_all and can_copy())
            stack.callback(workers.shutdown, wait=False, cancel_futures=True)
        waiting: deque[Callable[[], T | MolprofError]] = deque()
        for path, answer in chain(first, answers):
            if answer is not None:
                waiting.append(partial(_same, answer))
            elif workers is None or is_stream(path) or has_secret(path) or not is_utf8(str(path)):
                waiting.append(partial(_caught, make, path))
            else:
                waiting.append(partial(_awaited, workers.submit(make, path), path, hint))
            if len(waiting) > _AHEAD * count:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()


def _of_trace(job: Callable[[Trace], T], reading: Reading, path: Path) -> T:
    with Trace(path, reading) as trace:
        return job(trace)


def _same(answer: T) -> T:
    return answer


def _caught(make: Callable[[Path], T], path: Path) -> T | MolprofError:
    try:
        return make(path)
    except MolprofError as error:
        return error


def _awaited(future: Future[T], path: Path, hint: str) -> T | MolprofError:
    """Return the result of another process, or its error."""
    from molprof.common.jobs.scheduler import SchedulerError
    from molprof.common.process.workers import WorkerError

    try:
        return future.result()
    except SchedulerError:  # of all that wait
        raise
    except MolprofError as error:
        return error
    except WorkerError as error:
        return EngineError(f"the process that read {path} failed: {error}", hint)
