#!/usr/bin/env python3
"""How fast and lean reading a large trace is: molprof against other ways, in one run, as ratios.

    python benchmarks/read.py TRACE.json.gz [--size 1e9] [--only molprof,json] [--keep DIR] [--peers PYTHON]

Writes a file of the wanted size by repeating a real trace (benchmarks/repeat.py), or takes the one that an earlier run
kept, and reads it in turn with everything that is installed, --repeats times, each in a process of its own. Absolute
times hold for one machine on one day; the ratios are what may be compared: those of CPU time where others use the
machine too. The table grows on standard output, row by row, so that what is finished stays when the rest is
interrupted; what is going on is told on standard error.
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
from dataclasses import dataclass
from pathlib import Path

from molprof.common.memory import available_bytes

_FLOOR = """
import sys
from isal import igzip
total = 0
with igzip.open(sys.argv[1]) as file:
    while block := file.read(1 << 20):
        total += len(block)
"""
_JSON = """
import gzip, json, sys
with gzip.open(sys.argv[1]) as file:
    json.load(file)
"""
_RAW = """
import sys
from isal import igzip
from molprof.analysis.engine import open_engine
with open_engine(memory64=True) as engine, igzip.open(sys.argv[1]) as file:
    while block := file.read(1 << 20):
        engine.feed(block)
    engine.finish()
    engine.query("SELECT category, COUNT() FROM slice GROUP BY category")
"""
_OPEN = """
import sys
from molprof.analysis.reader.open import open_trace
with open_trace(sys.argv[1]{}) as (engine, info):
    assert info.lost_events == 0
"""
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="").get_gpu_kernel_breakdown(visualize=False)
"""
_TRACELENS = """
import sys
from TraceLens import TreePerfAnalyzer
TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()
"""

_SAMPLE_S = 0.05
# Looking at the memory of a large process stops it for a while: it may cost this share of the time.
_SAMPLING_SHARE = 0.02
_PROGRESS_S = 10
# Kept free of the memory that is available at the start.
_FREE_BYTES = 2 << 30


@dataclass(frozen=True)
class Tool:
    """A way to read the file: Python code, or arguments of `python -m molprof`."""

    title: str
    code: str | None = None
    arguments: tuple[str, ...] = ()
    package: str | None = None


TOOLS = {
    "molprof": Tool("molprof report (new)", arguments=("report", "--no-cache", "--format", "json")),
    "read": Tool("molprof, reading alone", _OPEN.format(", stacks=False, all_args=False")),
    "whole": Tool("molprof, all events and args", _OPEN.format("")),
    "cached": Tool("molprof report (again)", arguments=("report", "--format", "json")),
    "floor": Tool("floor: decompress, count bytes", _FLOOR),
    "json": Tool("json.load", _JSON),
    "raw": Tool("the same engine fed the raw file", _RAW),
    "hta": Tool("HolisticTraceAnalysis", _HTA, package="hta"),
    "tracelens": Tool("TraceLens", _TRACELENS, package="TraceLens"),
}


@dataclass(frozen=True)
class Limits:
    """What a reader may take: wall time in seconds, memory in bytes with the processes that it starts."""

    wall_s: float
    memory_bytes: float


@dataclass(frozen=True)
class Measured:
    """One process and those that it started: wall and CPU time in seconds, peak memory in bytes.

    failure: why there is no result; the other figures are then those up to its end.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    failure: str | None


def measure(tool: Tool, path: Path, cache: Path, peers: str, limits: Limits) -> Measured:
    """Runs a tool on the file in a process of its own; `peers`: the Python that has the other packages."""
    how = ["-m", "molprof", *tool.arguments] if tool.code is None else ["-c", tool.code]
    command = [peers if tool.package else sys.executable, *how, str(path)]
    variables = {**os.environ, "MOLPROF_CACHE": str(cache)}
    if tool.package:
        variables.pop("PYTHONPATH", None)
    with tempfile.TemporaryFile() as errors:
        begin = time.monotonic()
        # A session of its own, so that what it starts can be ended with it.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=variables, start_new_session=True
        )
        try:
            peak_bytes, failure, status, usage = _watched(process.pid, tool.title, begin, limits)
        except BaseException:
            _end(process.pid)
            process.wait()
            raise
        wall_s = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        _end(process.pid)
        if failure is None and process.returncode:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").strip().splitlines() or ["no message"]
            failure = f"failed ({process.returncode}): {lines[-1][:80]}"
    peak_bytes = max(peak_bytes, usage.ru_maxrss * 1024)
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, peak_bytes, failure)


def _watched(pid: int, title: str, begin: float, limits: Limits) -> tuple[int, str | None, int, os.struct_rusage]:
    """Waits for the process, ending it at a limit: peak memory as seen, failure, status, what it used."""
    peak_bytes, failure, told = 0, None, begin
    handle = os.pidfd_open(pid)  # readable when the process has ended, so that no sleep is counted as its time
    try:
        while not (ended := os.wait4(pid, os.WNOHANG))[0]:
            before = time.monotonic()
            now_bytes = _memory_bytes(pid)
            peak_bytes = max(peak_bytes, now_bytes)
            after = time.monotonic()
            if failure is None:
                if after - begin > limits.wall_s:
                    failure = f"stopped after {limits.wall_s:.0f} s"
                elif now_bytes > limits.memory_bytes:
                    taken = f"{limits.memory_bytes / 1e9:.1f} GB after {after - begin:.0f} s"
                    failure = f"out of memory: more than {taken}"
                if failure is not None:
                    _end(pid)
            if after - told > _PROGRESS_S:
                told = after
                print(f"{title}: {after - begin:.0f} s, {now_bytes / 1e9:.2f} GB", file=sys.stderr, flush=True)
            select.select([handle], [], [], max(_SAMPLE_S, (after - before) / _SAMPLING_SHARE))
    finally:
        os.close(handle)
    _, status, usage = ended
    return peak_bytes, failure, status, usage


def _end(pid: int) -> None:
    """Ends what is left of a session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _family(pid: int) -> list[int]:
    """The process and those that it started."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{parent}/task").glob("*/children"):
                found += map(int, file.read_text().split())
    return found


def _memory_bytes(pid: int) -> int:
    """What the process and those that it started hold, what they share counted once."""
    family = _family(pid)
    if len(family) == 1:  # the kernel has that number at hand
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0
    return sum(map(_part_bytes, family))


def _part_bytes(pid: int) -> int:
    """What the process holds; of what it shares with others, its part."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _has(python: str, package: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([python, "-c", code], check=False, env=variables).returncode == 0


