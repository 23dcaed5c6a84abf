"""`molprof join`: put samples of a process that was not profiled into a trace."""

from __future__ import annotations

from pathlib import Path

import click

from molprof.commands.command import Command
from molprof.commands.options import TRACE, file_option, note, refuse_streams
from molprof.common.files import check_output
from molprof.common.values import bytes_text, counted, time_text


@click.command("join", cls=Command)
@click.argument("trace", type=TRACE)
@click.argument("samples", type=TRACE)
@click.option(
    "--starts-at",
    metavar="TIME",
    help="When the first sample was taken: +1.5s since the trace's first event, a time such as 2026-01-31T12:00:00.25,"
    " or Unix time.  [default: as the samples say, or by the time at which their file was written]",
)
@file_option(".json", ".json.gz")
def command(trace: Path, samples: Path, starts_at: str | None, output: Path, force: bool) -> None:
    """Put SAMPLES of a process that was not profiled into TRACE, as tracks of their own.

    So a running server is explained without a restart: its scheduler is sampled while the model's worker is profiled.
    SAMPLES are of py-spy, of any profiler that writes speedscope's JSON, of perf script, or lines of a time in s and a
    stack. They count as no event of the trace; molprof report says what share of them is in functions of masks while
    the model waits, and Perfetto shows them.

    py-spy's speedscope has no moments, but counts samples. Take its chrometrace:
    py-spy record --idle --rate 200 --duration 10 --format chrometrace -o scheduler.json --pid 4711

    \b
    Examples:
      molprof join trace.json.gz scheduler.json -o both.json.gz
      molprof join trace.json.gz scheduler.json --starts-at +0.8s -o both.json.gz
    """
    refuse_streams(trace, samples)
    check_output(output, force, [trace, samples])
    from molprof.analysis.join import join

    joined = join(trace, samples, output, starts_at, force)
    count = sum(len(thread.spans) for thread in joined.samples.threads)
    threads = counted(len(joined.samples.threads), "thread")
    note(f"{counted(count, 'sample')} of {threads}, {time_text(joined.sampled_ns)}")
    if not joined.samples.is_placed:
        note(
            "their end is taken to be the time at which the file was written, which may be seconds late: --starts-at"
            " says when they began"
        )
    note(f"{time_text(joined.overlap_ns)} of them are in the time of the trace's events")
    note(f"wrote {output} ({bytes_text(output.stat().st_size)}); next: molprof report {output}")
