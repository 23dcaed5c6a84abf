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
from molprof.commands.inputs import PARTIAL_HINT
from molprof.commands.options import (
    FOLDER,
    PARQUET,
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
from molprof.commands.submission import ReadSubmission, Submittable, own_arguments, read_submit_options, submit_command
from molprof.common.errors import TraceError, UsageError
from molprof.common.values import counted

if TYPE_CHECKING:
    from molprof.common.jobs.job import Task


@click.command("ranks", cls=Submittable)
@click.argument("traces", type=TRACE, nargs=-1, required=True, metavar="DIR|TRACE...")
@click.option(
    "--parts", type=FOLDER, metavar="DIR",
    help="Keep what is read of each rank in DIR, which may be s3:// or gs://, and read only what is not there yet.",
)  # fmt: skip
@uncached_options
@result_options(PARQUET, *PLOT_FORMATS)
@read_submit_options
@click.pass_context
def command(
    context: click.Context,
    /,
    traces: Sequence[Path],
    parts: Path | None,
    reading: Reading,
    result: ResultOptions,
    submission: ReadSubmission,
) -> int:
    """Show the ranks of a distributed job side by side: compute, communication, waiting for each other, idle.

    Give the folder with one trace of each rank, or the traces, or one trace merged from those of all ranks. A file's
    rank is read from its content (distributedInfo), whatever its name. The clocks are aligned by collectives.

    With --on, others read the ranks, and this command puts them together. With --submit, it need not wait: a job array
    reads the ranks that --parts lacks, one in each task.

    The formats png, svg and pdf are a timeline of all ranks; parquet has a row for each rank and step. The exit code
    is 3 if a file cannot be read, which stops no other, or times do not add up.

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
            from molprof.common.jobs.status import unfinished

            outputs = {task.output for task in tasks}
            busy = Counter(unfinished(submission.jobs, outputs).values())
            for job, count in busy.items():
                text = f"{job} has not read {counted(count, 'file')} yet"
                raise UsageError(text, hint=f"molprof jobs collect {job} --wait, then repeat the command")
            submit_command(submission, "ranks", tasks, {"parts": str(parts.absolute())})
        if submission.detach:
            return 0
    return show_ranks(traces, reading, result, submission, parts)


def _tasks(traces: Sequence[Path], parts: Path, partial: bool, words: Sequence[str]) -> list[Task]:
    """One task for each file whose part is missing: the same command for it alone, which leaves its part."""
    from molprof.analysis.ranks.files import is_part, known_ranks, rank_files, ranks_path
    from molprof.analysis.reader.parts import digest_of
    from molprof.common.jobs.job import Task

    files = [item for item in rank_files(traces)[0] if not is_part(item)]
    missing = [item for item in files if known_ranks(parts, item, partial) is None]
    note(f"{parts} has {len(files) - len(missing)} of {counted(len(files), 'file')}")
    return [
        Task(
            item.name.split(".")[0],
            ("ranks", str(item), *words, "--parts", str(parts)),
            str(ranks_path(parts, digest, partial)),
        )
        for item in missing
        if (digest := digest_of(item)) is not None
    ]


def rank_inputs(traces: Sequence[Path], output: Path | None) -> list[Path]:
    """Return the input files, which OUT must not replace.

    The traces, and OUT itself where it is a trace in one of the folders.
    """
    from molprof.analysis.reader.source import is_trace

    if output is None or not output.is_file():
        return []
    inside = any(folder.resolve() in output.resolve().parents for folder in traces if folder.is_dir())
    return [*traces, output] if inside and is_trace(output) else [*traces]


def show_ranks(
    traces: Sequence[Path],
    reading: Reading,
    result: ResultOptions,
    submission: ReadSubmission,
    parts: Path | None = None,
) -> int:
    """Write the document or the timeline of ranks; the exit code."""
    from molprof.analysis.documents.ranks import rank_frame, ranks_document
    from molprof.analysis.query import check_parquet, frame_to_parquet

    if result.style == PARQUET:
        check_parquet()
    progress = Counting("file")
    try:
        with submission.executor("ranks") as executor:
            job = api.ranks(traces, reading, parts=parts, progress=progress, executor=executor)
    finally:
        progress.clear()
    if result.style == PARQUET:
        write(frame_to_parquet(rank_frame(job)), result.output)
    elif result.style in PLOT_FORMATS:
        from molprof.analysis.documents.plots import plot_file

        write(plot_file("ranks", job, result.style), result.output)
    else:
        result.deliver(ranks_document(job))
    if job.unread:
        raise TraceError(job.remarks[0], hint=PARTIAL_HINT)
    return 0 if all(check.holds for check in job.checks) else 3
