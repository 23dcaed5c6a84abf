"""`molprof mcp`: an MCP server over stdio, through which an assistant reads traces."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

import click

from molprof.commands.command import Command
from molprof.common.errors import MissingExtraError
from molprof.common.files import check_stdin, writing_stdout


@click.command("mcp", cls=Command)
@click.argument(
    "folders", type=click.Path(exists=True, file_okay=False, path_type=Path), nargs=-1, required=True, metavar="DIR..."
)
def command(folders: tuple[Path, ...]) -> None:
    """Serve the traces below each DIR to an assistant, by the Model Context Protocol on stdin and stdout.

    The assistant's program starts this command. Its tools are traces, report, compare, queries, query, origin, path,
    shape, memory, ranks, predict and bench. They read files below DIR alone, links followed, and write nothing but
    molprof's cache of reports. SQL can only select. Figures come with their certainty, those of report with the SQL
    that gives them. Answers are bounded, and say what they left out.
    Requires molprof[mcp].

    \b
    Examples:
      molprof mcp runs
      molprof mcp /data/traces /data/more-traces
    \b
    In the configuration of an assistant (.mcp.json, or where it lists mcpServers):
      {"mcpServers": {"molprof": {"command": "molprof", "args": ["mcp", "/data/traces"]}}}
    """
    if importlib.util.find_spec("mcp") is None:
        raise MissingExtraError("mcp", "mcp", "molprof mcp")
    check_stdin()
    with writing_stdout():
        pass
    from molprof.commands.mcp_server import Folders, RequestLines, make_server

    sys.stdin = io.TextIOWrapper(io.BufferedReader(RequestLines(sys.stdin.buffer)), "utf-8")
    make_server(Folders(folders)).run("stdio")
