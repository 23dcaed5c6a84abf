"""Run the cases of a benchmark, list them, or submit them to a cluster."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molprof.commands.options import Result, note
from molprof.commands.progress import Lines, duration, time_left
from molprof.commands.submission import Submission, own_arguments, submit_command
from molprof.common.bench_records import FAILED, HUNG, NO_MEMORY, OK, STATUSES
from molprof.common.document import Column, Document, Section, Table
from molprof.common.errors import RunError, UsageError
from molprof.common.text import escaped

if TYPE_CHECKING:
    from molprof.profiler.bench.cases import Case
    from molprof.profiler.bench.facts import Facts
    from molprof.profiler.bench.schedule import Step

_LABEL_LENGTH = 52


@dataclass(frozen=True)
class Running:
    """The values of `RUNNING_OPTIONS`."""

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
    submission: Submission = field(default_factory=Submission)


def submitted(running: Running, cases: int) -> bool:
    """Submit the benchmark if that is asked for, and return whether it was.

    Each task runs a share of the cases into a file of its own, because several nodes cannot append to one file.
    Collecting puts the files together.
    """
    submission = running.submission
    if running.tasks is not None and submission.cluster is None:
        raise click.UsageError("--tasks requires --submit NAME")
    if submission.cluster is None or running.dry_run:
        return False
    from molprof.common.values import counted
    from molprof.profiler.cluster.job import Task

    assert running.output is not None
    output, count = running.output.absolute(), running.tasks or 1
    if count > cases:
        raise UsageError(
            f"--tasks {count} for {counted(cases, 'case')}: some would have none", f"use at most --tasks {cases}"
        )
    parts = [output.with_name(f"{output.stem}.{number}-of-{count}{output.suffix}") for number in range(1, count + 1)]
    if not running.resume and (left := [part for part in parts if part.exists()]):
        raise UsageError(
            f"{left[0]} exists from an earlier submission",
            hint="--resume continues it; else delete it or use another -o",
        )
    for part in parts if running.resume and output.exists() else ():
        if not part.exists():  # collected and deleted: its results are in the output
            shutil.copyfile(output, part)
    context = click.get_current_context()
    # A task that is requeued continues where it was stopped.
    own = ["bench", str(context.info_name), *own_arguments(context, "tasks", "output", "resume"), "--resume"]
    tasks = [
        Task(f"share-{number}", (*own, "--share", f"{number}/{count}", "-o", str(part)), str(part))
        for number, part in enumerate(parts, start=1)
    ]
    submit_command(submission, "bench", tasks, {"output": str(output), "parts": [str(part) for part in parts]})
    if not submission.detach:
        note(f"next: molprof bench show {shlex.quote(str(running.output))}")
    return True


def run(cases: Sequence[Case], facts: Facts, running: Running, worker: str | None = None) -> int:
    """Run the cases, or list them; return the exit code. `worker` replaces molprof's own."""
    from molprof.common.values import counted
    from molprof.profiler.bench.cases import case_id
    from molprof.profiler.bench.isolate import WORKER, Limits
    from molprof.profiler.bench.results_file import ResultsFile
    from molprof.profiler.bench.schedule import Plan, default_memory, run_plan

    if running.share is not None:
        number, of = running.share
        cases = cases[number - 1 :: of]
    if running.dry_run:
        Result().deliver(listed(cases, facts, running.repeats))
        return 0
    assert running.output is not None
    results = ResultsFile(running.output)
    if results.before.results and not running.resume:
        count = len(results.before.results)
        note(f"adding to {counted(count, 'result')} in {running.output}; --resume leaves out what is done")
    if running.resume:
        for count, how in results.elsewhere(set(map(case_id, cases)), facts.environment).values():
            found = f"{counted(count, 'result')} of these cases in {running.output}"
            note(f"{found}: not counted, because their environment differs: {escaped(how)}")
    plan = Plan(
        cases=tuple(cases), repeats=running.repeats, seed=running.seed,
        limits=Limits(running.limit, running.memory_limit or default_memory()), resume=running.resume,
        retry=running.retry, bisect=running.bisect, command=("molprof", *sys.argv[1:]),
        worker=worker or WORKER,
    )  # fmt: skip
    lines = CaseLines()
    try:
        run_plan(plan, facts, results, lines, lines.begin)
    except KeyboardInterrupt:
        lines.clear()
        argument = [] if running.resume else ["--resume"]
        done = lines.statuses.total()
        note(f"interrupted; {running.output} has the results so far ({done} of this run); continue with:")
        note(f"  {shlex.join(['molprof', *sys.argv[1:], *argument])}")
        return 130
    finally:
        results.close()
    if lines.statuses:
        ended = (f"{lines.statuses[status]} {status}" for status in STATUSES if lines.statuses[status])
        note(f"results: {', '.join(ended)}")
    else:
        note(f"nothing left to run: {running.output} has all results")
    note(f"next: molprof bench show {shlex.quote(str(running.output))}")
    bad = sum(lines.statuses[status] for status in (FAILED, HUNG, NO_MEMORY))
    if bad and not lines.statuses[OK] and not results.has_figures(set(map(case_id, cases))):
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


class CaseLines(Lines):
    """A line on stderr for each case that has ended; on a terminal, one for the running case too."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: Counter[str] = Counter()
        self.last_problem: str | None = None

    def begin(self, case: Case, number: int, of: int) -> None:
        self.draw(f"[{number}/{of}] running {escaped(case.label())}")

    def __call__(self, step: Step) -> None:
        self.statuses[step.status] += 1
        width = len(str(step.of))
        label = escaped(step.case.label())
        text = f"[{step.number:>{width}}/{step.of}] {step.status:<13} {label:<{_LABEL_LENGTH}} {duration(step.seconds)}"
        if step.rest_s:
            text += time_left(step.rest_s)
        if step.message:
            self.last_problem = escaped(step.message)
            text += f"\n{' ' * (2 * width + 4)}{self.last_problem}"
        self.line(text)
