"""Cases of sweeps and benchmarks: shared options, and running them here."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molprof.commands.options import Read, declared, note, number_option
from molprof.commands.progress import CaseLines
from molprof.commands.run_options import pair
from molprof.commands.submission import Submission, submit_command, submit_options
from molprof.common.errors import RunError, UsageError
from molprof.common.files import remove_stale
from molprof.common.process import OK, UNSUPPORTED

if TYPE_CHECKING:
    from molprof.profiler.bench.facts import CaseFacts
    from molprof.profiler.bench.schedule import SchedulePlan

_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _bytes(value: str) -> int:
    """Return a number of bytes, with K, M, G or T for powers of 1000."""
    text = value.strip().upper().removesuffix("B").removesuffix("I")
    unit = text[-1:] if text[-1:] in _SIZES else ""
    try:
        size = round(float(text.removesuffix(unit)) * _SIZES[unit])
    except (ValueError, OverflowError):
        raise ValueError(f"{value!r} is not a size such as 12G") from None
    if size <= 0:
        raise ValueError(f"{value!r} is not above 0")
    return size


@dataclass(frozen=True)
class Cases:
    """Options of sweeps and benchmarks on how their cases run."""

    # fmt: off
    memory_limit: int | None = declared(
        "--memory-limit", type=Read(_bytes), metavar="SIZE",
        help="Kill a case that has more resident memory, such as 12G.  [default: 80 % of what is free]")
    bisect: bool = declared(
        "--no-bisect", "bisect", flag_value=False, default=True,
        help="Do not search for the largest batch that fits if a case is out of memory.")
    share: tuple[int, int] | None = declared(
        "--share", type=pair("K/N", "1/4", least=1),
        help="Run every N-th case, from the K-th on. Of masks: every N-th --schemas, with each engine.")
    submission: Submission = declared(submit_options)
    tasks: int | None = declared(number_option(
        "--tasks", help="With --submit: split the cases into N tasks of a job array, each on one node."))
    # fmt: on

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        if self.share is not None and self.submission.cluster is not None:
            raise click.UsageError("--share selects cases to run here; on a cluster, use --tasks N")
        if self.tasks is not None and self.submission.cluster is None:
            raise click.UsageError("--tasks requires --submit NAME")


def run_here(plan: SchedulePlan, facts: CaseFacts | None, output: Path) -> CaseLines | None:
    """Run the cases of a plan, and add their results to the file; return None if interrupted."""
    from molprof.profiler.bench.schedule import run_plan
    from molprof.profiler.jobs.results_file import ResultsFile

    lines = CaseLines()
    with contextlib.closing(ResultsFile(output)) as results:
        try:
            for step in run_plan(plan, facts, results, lines.begin):
                lines(step)
        except KeyboardInterrupt:
            lines.clear()
            done = lines.statuses.total()
            note(f"interrupted; {output} has the results so far ({done} of this run); continue with:")
            note(f"  {shlex.join([*plan.command, *([] if '--resume' in plan.command else ['--resume'])])}")
            return None
        finally:  # a case is killed at its limit and by an interrupt, in the middle of a file too
            remove_stale(output.parent)
    return lines


def told(lines: CaseLines, output: Path, following: Sequence[str], had_figures: bool) -> None:
    """Print the outcome of the cases and the command that shows them. Raises RunError if none was ever measured."""
    if lines.statuses:
        note(f"results: {', '.join(f'{count} {state}' for state, count in sorted(lines.statuses.items()))}")
    else:
        note(f"nothing left to run: {output} has all results")
    note(f"next: {shlex.join(following)}")
    if lines.statuses.keys() - {OK, UNSUPPORTED} and not lines.statuses[OK] and not had_figures:
        raise RunError(
            f"none of the cases has figures: {lines.last_problem}", hint="the file has all messages and stacks"
        )


def submit_shares(cases: Cases, kind: str, words: Sequence[str], output: Path, resume: bool, folder: str = "") -> None:
    """Submit the command as one task, so that one node measures all cases, or as N of them, each with its share.

    A share has a file of its own beside `output`, which is read with it. A task that is requeued continues.

    folder: what the command's -o names in place of that file.
    """
    from molprof.common.bench_records import part_path
    from molprof.common.jobs.job import Task

    count, tasks = cases.tasks or 1, []
    for number in range(1, count + 1):
        part = part_path(output, (number, count))
        if part.exists() and not resume:
            raise UsageError(
                f"{part} exists from an earlier submission",
                hint="--resume continues it; else delete it or use another -o",
            )
        line = (*words, "--resume", "--share", f"{number}/{count}", "-o", folder or str(part))
        tasks.append(Task(f"share-{number}", line, str(part)))
    submit_command(cases.submission, kind, tasks, {"output": str(output), "folder": str(output.parent)})
