"""`molprof open`: a trace, or two side by side, in the Perfetto UI on this machine."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from molprof import api
from molprof.analysis.reader import Reading
from molprof.commands.command import Command
from molprof.commands.options import TRACE, note, number_option, refuse_streams, uncached_options
from molprof.common.text import escaped


@click.command("open", cls=Command)
@click.argument("traces", type=TRACE, nargs=-1, required=True, metavar="TRACE...")
@number_option("--step", least=0, help="Zoom to step N, not to a typical one.")
@number_option("--molecule", least=0, help="Zoom to answer N, a molecule or another text; show its track first.")
@number_option("--token", least=0, help="Zoom to the token at position N.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="[default: any free port]")
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
@click.option("--remote", is_flag=True, help="Keep the trace in molprof, not in the browser: for gigabytes.")
@click.option("--no-stacks", is_flag=True, help="Leave out Python stacks, often most events of a trace.")
@uncached_options
def command(
    traces: Sequence[Path],
    step: int | None,
    molecule: int | None,
    token: int | None,
    port: int,
    no_browser: bool,
    remote: bool,
    no_stacks: bool,
    reading: Reading,
) -> None:
    """Show TRACE in the Perfetto UI, in your browser. It is served from this machine; nothing is sent to another one.

    Steps, phases, tokens, GPU streams, idle time and host syncs are pinned on top, zoomed to a typical step. Of
    two traces one timeline shows both, aligned at their first steps. The ranks of a distributed job, as several traces
    or the folder with them, are shown on one clock, as molprof ranks aligns them. Ctrl-C ends the server.

    \b
    Examples:
      molprof open trace.json.gz
      molprof open trace.json.gz --step 12
      molprof open trace.json.gz --molecule 3 --token 40
      molprof open before.json.gz after.json.gz
      molprof open ranks/ --no-stacks
      molprof open trace.json.gz --no-browser --port 8080
      molprof open huge.json.gz --remote --no-stacks
    """
    paths = list(traces)
    refuse_streams(*paths)
    if token is not None and step is not None:
        raise click.UsageError("--token and --step exclude each other")
    from molprof.analysis.ui.contents import ViewTarget
    from molprof.analysis.ui.prepare import load_for_remote, prepare
    from molprof.analysis.ui.server import UiServer

    paths, clocks = _ranks(paths, reading)
    read = [api.load(path, replace(reading, stacks=not no_stacks)) for path in paths]
    with tempfile.TemporaryDirectory(prefix="molprof-open-") as folder, ExitStack() as stack:
        note(f"reading {' and '.join(map(str, paths)) if len(paths) < 3 else f'{len(paths)} traces'}")
        prepared = prepare(read, Path(folder), ViewTarget(step, token, molecule), clocks, remote)
        note(*prepared.notes)
        engine = None
        if remote:
            note("loading the trace for the browser")
            engine = stack.enter_context(load_for_remote(prepared, reading.native_path))
        with UiServer(prepared, port, engine) as server:
            click.echo(escaped(server.address))
            sys.stdout.flush()
            if connection := os.environ.get("SSH_CONNECTION"):
                parts = connection.split()  # address and port of the client, then of the server
                host = shlex.quote(f"{getpass.getuser()}@{parts[2] if len(parts) > 2 else 'HOST'}")
                forward = f"ssh -N -L {server.port}:127.0.0.1:{server.port} {host}"
                note(f"on your own machine: {forward}, then open the address there")
            elif not no_browser and not _opened(server.address):
                note("no browser could be started: open the address in one")
            note("Ctrl-C ends it")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                if engine is not None and engine.is_relaying:
                    note("waiting for a query of the page; Ctrl-C again ends it")
                note("ended")


def _ranks(paths: list[Path], reading: Reading) -> tuple[list[Path], tuple[tuple[str, int], ...] | None]:
    """Return the files of ranks, and each one's label and clock offset in ns; other paths unchanged, with None.

    Raises UsageError for more than two traces that are not of ranks.
    """
    if len(paths) < 3 and not paths[0].is_dir():
        from molprof.analysis.ranks.read import told_rank

        numbers = {told_rank(path) for path in paths if path.is_file()}
        if len(paths) == 1 or len(numbers - {None}) < 2:
            return paths, None
    note("aligning the clocks of the ranks")
    job = api.ranks(paths, reading)
    note(*job.remarks)
    clocks = job.clocks.offsets_ns
    labelled = tuple((f"rank {rank.rank}", clocks[rank.rank]) for rank in job.ranks)
    return [Path(rank.path) for rank in job.ranks], labelled


def _opened(address: str) -> bool:
    """Open a browser and return True if one started; none that runs in the terminal, which it would take over."""
    import webbrowser

    has_display = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return has_display and webbrowser.open(address)
