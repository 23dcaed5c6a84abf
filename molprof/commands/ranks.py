"""`molprof ranks`: the ranks of a distributed job side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molprof import api
from molprof.analysis.reader import Reading
from molprof.analysis.reader.remote import is_remote
from molprof.commands.options import (
    FOLDER,
    PLOT_FORMATS,
    TRACE,
    ResultOptions,
    make_folder,
    note,
    result_options,
    uncached_options,
    write,
)
from molprof.commands.progress import Counting
from molprof.commands.submission import Submission, Submittable, own_arguments, submit_command, submit_options
from molprof.common.errors import UsageError
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.profiler.jobs.job import Task


@click.command("ranks", cls=Submittable)
@click.argument("traces", type=TRACE, nargs=-1, required=True, metavar="DIR|TRACE...")
@click.option(
    "--parts", type=FOLDER, metavar="DIR",
    help="Keep what is read of each rank in DIR, a folder or an s3:// or gs:// address; read what is not there yet.",
)  # fmt: skip
@uncached_options
@result_options(*PLOT_FORMATS)
@submit_options
@click.pass_context
def command(
    context: click.Context,
    /,
    traces: Sequence[Path],
    parts: Path | None,
    reading: Reading,
    result: ResultOptions,
    submission: Submission,
) -> int:
    """Show the ranks of a distributed job side by side: compute, communication, waiting for each other, idle.

    Give the folder with one trace of each rank, or the traces, or one trace merged from those of all ranks. A file's
    rank is read from its content (distributedInfo), whatever its name. The clocks are aligned by collectives.

    With --submit, a job array reads the ranks that --parts lacks, one in each task. This command puts them together.

    The formats png, svg and pdf are a timeline of all ranks. The exit code is 3 if times do not add up.

    \b
    Examples:
      molprof ranks traces/
      molprof ranks rank0.json.gz rank1.json.gz
      molprof ranks traces/ --format json | jq '.steps[].stragglers[0]'
      molprof ranks traces/ -o ranks.html
      molprof ranks traces/ -o ranks.png
      molprof ranks traces/ --parts parts/ --submit slurm --slurm parallel=16
      molprof ranks parts/
      molprof ranks traces/ --parts s3://bucket/parts
    """
    if submission.cluster is not None and parts is None:
        raise click.UsageError("--submit requires --parts DIR, a folder that the cluster's nodes see")
    result.check(rank_inputs(traces, result.output))
    if submission.cluster is not None and is_remote(parts):
        raise UsageError("tasks of a cluster leave their parts in a folder", hint="--parts DIR, on a shared disk")
    if parts is not None:
        make_folder(parts, "--parts")
    if submission.cluster is not None and parts is not None:
        tasks = _tasks(traces, parts, reading.partial, own_arguments(context, "output", "force", "style", "parts"))
        if tasks:
            from molprof.profiler.jobs.status import unfinished

            outputs = {task.output for task in tasks}
            busy = Counter(unfinished(submission.jobs, outputs).values())
            for job, count in busy.items():
                text = f"{job} has not read {counted(count, 'file')} yet"
                raise UsageError(text, hint=f"molprof jobs collect {job} --wait, then repeat the command")
            submit_command(submission, "ranks", tasks, {"parts": str(parts.absolute())})
        if submission.detach:
            return 0
    return show_ranks(traces, reading, result, parts)


def _tasks(traces: Sequence[Path], parts: Path, partial: bool, words: Sequence[str]) -> list[Task]:
    """One task for each file whose part is missing: the same command for it alone, which leaves its part."""
    from molprof.analysis.ranks.files import is_part, known_ranks, part_path, rank_files
    from molprof.profiler.jobs.job import Task

    files = [item for item in rank_files(traces)[0] if not is_part(item)]
    missing = [item for item in files if known_ranks(parts, item, partial) is None]
    note(f"{parts} has {len(files) - len(missing)} of {counted(len(files), 'file')}")
    return [
        Task(item.name.split(".")[0], ("ranks", str(item), *words, "--parts", str(parts)), str(part_path(parts, item)))
        for item in missing
    ]


def rank_inputs(traces: Sequence[Path], output: Path | None) -> list[Path]:
    """Return the files that OUT must not replace.

    The traces, and OUT itself where it is a trace in one of the folders.
    """
    from molprof.analysis.reader.source import is_trace

    if output is None or not output.is_file():
        return []
    inside = any(folder.resolve() in output.resolve().parents for folder in traces if folder.is_dir())
    return [*traces, output] if inside and is_trace(output) else [*traces]


def show_ranks(traces: Sequence[Path], reading: Reading, result: ResultOptions, parts: Path | None = None) -> int:
    """Write the document or the timeline of ranks; the exit code."""
    from molprof.analysis.documents.ranks import ranks_document

    progress = Counting("file")
    try:
        job = api.ranks(traces, reading, parts=parts, progress=progress)
    finally:
        progress.clear()
    if result.style in PLOT_FORMATS:
        from molprof.analysis.documents.plots import plot_file

        write(plot_file("ranks", job, result.style), result.output)
    else:
        result.deliver(ranks_document(job))
    return 0 if all(check.holds for check in job.checks) else 3
