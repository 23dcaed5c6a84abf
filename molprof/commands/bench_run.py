"""Running a benchmark's cases: the list, a line for each as it ends, and what is said when it is interrupted."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from molprof.commands.options import deliver, note
from molprof.commands.submission import check_submission, own_arguments, run_on_cluster
from molprof.common.document import Column, Document, Section, Table
from molprof.common.errors import RunError, UsageError
from molprof.common.text import escaped

if TYPE_CHECKING:
    from molprof.profiler.bench.cases import Case
    from molprof.profiler.bench.facts import Facts
    from molprof.profiler.bench.schedule import Step

INTERRUPTED = 130
_LABEL_LENGTH = 52
_MINUTE, _HOUR = 90.0, 5400.0


@dataclass(frozen=True)
class Running:
    """What `running_options` gave."""

    output: Path | None
    resume: bool
    retry: bool
    dry_run: bool
    repeats: int
    seed: int
    limit: float
    memory_limit: int | None
    bisect: bool
    device: str
    threads: int | None
    share: tuple[int, int] | None = None
    tasks: int | None = None
    config: Path | None = None
    cluster: str | None = None
    overrides: tuple[str, ...] = ()
    detach: bool = False


def submitted(running: Running, cases: int) -> bool:
    """Hands the benchmark to a cluster where that is asked for: each task runs a share of the cases into a file of its
    own, for several nodes cannot add to one, and collecting puts them together. Whether it was asked for.

    Args:
        cases: how many there are to share out.

    Raises:
        UsageError: an earlier submission has left such files, and `--resume` is not given; or more tasks than cases.
        RunError: a task did not end well.
    """
    check_submission(running.cluster, running.overrides, running.detach)
    if running.cluster is None or running.dry_run:
        if running.tasks is not None and running.cluster is None:
            raise click.UsageError("--tasks is of use with --submit NAME only")
        return False
    from molprof.common.values import counted
    from molprof.profiler.cluster.job import Task
    from molprof.profiler.project import find_project

    assert running.output is not None
    output, count = running.output.absolute(), running.tasks or 1
    if count > cases:
        raise UsageError(
            f"--tasks {count} for {counted(cases, 'case')}: some would have none", f"--tasks {cases} at most"
        )
    parts = [output.with_name(f"{output.stem}.{number}-of-{count}{output.suffix}") for number in range(1, count + 1)]
    if not running.resume and (left := [part for part in parts if part.exists()]):
        raise UsageError(
            f"{left[0]} is of an earlier submission", hint="--resume goes on with it; else remove it or name another -o"
        )
    for part in parts if running.resume and output.exists() else ():
        if not part.exists():  # was collected: what is done is in the results
            shutil.copyfile(output, part)
    context = click.get_current_context()
    # A task that is requeued goes on where it was stopped.
    own = [*own_arguments(context), *([] if running.resume else ["--resume"])]
    tasks = [
        Task(
            f"share-{number}",
            ("bench", str(context.info_name), *own, "--share", f"{number}/{count}", "-o", str(part)),
            str(part),
        )
        for number, part in enumerate(parts, start=1)
    ]
    data = {"output": str(output), "parts": [str(part) for part in parts]}
    project = find_project(running.config)
    run_on_cluster(project, "bench", tasks, running.cluster, running.overrides, running.detach, data)
    if not running.detach:
        note(f"next: molprof bench show {shlex.quote(str(running.output))}")
    return True


def run(cases: Sequence[Case], facts: Facts, running: Running, worker: str | None = None) -> int:
    """Runs the cases, or lists them; the exit code. `worker`: another module than molprof's own that runs a case.

    Raises:
        RunError: cases failed, hung or had no memory, and no other one of them has figures in the file.
    """
    from molprof.common.values import counted
    from molprof.profiler.bench.answers import FAILED, HUNG, NO_MEMORY, OK, STATUSES
    from molprof.profiler.bench.cases import case_id
    from molprof.profiler.bench.isolate import WORKER, Limits
    from molprof.profiler.bench.records import Results
    from molprof.profiler.bench.schedule import Plan, default_memory, run_plan

    if running.share is not None:
        number, of = running.share
        cases = cases[number - 1 :: of]
    if running.dry_run:
        deliver(listed(cases, facts, running.repeats))
        return 0
    assert running.output is not None
    results = Results(running.output)
    if results.done.results and not running.resume:
        note(f"adding to the {results.done.results} results in {running.output}; --resume leaves out what is done")
    if running.resume:
        for count, how in results.done.elsewhere(set(map(case_id, cases)), facts.environment).values():
            found_there = f"{counted(count, 'result')} of these cases in {running.output}"
            note(f"{found_there}: not counted, for their environment was another one: {escaped(how)}")
    plan = Plan(
        cases=tuple(cases), repeats=running.repeats, seed=running.seed,
        limits=Limits(running.limit, running.memory_limit or default_memory()), resume=running.resume,
        retry=running.retry, bisect=running.bisect, command=("molprof", *sys.argv[1:]),
        worker=worker or WORKER,
    )  # fmt: skip
    lines = Lines()
    try:
        run_plan(plan, facts, results, lines, lines.begin)
    except KeyboardInterrupt:
        lines.clear()
        argument = [] if running.resume else ["--resume"]
        note(f"interrupted; results so far ({lines.done} of this run) are in {running.output}; go on with:")
        note(f"  {shlex.join(['molprof', *sys.argv[1:], *argument])}")
        return INTERRUPTED
    finally:
        results.close()
    if lines.done:
        found = (f"{lines.statuses[status]} {status}" for status in STATUSES if lines.statuses[status])
        note(f"results: {', '.join(found)}")
    else:
        note(f"nothing left to run: {running.output} has it all")
    note(f"next: molprof bench show {shlex.quote(str(running.output))}")
    bad = sum(lines.statuses[status] for status in (FAILED, HUNG, NO_MEMORY))
    if bad and not lines.statuses[OK] and not results.done.good(map(case_id, cases)):
        raise RunError(
            f"none of the cases has figures: {lines.last_problem}", hint="the file has all messages and stacks"
        )
    return 0


def listed(cases: Sequence[Case], facts: Facts, repeats: int) -> Document:
    """The cases, with the reasons of those that cannot run here."""
    from molprof.profiler.bench.cases import case_id
    from molprof.profiler.bench.facts import unsupported

    reasons = [unsupported(case, facts) for case in cases]
    able = reasons.count(None)
    rows = [
        {"id": case_id(case), "label": case.label(), "unsupported": reason}
        for case, reason in zip(cases, reasons, strict=True)
    ]
    where = facts.environment.get("gpu") or facts.environment.get("cpu") or facts.device
    summary = f"{able} of {len(cases)} cases can run on {facts.device} ({where}), each in {repeats} processes"
    columns = (Column("case"), Column("settings"), Column("unsupported here"))
    table = Table(columns, [tuple(row.values()) for row in rows], missing="")
    return Document("Benchmark cases", (Section("", table=table),), lambda: rows, summary=(summary,))


class Lines:
    """A line on stderr for each case that has ended, and on a terminal one for the case that runs."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self.statuses: Counter[str] = Counter()
        self.last_problem: str | None = None

    @property
    def done(self) -> int:
        """Results so far."""
        return self.statuses.total()

    def begin(self, case: Case, number: int, of: int) -> None:
        """A case is about to run."""
        if self._live:
            self._stream.write(f"\r\x1b[2K[{number}/{of}] running {escaped(case.label())}")
            self._stream.flush()

    def clear(self) -> None:
        """Takes away the line of the running case."""
        if self._live:
            self._stream.write("\r\x1b[2K")

    def __call__(self, step: Step) -> None:
        self.statuses[step.status] += 1
        self.clear()
        width = len(str(step.of))
        label = escaped(step.case.label())
        text = f"[{step.number:>{width}}/{step.of}] {step.status:<13} {label:<{_LABEL_LENGTH}} {duration(step.seconds)}"
        if step.rest_s:
            text += f", about {duration(step.rest_s)} left"
        if step.message:
            self.last_problem = escaped(step.message)
            text += f"\n{' ' * (2 * width + 4)}{escaped(step.message)}"
        self._stream.write(text + "\n")
        self._stream.flush()


def duration(seconds: float) -> str:
    """Seconds in the unit that suits."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < _HOUR else f"{seconds / 3600:.1f} h"
