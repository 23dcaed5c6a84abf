#!/usr/bin/env python3
"""A folder of many traces to one table: time and CPU per trace, and memory, at first and from the cache.

    python benchmarks/many.py TRACE.json.gz [--count 1000]

Makes files that differ from TRACE by one key, then runs `molprof report rows FOLDER` twice with one cache.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

from read import environment, read
from readers import Tool
from shared import parser, table

_HEAD = ("run", "wall, s", "CPU, s", "wall per trace, s", "peak, GB")


def make_folder(trace: Path, count: int, folder: Path) -> None:
    """Write `count` traces: a gzip file may have members, and only the last, small one differs."""
    text = gzip.decompress(trace.read_bytes()).rstrip()
    if not text.endswith(b"}"):
        sys.exit(f"{trace} is not a JSON object")
    folder.mkdir()
    most = gzip.compress(text[:-1])
    for number in range(count):
        (folder / f"{number:05}.json.gz").write_bytes(most + gzip.compress(f', "variant": {number}}}'.encode()))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("trace", type=Path)
    made.add_argument("--count", type=int, default=1000)
    made.set_defaults(peers=sys.executable, limit=float("inf"), memory=float("inf"))  # of read.py
    options = made.parse_args()
    print(environment())
    tool = Tool("many", arguments=("report", "rows", "--format", "csv"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "traces")
        make_folder(options.trace, options.count, folder)
        size = next(folder.iterdir()).stat().st_size
        print(f"{options.count} traces of {size / 1e6:.2f} MB, {size * options.count / 1e9:.2f} GB")
        rows = []
        for title in ("at first", "again"):
            done = read(tool, folder, Path(name, "cache"), options)
            each = f"{done.wall_s / options.count:.3f}"
            rows.append((title, f"{done.wall_s:.1f}", f"{done.cpu_s:.1f}", each, f"{done.peak_bytes / 1e9:.2f}"))
            if done.failure is not None:
                sys.exit(done.failure)
    print(table(_HEAD, rows))


if __name__ == "__main__":
    main()