def environment() -> str:
    """The machine and the versions that the figures hold for."""
    with open("/proc/cpuinfo") as file:
        models = (line.split(":")[1].strip() for line in file if line.startswith("model name"))
        model = next(models, platform.machine())
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{model}, {cores} cores, Python {platform.python_version()}, load {load:.1f} before the first run"


def _file(arguments: argparse.Namespace, folder: Path) -> tuple[Path, int, int]:
    """The file to read, its uncompressed bytes and its events; one that is kept from an earlier run is taken as it is.

    It is written by another process: a child's peak memory cannot read below what its parent had when it started it.
    """
    path = folder / f"{arguments.size:.3g}-{arguments.trace.name}"
    facts = path.with_suffix(".facts")
    if not facts.exists():
        print(f"writing {path}", file=sys.stderr, flush=True)
        script = Path(__file__).with_name("repeat.py")
        command = [sys.executable, str(script), str(arguments.trace), str(path), "--size", str(arguments.size)]
        facts.write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    written = json.loads(facts.read_text())
    return path, written["bytes"], written["events"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--size", type=float, default=1e9, help="uncompressed bytes of the file")
    parser.add_argument(
        "--only", default=",".join(TOOLS), help="readers, separated by commas; molprof always comes first"
    )
    parser.add_argument("--repeats", type=int, default=1, help="runs of each reader, of which the median is shown")
    parser.add_argument("--peers", default=sys.executable, help="Python of an environment that has the other packages")
    parser.add_argument("--keep", type=Path, help="folder for the file, which then stays for later runs")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that a reader may take")
    parser.add_argument(
        "--memory", type=float, help="bytes that a reader may take; by default what is available, less 2 GiB"
    )
    arguments = parser.parse_args()
    names = ["molprof", *(name for name in arguments.only.split(",") if name != "molprof")]
    if unknown := set(names) - set(TOOLS):
        parser.error(f"--only: no reader {', '.join(sorted(unknown))}; there are {', '.join(TOOLS)}")
    limits = Limits(arguments.limit, arguments.memory or (available_bytes() or 1 << 50) - _FREE_BYTES)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.keep is not None:
            arguments.keep.mkdir(parents=True, exist_ok=True)
        path, size_bytes, events = _file(arguments, arguments.keep or Path(temporary))
        cache = Path(temporary) / "cache"
        small = Path(temporary) / "warm.json"
        small.write_text('{"traceEvents": []}')
        for name in ("whole", "raw"):  # compiles the engine
            measure(TOOLS[name], small, cache, arguments.peers, limits)
        print(f"{environment()}\n")
        print(f"{arguments.trace.name} repeated: {size_bytes / 1e9:.2f} GB, {events / 1e6:.2f} M events\n")
        print("| read by | wall, s | CPU, s | peak, GB | wall ratio | CPU ratio | memory ratio |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
        first: Measured | None = None
        for name, tool in ((name, TOOLS[name]) for name in names):
            if tool.package and not _has(arguments.peers, tool.package):
                print(f"| {tool.title} | not installed | | | | | |", flush=True)
                continue
            if name == "cached":
                measure(tool, path, cache, arguments.peers, limits)
            results = [measure(tool, path, cache, arguments.peers, limits) for _ in range(arguments.repeats)]
            # The run of median time; a failed one, which is told, before all others.
            results.sort(key=lambda result: (result.failure is None, result.wall_s))
            result = results[0 if results[0].failure else len(results) // 2]
            first = first or result
            print(f"| {tool.title} | {_cells(result, first)} |", flush=True)


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
        main()
    except KeyboardInterrupt:
        print("\ninterrupted: the rows above are finished", file=sys.stderr)
        sys.exit(130)
