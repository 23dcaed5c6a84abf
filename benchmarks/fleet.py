#!/usr/bin/env python3
"""Many traces to one table, and many ranks of one job: time, CPU, memory, bytes, growth, and the straggler found.

    python benchmarks/fleet.py TRACE.json.gz RANK.json.gz [--traces 1000] [--ranks 1024]

Traces are TRACE with one more key. Ranks are RANK with its clock shifted at random; one of them comes 40 ms late to one
collective, for which all others wait. Each number is measured for a sixteenth, a fourth and all. With `distributed`
installed, a fourth of the rows is also read by one and by two workers of a Dask scheduler on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib.util
import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from isal import igzip
from read import Measured, environment, read
from readers import Tool
from shared import parser, table

LATE_NS = 40_000_000
_CLOCK_NS = 10**9  # ranks' clocks differ by up to this
_BY_DASK = 4  # of this share, by one and by two workers of Dask
_HEAD = ("what", "", "wall, s", "CPU, s", "peak, GB", "in, MB", "out, MB")
_COLLECTIVE = re.compile("nccl|rccl", re.IGNORECASE)


def make_traces(trace: Path, count: int, folder: Path) -> None:
    """Write `count` traces: a gzip file may have members, and only the last, small one differs."""
    text = gzip.decompress(trace.read_bytes()).rstrip()
    if not text.endswith(b"}"):
        sys.exit(f"{trace} is not a JSON object")
    folder.mkdir()
    most = gzip.compress(text[:-1])
    for number in range(count):
        (folder / f"{number:05}.json.gz").write_bytes(most + gzip.compress(f', "variant": {number}}}'.encode()))


def make_ranks(trace: Path, count: int, folder: Path, late_ns: int = LATE_NS) -> tuple[int, list[int]]:
    """Write a file for each of `count` ranks. Returns the late one, and by how much each clock is ahead, ns."""
    document = json.loads(gzip.decompress(trace.read_bytes()))
    events = document.pop("traceEvents")
    seed = random.Random(0)
    late, clocks = seed.randrange(count), [seed.randrange(-_CLOCK_NS, _CLOCK_NS) for _ in range(count)]
    folder.mkdir()
    texts = {is_late: _texts(_delayed(events, late_ns, is_late)) for is_late in (False, True)}
    for rank, clock in enumerate(clocks):
        info = {**document.get("distributedInfo", {}), "rank": rank, "world_size": count}
        head = json.dumps({**document, "distributedInfo": info})[:-1]
        parts = [head, ', "traceEvents": [\n']
        for text, start_ns in texts[rank == late]:
            parts.append(text if start_ns is None else f"{text}{(start_ns + clock) / 1000:.3f}}}")
            parts.append(",\n")
        data = "".join([*parts[:-1], "\n]}\n"]).encode()
        (folder / f"rank{rank:05}.json.gz").write_bytes(igzip.compress(data, 1))
    return late, clocks


def _delayed(
    events: Sequence[dict[str, Any]], late_ns: int, is_late: bool
) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Events with their starts, ns. The late rank comes late to the middle collective; others are longer in it."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    found = sorted((event for event in kernels if _COLLECTIVE.search(event["name"])), key=lambda event: event["ts"])
    if not found:
        sys.exit("the rank's trace has no collective of NCCL or RCCL")
    chosen = found[len(found) // 2]
    moment = chosen["ts"]
    before = max((it for it in kernels if it["ts"] + it["dur"] <= moment), key=lambda it: it["ts"] + it["dur"])
    for event in events:
        if event.get("ph") == "M" or "ts" not in event:
            yield event, None
            continue
        start_ns, longer = round(1000 * event["ts"]), event["ts"] < moment < event["ts"] + event.get("dur", 0)
        if event is chosen:
            start_ns, longer = start_ns + is_late * late_ns, not is_late
        elif event is before:
            longer = is_late
        elif event["ts"] >= moment:
            start_ns += late_ns
        yield ({**event, "dur": event["dur"] + late_ns / 1000} if longer else event), start_ns


def _texts(events: Iterator[tuple[dict[str, Any], int | None]]) -> list[tuple[str, int | None]]:
    """JSON of each event, up to the value of its last key `ts` where it has a start."""
    return [
        (json.dumps(event), None)
        if start_ns is None
        else (json.dumps({key: value for key, value in event.items() if key != "ts"})[:-1] + ', "ts": ', start_ns)
        for event, start_ns in events
    ]


def measure(
    title: str, where: Path, output: Path, made: Path, options: argparse.Namespace, *arguments: str
) -> Measured:
    """Run `molprof ARGUMENTS WHERE`, which writes OUTPUT, and print a line of the table."""
    output.unlink(missing_ok=True)
    tool = Tool(title, arguments=(*arguments, "-o", str(output)))
    done = read(tool, where, made.parent / "cache", options)
    if done.failure is not None:
        sys.exit(f"{title}: {done.failure}")
    out = size_of(made) + output.stat().st_size
    count = f"{len(list(where.iterdir())):,}"
    numbers = (f"{done.wall_s:.1f}", f"{done.cpu_s:.1f}", f"{done.peak_bytes / 1e9:.2f}")
    options.lines.append((title, count, *numbers, f"{size_of(where) / 1e6:.1f}", f"{out / 1e6:.2f}"))
    print("  ".join(options.lines[-1]), file=sys.stderr, flush=True)
    return done


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0


def rows(options: argparse.Namespace, folder: Path) -> None:
    """Read a sixteenth, a fourth and all traces, join them again, and read them by workers."""
    for count in (max(1, options.traces // part) for part in options.shares):
        traces, parts, joined = folder / "traces", folder / "parts", folder / "rows.parquet"
        make_traces(options.trace, count, traces)
        command = ("report", "rows", "--no-cache", "--parts", str(parts))
        measure("read", traces, joined, parts, options, *command)
        measure("the same again", traces, joined, parts, options, *command)
        measure("joined from parts", parts, joined, folder / "none", options, "report", "rows")
        if count == max(1, options.traces // _BY_DASK) and importlib.util.find_spec("distributed"):
            spent = []
            for workers in (1, 2):
                shutil.rmtree(parts)
                with scheduler(workers) as on:
                    line = (*command, "--on", on)
                    spent.append(
                        measure(f"by Dask, {workers} worker{'s'[: workers - 1]}", traces, joined, parts, options, *line)
                    )
            options.notes.append(f"two workers are {spent[0].wall_s / spent[1].wall_s:.2f} times as fast as one")
        shutil.rmtree(traces)
        shutil.rmtree(parts)


@contextlib.contextmanager
def scheduler(workers: int) -> Iterator[str]:
    """Start a Dask scheduler with so many workers of one thread."""
    from distributed import LocalCluster

    how = {"threads_per_worker": 1, "processes": True, "dashboard_address": None, "protocol": "tcp"}
    with LocalCluster(n_workers=workers, **how) as cluster:
        yield cluster.scheduler_address.replace("tcp://", "dask://")


def ranks(options: argparse.Namespace, folder: Path) -> None:
    """Read the ranks of a sixteenth, a fourth and all, put them together from parts, and compare the straggler."""
    for count in (max(2, options.ranks // part) for part in options.shares):
        traces, parts, found = folder / "ranks", folder / "parts", folder / "ranks.json"
        late, clocks = make_ranks(options.rank, count, traces)
        measure("ranks read", traces, found, parts, options, "ranks", "--parts", str(parts))
        measure("ranks from parts", parts, found, folder / "none", options, "ranks")
        options.notes.append(f"{count:,} ranks: {judged(json.loads(found.read_bytes()), late, clocks)}")
        shutil.rmtree(traces)
        shutil.rmtree(parts)


def judged(job: dict[str, Any], late: int, clocks: Sequence[int]) -> str:
    """Return what was found of the late rank and the clocks, beside what is true."""
    first = max((item for step in job["steps"] for item in step["stragglers"]), key=lambda item: item["late_ns"])
    offsets = [item["clock_offset_ns"] for item in sorted(job["ranks"], key=lambda item: item["rank"])]
    wrong = max(abs(offset - clock + clocks[0]) for offset, clock in zip(offsets, clocks, strict=True))
    return (
        f"rank {first['rank']} is late by {first['late_ns'] / 1e6:.3f} ms (true: rank {late}, {LATE_NS / 1e6:.3f} ms); "
        f"clocks are off by up to {wrong:,} ns"
    )


def main() -> None:
    made = parser(__doc__)
    made.add_argument("trace", type=Path)
    made.add_argument("rank", type=Path)
    made.add_argument("--traces", type=int, default=1000)
    made.add_argument("--ranks", type=int, default=1024)
    made.add_argument("--shares", default="16,4,1", help="1/N of the traces and ranks that are measured, and all")
    made.set_defaults(peers=sys.executable, limit=float("inf"), memory=float("inf"), lines=[], notes=[])
    options = made.parse_args()
    options.shares = list(map(int, options.shares.split(",")))
    print(environment())
    with tempfile.TemporaryDirectory() as name:
        rows(options, Path(name))
        ranks(options, Path(name))
    print(table(_HEAD, options.lines))
    print("\n".join(f"- {line}" for line in options.notes))


if __name__ == "__main__":
    main()
