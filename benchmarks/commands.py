#!/usr/bin/env python3
"""CPU time and memory of every command that reads a trace, for traces of odd shapes or your own.

    python benchmarks/commands.py TRACE... [--only report,module] [--limit 60] [--memory 2e9]

A command that takes more than a limit is ended, and its cell says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from read import Measured, environment, read
from readers import Tool
from shared import parser, table

_OPEN = """
import sys, tempfile
from pathlib import Path
from molprof.analysis.trace import Trace
from molprof.analysis.ui.prepare import prepare
from molprof.analysis.ui.contents import ViewTarget
with tempfile.TemporaryDirectory() as folder, Trace(Path(sys.argv[1])) as trace:
    prepare([trace], Path(folder), ViewTarget(None, None, None))
"""
# Every table of the SQL package, one after the other.
_QUERY = """
import sys
from molprof import load
from molprof.queries.catalog import catalog
with load(sys.argv[1]) as trace:
    for module in catalog().values():
        for entry in module.entries:
            if entry.kind != "function":
                trace.sql(f"SELECT * FROM {entry.name}")
"""


def tools(folder: Path) -> dict[str, Tool]:
    """Return the commands by short name; what they write goes to the folder."""
    out = ("-o", str(folder / "out.json"), "--force")
    kinds = ("module", "kernel", "shape", "path", "memory")
    return {
        "report": Tool("report", arguments=("report", "--no-cache")),
        **{kind: Tool(f"report by {kind}", arguments=("report", "by", kind)) for kind in kinds},
        "compare": Tool("compare --by kernel", arguments=("compare", "--by", "kernel", "--anyway", "{}")),
        "ranks": Tool("ranks", arguments=("ranks",)),
        "open": Tool("open", _OPEN),
        "query": Tool("query", _QUERY),
        "export": Tool("export", arguments=("export", *out)),
        "trim": Tool("trim", arguments=("trim", "--from", "1ms", *out)),
    }


def twice(path: Path, folder: Path) -> Path:
    """Return a folder with the trace as that of two ranks."""
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank{rank}{''.join(path.suffixes)}").symlink_to(path.resolve())
    return folder


def cell(done: Measured) -> str:
    """Return CPU seconds and megabytes, or why there are none; a trace may lack what a command shows."""
    if done.failure is not None:
        return done.failure.replace("|", "/")
    return f"{done.cpu_s:.1f} s, {done.peak_bytes / 1e6:.0f} MB"


def main() -> None:
    made = parser(__doc__)
    made.add_argument("traces", type=Path, nargs="+")
    made.add_argument("--only", help="short names of commands, separated by commas")
    made.add_argument("--limit", type=float, default=120.0, help="seconds of a command")
    made.add_argument("--memory", type=float, default=4e9, help="bytes of a command")
    made.set_defaults(peers=sys.executable)
    options: argparse.Namespace = made.parse_args()
    print(environment())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        all_tools = tools(folder)
        names = options.only.split(",") if options.only else list(all_tools)
        if unknown := set(names) - set(all_tools):
            made.error(f"--only: no command {', '.join(sorted(unknown))}; use {', '.join(all_tools)}")
        rows = []
        for path in options.traces:
            row = [path.name]
            for short in names:
                tool = all_tools[short]
                arguments = tuple(str(path) if argument == "{}" else argument for argument in tool.arguments)
                target = twice(path, folder / path.name) if short == "ranks" else path
                row.append(cell(read(Tool(tool.title, tool.code, arguments), target, folder / "cache", options)))
                print(f"{path.name} {tool.title}: {row[-1]}", file=sys.stderr, flush=True)
            rows.append(row)
    print(table(["trace", *(all_tools[short].title for short in names)], rows))


if __name__ == "__main__":
    main()
