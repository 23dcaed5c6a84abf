#!/usr/bin/env python3
"""How fast and lean reading large traces is: molprof against other ways, in one run, as ratios.

    python benchmarks/read.py TRACE.json.gz[:SIZE] ... [--keep DIR] [--repeats 3] [--only molprof,json] [--peers PYTHON]
    python benchmarks/read.py --growth streams,steps

Repeats each real trace (benchmarks/repeat.py) up to its size, or takes the file that an earlier run kept, and reads it
in turn with every installed reader, each in a process of its own. Absolute times hold for one machine on one day:
compare the ratios, those of CPU time where others use the machine too. Rows are printed as they are finished; progress
goes to standard error.

--growth prints the CPU time of molprof, json.load and HTA for synthetic traces of a shape (shapes.py) that double, and
the factors by which it grows.

At the end, each file is judged alone: molprof should take at most 0.12 of json.load's time (0.2 below 0.5 GB), or at
most 1.5 times the sum of the floors. Exit code 1: a file lags.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from readers import RECORDS, TOOLS, Tool
from shapes import SHAPES, write
from shared import parser, progress, table

from molprof.common.memory import available_bytes
from molprof.common.process.guarded import living, proportional_bytes, resident_bytes

# Left free of the memory that is available at the start.
_FREE_BYTES = 2 << 30
_SAMPLE_S = 0.05
# Reading the memory of a large process stops it for a while: it may take this share of the time.
_SAMPLING_SHARE = 0.02
_PROGRESS_S = 10
# Shares of json.load's time that are good, by least size; of all floors' time; and the readers needed to judge.
_AIMS = ((0.5e9, 0.12), (0, 0.2))
_OF_FLOORS = 1.5
_JUDGED = ("molprof", "json", "decode", "engine")
# Numbers of events of synthetic traces.
_GROWING = (50_000, 100_000, 200_000)


HEADINGS = ("read by", "wall, s", "CPU, s", "peak, GB", "wall ratio", "CPU ratio", "memory ratio")


@dataclass(frozen=True)
class Measured:
    """One process and those that it started; `failure`: why it was ended or what its error was."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    failure: str | None


def read(tool: Tool, path: Path, cache: Path, options: argparse.Namespace, sampled: bool = True) -> Measured:
    """Read the file with a tool, up to the limits on time and, where it is sampled, memory."""
    variables = {**os.environ, "MOLPROF_CACHE": str(cache)}
    if tool.package:
        variables.pop("PYTHONPATH", None)
    command = [*tool.command(options.peers), str(path)]
    with tempfile.TemporaryFile() as errors:
        begin = time.monotonic()
        # A session of its own, so that what it starts can be ended with it.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=variables, start_new_session=True
        )
        try:
            peak_bytes, failure, status, usage = _watched(process.pid, tool.title, begin, options, sampled)
            wall_s = time.monotonic() - begin
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            _end(process.pid)
            process.wait()
        if failure is None and process.returncode:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").strip().splitlines() or ["no message"]
            failure = f"failed ({process.returncode}): {lines[-1][:80]}"
    peak_bytes = max(peak_bytes, usage.ru_maxrss * 1024)
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, peak_bytes, failure)


def _watched(
    pid: int, title: str, begin: float, options: argparse.Namespace, sampled: bool
) -> tuple[int, str | None, int, os.struct_rusage]:
    """Wait for the process and end it at a limit: peak memory, failure, status, resource usage."""
    peak_bytes, failure, told = 0, None, begin
    handle = os.pidfd_open(pid)  # readable when the process has ended, so that no sleep is counted as its time
    try:
        while not (ended := os.wait4(pid, os.WNOHANG))[0]:
            before = time.monotonic()
            family = living(pid) if sampled else []
            # Shared pages count once; of a single process the cheaper figure is the same.
            now_bytes = proportional_bytes(family) if len(family) > 1 else resident_bytes(family)
            peak_bytes = max(peak_bytes, now_bytes)
            after = time.monotonic()
            if failure is None:
                if after - begin > options.limit:
                    failure = f"stopped after {options.limit:.0f} s"
                elif now_bytes > options.memory:
                    taken = f"{options.memory / 1e9:.1f} GB after {after - begin:.0f} s"
                    failure = f"out of memory: more than {taken}"
                if failure is not None:
                    _end(pid)
            if after - told > _PROGRESS_S:
                told = after
                progress(f"{title}: {after - begin:.0f} s" + (f", {now_bytes / 1e9:.2f} GB" if sampled else ""))
            select.select([handle], [], [], max(_SAMPLE_S, (after - before) / _SAMPLING_SHARE))
    finally:
        os.close(handle)
    _, status, usage = ended
    return peak_bytes, failure, status, usage


