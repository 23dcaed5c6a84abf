#!/usr/bin/env python3
"""A folder of many traces to one table: time and CPU per trace, memory, and what an interrupt costs.

    python benchmarks/many.py TRACE.json.gz [--count 1000] [--interrupt 60]

Makes files that differ from TRACE by one key, then runs `molprof report FOLDER --rows` three times with one cache:
interrupted after so many seconds, to its end, and once more.
"""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from read import environment
from shared import parser, progress, table

from molprof.common.memory import proportional_bytes
from molprof.common.process import members

_SAMPLE_S = 0.5
_READ = re.compile(r"([\d,]+) of [\d,]+ traces were read")
_HEAD = ("run", "traces read", "wall, s", "CPU, s", "wall per trace, s", "peak, GB")


@dataclass(frozen=True)
class Run:
    """One run of the command, with the processes that it started."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    errors: str


def make_folder(trace: Path, count: int, folder: Path) -> None:
    """Write `count` traces: a gzip file may have members, and only the last, small one differs."""
    text = gzip.decompress(trace.read_bytes()).rstrip()
    if not text.endswith(b"}"):
        sys.exit(f"{trace} is not a JSON object")
    most = gzip.compress(text[:-1])
    for number in range(count):
        (folder / f"{number:05}.json.gz").write_bytes(most + gzip.compress(f', "variant": {number}}}'.encode()))


def run(folder: Path, interrupt_s: float | None = None) -> Run:
    line = [sys.executable, "-m", "molprof", "report", str(folder / "traces"), "--rows", "--format", "csv"]
    line += ["-o", str(folder / "table.csv"), "--force"]
    begin, peak_bytes = time.monotonic(), 0
    environ = {**os.environ, "MOLPROF_CACHE": str(folder / "cache")}
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(line, stderr=errors, env=environ, start_new_session=True)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            time.sleep(_SAMPLE_S)
            peak_bytes = max(peak_bytes, proportional_bytes(members(process.pid)))
            if interrupt_s is not None and time.monotonic() - begin > interrupt_s:
                os.kill(process.pid, signal.SIGINT)
                interrupt_s = None
        process.returncode = os.waitstatus_to_exitcode(ended[1])
    wall_s, usage = time.monotonic() - begin, ended[2]
    text = (folder / "errors").read_text()
    progress(text)
    return Run(wall_s, usage.ru_utime + usage.ru_stime, peak_bytes, text)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("trace", type=Path)
    made.add_argument("--count", type=int, default=1000)
    made.add_argument("--interrupt", type=float, default=60, help="seconds after which the first run is interrupted")
    options = made.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, and its children
    print(environment())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "traces").mkdir()
        make_folder(options.trace, options.count, folder / "traces")
        size = next((folder / "traces").iterdir()).stat().st_size
        print(f"{options.count} traces of {size / 1e6:.2f} MB, {size * options.count / 1e9:.2f} GB")
        stopped = run(folder, options.interrupt)
        found = _READ.search(stopped.errors)
        if found is None:
            sys.exit("the first run ended before it was interrupted: --interrupt with fewer seconds")
        first = int(found[1].replace(",", ""))
        rows = [("interrupted", first, stopped)]
        rows += [("to its end", options.count - first, run(folder)), ("again", 0, run(folder))]
        with (folder / "table.csv").open() as file:
            lines = sum(1 for _ in file) - 1
    print(table(_HEAD, [_row(*row) for row in rows]))
    print(f"\nrows in the table: {lines}")


def _row(title: str, count: int, done: Run) -> tuple[str, ...]:
    each = f"{done.wall_s / count:.3f}" if count else "-"
    peak = f"{done.peak_bytes / 1e9:.2f}"
    return title, str(count), f"{done.wall_s:.1f}", f"{done.cpu_s:.1f}", each, peak


if __name__ == "__main__":
    main()
