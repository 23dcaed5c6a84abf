"""`molprof history`: results over time in a folder or a bucket, and changes of figures."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import click

from molprof.analysis.reader import Reading
from molprof.analysis.reader.remote import remote_text
from molprof.commands.command import Command, CommandGroup
from molprof.commands.inputs import expanded
from molprof.commands.options import (
    FOLDER,
    TRACE,
    Read,
    ResultOptions,
    judged,
    make_folder,
    note,
    number_option,
    reading_options,
    refuse_streams,
    result_options,
)
from molprof.common.errors import TraceError, UsageError
from molprof.common.values import counted

# Of a file of results of a benchmark.
_BENCHMARK = ".jsonl"


def _utc(text: str) -> str:
    """Return a time in ISO format, as UTC; without a zone it is UTC already. Raises ValueError."""
    try:
        time = datetime.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"{text!r} is no time, such as 2026-11-28T03:00 or 2026-11-28T03:00:00+01:00") from None
    zone = datetime.timezone.utc
    return (time if time.tzinfo else time.replace(tzinfo=zone)).astimezone(zone).isoformat()


@click.group("history", cls=CommandGroup)
def command() -> None:
    """Keep results over time, and show where figures changed, and what else did.

    \b
    Examples:
      molprof history add trace.json.gz --to history --name nightly
      molprof history show history
    """


@command.command("add", cls=Command)
@click.argument("results", type=TRACE, nargs=-1, required=True, metavar="RESULT...")
@click.option("--to", "folder", type=FOLDER, required=True, metavar="FOLDER", help="Folder, or s3:// or gs:// address.")
@click.option("--name", help="Results of one name are compared.  [default: the run's, or the file's]")
@click.option("--commit", help="Commit that was measured.  [default: that of git, with -dirty if files differ]")
@click.option(
    "--time",
    type=Read(_utc),
    metavar="TIME",
    help="ISO time of the result, UTC unless given a zone.  [default: now]",
)
@reading_options
def add_command(
    results: Sequence[Path], folder: Path, name: str | None, commit: str | None, time: str | None, reading: Reading
) -> None:
    """Add RESULTs to the history in FOLDER: their figures, settings, environment and first finding, 5 kB each.

    RESULT is a trace, a report stored with --format json, a row that molprof report rows --parts kept, or a file of
    molprof bench masks -o, whose engines, schemas and rows have a name each. A RESULT that is in FOLDER already is not
    added again.

    \b
    Examples:
      molprof history add trace.json.gz --to history --name nightly
      molprof history add trace.json.gz --to s3://bucket/history --commit "$GITHUB_SHA"
    """
    results = expanded(results, stored=True)
    refuse_streams(*results)
    from molprof.analysis.fleet.history import add, commit_here, entries_of_masks, entry_of
    from molprof.analysis.fleet.rows import Fleet, each_row
    from molprof.analysis.reader.parts import digest_of

    make_folder(folder, "--to")
    commit, failed = commit or commit_here(), []
    of_benchmarks = [path for path in results if path.suffix == _BENCHMARK]
    traces = [path for path in results if path not in of_benchmarks]
    rows = zip(traces, each_row(traces, reading, Fleet()), strict=True)
    for path, row in chain(((path, None) for path in of_benchmarks), rows):
        when = time or datetime.datetime.now(datetime.timezone.utc).isoformat()
        try:
            if row is None:
                entries = entries_of_masks(path, digest_of(path) or "", name, when, commit)
            else:
                entries = [entry_of(row, row.digest or digest_of(path), name, when, commit)]
        except TraceError as problem:
            failed.append(problem)
            note(str(problem))
            continue
        for entry in entries:
            said = "added to" if add(folder, entry) else "is already in"
            note(f"{entry.file} {said} {remote_text(folder)}: {entry.name}")
    if failed:
        raise TraceError(f"{len(failed)} of {counted(len(results), 'result')} could not be read, first {failed[0]}")


@command.command("show", cls=Command)
@click.argument("folder", type=FOLDER)
@click.option("--name", "names", multiple=True, help="Show the results of this name alone. Repeatable.")
@click.option(
    "--fail-if", "thresholds", multiple=True, metavar="THRESHOLD",
    help="Exit with 1 if a change point is beyond it, such as 'wall_ns>+5%' or 'launches_per_token>30'. Repeatable.",
)  # fmt: skip
@number_option("--last", "recent", help="With --fail-if: judge changes at the last N results of a name alone.")
@result_options()
def show_command(
    folder: Path, names: Sequence[str], thresholds: Sequence[str], recent: int | None, result: ResultOptions
) -> int:
    """Show where figures of the results in FOLDER changed, with the commit, environment and first finding there.

    Change points are found by Apache Otava, a program in an environment of its own: pipx install apache-otava, or
    MOLPROF_OTAVA='uvx --from apache-otava otava'. As html it is a page with a plot of each figure.

    \b
    Examples:
      molprof history show history
      molprof history show history -o history.html
      molprof history show s3://bucket/history --name nightly --fail-if 'wall_ns>+5%' --last 14
    """
    result.check()
    from molprof.analysis.compare.thresholds import parse_threshold
    from molprof.analysis.documents.history import history_document
    from molprof.analysis.fleet.history import entries
    from molprof.analysis.history import histories, judge_changes

    bounds = [parse_threshold(text) for text in thresholds]
    if any(bound.figure is None for bound in bounds):
        raise UsageError("a change point has no uncertainty", hint="--fail-if 'wall_ns>+5%'")
    kept = list(entries(folder))
    kept_names = sorted({entry.name for entry in kept})
    if unknown := [name for name in names if name not in kept_names]:
        raise UsageError(f"no results of the name {unknown[0]!r}", hint=f"names: {', '.join(kept_names)}")
    by_name = histories(entry for entry in kept if not names or entry.name in names)
    result.deliver(history_document(by_name, remote_text(folder)))
    return judged(judge_changes(by_name, bounds, recent))