def _end(pid: int) -> None:
    """End what is left of a session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _is_there(tool: Tool, options: argparse.Namespace) -> bool:
    return tool.package is None or _has(options.peers, tool.package)


def _has(python: str, package: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([python, "-c", code], check=False, env=variables).returncode == 0


def environment() -> str:
    """Return the machine and the versions that the figures hold for."""
    with open("/proc/cpuinfo") as file:
        models = (line.split(":")[1].strip() for line in file if line.startswith("model name"))
        model = next(models, platform.machine())
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{model}, {cores} cores, Python {platform.python_version()}, load {load:.1f} before the first run"


@dataclass(frozen=True)
class File:
    """A trace that was repeated: its title, where it lies, its uncompressed bytes and its events."""

    title: str
    path: Path
    bytes: int
    events: int


def _file(trace: Path, size: float, folder: Path) -> File:
    """Return the file to read.

    Another process writes it: a child's peak memory is at least its parent's when it started.
    """
    path = folder / f"{size:.3g}-{trace.name}"
    facts = path.with_suffix(".facts")
    if not facts.exists():
        progress(f"writing {path}")
        script = Path(__file__).with_name("repeat.py")
        command = [sys.executable, str(script), str(trace), str(path), "--size", str(size)]
        facts.write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    written = json.loads(facts.read_text())
    return File(f"{trace.name}, {written['bytes'] / 1e9:.2f} GB", path, written["bytes"], written["events"])


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("traces", nargs="*", metavar="TRACE[:SIZE]", help="SIZE: uncompressed bytes, such as 2e8")
    options.add_argument("--size", type=float, default=1e9, help="size where none is given")
    options.add_argument(
        "--only", default=",".join(TOOLS), help="readers, separated by commas; molprof always comes first"
    )
    options.add_argument(
        "--repeats",
        type=int,
        default=1,
        help="runs of molprof and of the floors, whose row has the median; one more before them for the memory",
    )
    options.add_argument("--peers", default=sys.executable, help="Python of an environment that has the other packages")
    options.add_argument("--keep", type=Path, help="folder to keep the files in for later runs")
    options.add_argument("--growth", metavar="SHAPES", help="shapes of traces, separated by commas; all: each of them")
    options.add_argument("--limit", type=float, default=1800, help="seconds that a reader may take")
    options.add_argument("--memory", type=float, help="bytes that a reader may take  [default: available, less 2 GiB]")
    found = options.parse_args()
    found.memory = found.memory or (available_bytes() or 1 << 50) - _FREE_BYTES
    if unknown := set(found.only.split(",")) - set(TOOLS):
        options.error(f"--only: no reader {', '.join(sorted(unknown))}; use {', '.join(TOOLS)}")
    found.growth = list(SHAPES) if found.growth == "all" else found.growth.split(",") if found.growth else []
    if unknown := set(found.growth) - set(SHAPES):
        options.error(f"--growth: no shape {', '.join(sorted(unknown))}; use {', '.join(SHAPES)}")
    if not found.traces and not found.growth:
        options.error("give traces, or --growth")
    try:
        pairs = [item.rpartition(":") if not item.endswith("z") else (item, "", found.size) for item in found.traces]
        found.traces = [(Path(name), float(size)) for name, _, size in pairs]
    except ValueError:
        options.error("give each trace as a path, or as PATH:SIZE with a number of bytes")
    return found


def main() -> int:
    options = _arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        cache = Path(temporary) / "cache"
        small = Path(temporary) / "warm.json"
        small.write_text('{"traceEvents": []}')
        for name in ("whole", "raw"):  # compiles the engine
            read(TOOLS[name], small, cache, options)
        print(f"{environment()}\n")
        if options.growth:
            _grow(Path(temporary) / "grown.json", cache, options)
        verdicts = []
        for trace, size in options.traces:
            file = _file(trace, size, folder)
            verdicts.append(_verdict(file, _measure(file, cache, options)))
        for text, _ in verdicts:
            print(text)
    return 0 if all(good for _, good in verdicts) else 1


def _grow(path: Path, cache: Path, options: argparse.Namespace) -> None:
    """Print the CPU time of molprof and json.load for traces of each shape, and its factors where events double."""
    factors = [f"{size // 1000}k / {less // 1000}k" for less, size in pairwise(_GROWING)]
    names = [name for name in ("molprof", "json", "hta") if _is_there(TOOLS[name], options)]
    print(table(("shape", "read by", *(f"{size // 1000}k events, s" for size in _GROWING), *factors), [], left=2))
    for shape in options.growth:
        times: dict[str, list[Measured]] = {name: [] for name in names}
        for events in _GROWING:
            write(path, shape, events)
            for name, results in times.items():
                if not any(result.failure for result in results):
                    results.append(read(TOOLS[name], path, cache, options, sampled=False))
        for name, results in times.items():
            cells = [f"{result.cpu_s:.2f}" if result.failure is None else result.failure for result in results]
            cells += [""] * (len(_GROWING) - len(cells))
            grown = [f"{b.cpu_s / a.cpu_s:.2f}" if b.failure is None else "" for a, b in pairwise(results)]
            grown += [""] * (len(factors) - len(grown))
            print(f"| {' | '.join((shape, TOOLS[name].title, *cells, *grown))} |", flush=True)
    print()


def _measure(file: File, cache: Path, options: argparse.Namespace) -> dict[str, Measured]:
    """Print a row for each reader of one file, and give what was measured."""
    print(f"{file.title}, {file.events / 1e6:.2f} M events\n")
    print(table(HEADINGS, []), flush=True)
    rows: dict[str, Measured] = {}
    for name in ["molprof", *(name for name in options.only.split(",") if name != "molprof")]:
        tool = TOOLS[name]
        if not _is_there(tool, options):
            print(f"| {tool.title} | not installed | | | | | |", flush=True)
            continue
        if name == "cached":
            read(tool, file.path, cache, options)
        path = file.path
        if tool.records:
            path = cache.with_name("records")
            subprocess.run([sys.executable, "-c", RECORDS, str(file.path), str(path)], check=True)
        results = [read(tool, path, cache, options)]
        peak_bytes = results[0].peak_bytes
        if tool.repeated and results[0].failure is None:  # sampling its memory stops a process
            results = [read(tool, path, cache, options, sampled=False) for _ in range(options.repeats)]
        # The run of median time, or a failed one.
        results.sort(key=lambda result: (result.failure is None, result.wall_s))
        chosen = results[0 if results[0].failure else len(results) // 2]
        rows[name] = replace(chosen, peak_bytes=max(peak_bytes, chosen.peak_bytes))
        print(f"| {tool.title} | {_cells(rows[name], rows['molprof'])} |", flush=True)
    print()
    return rows


def _verdict(file: File, rows: dict[str, Measured]) -> tuple[str, bool]:
    """How molprof does with one file, and whether that is good: well below json.load, or near the floors."""
    failed = [name for name in _JUDGED if name in rows and rows[name].failure]
    if failed or set(_JUDGED) - rows.keys():
        return f"{file.title}: not judged without {', '.join(failed or sorted(set(_JUDGED) - rows.keys()))}", not failed
    aim = next(ratio for least_bytes, ratio in _AIMS if file.bytes >= least_bytes)
    of_json, of_floors = (
        rows["molprof"].wall_s / sum(rows[name].wall_s for name in names) for names in (("json",), ("decode", "engine"))
    )
    good = of_json <= aim or of_floors <= _OF_FLOORS
    text = f"{of_json:.2f} of json.load (aim {aim}), {of_floors:.2f} of the floors (aim {_OF_FLOORS})"
    return f"{file.title}: {text}{'' if good else ': LAGS'}", good


def _cells(result: Measured, first: Measured) -> str:
    if result.failure is not None:
        return f"{result.failure.replace('|', ' ')} | | {result.peak_bytes / 1e9:.2f} | | |"
    return (
        f"{result.wall_s:.1f} | {result.cpu_s:.1f} | {result.peak_bytes / 1e9:.2f} |"
        f" {result.wall_s / first.wall_s:.2f} | {result.cpu_s / first.cpu_s:.2f} |"
        f" {result.peak_bytes / first.peak_bytes:.2f}"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted: the rows above are finished", file=sys.stderr)
        sys.exit(130)
