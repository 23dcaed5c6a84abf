#!/usr/bin/env python3
"""How fast and lean reading a large trace is: molprof against other ways, in one run, as ratios.

    python benchmarks/read.py TRACE.json.gz [--size 1e9] [--only molprof,json] [--keep DIR] [--peers PYTHON]

Repeats a real trace (benchmarks/repeat.py) up to the wanted size, or takes the file that an earlier run kept, and reads
it in turn with every installed reader, --repeats times, each in a process of its own. Absolute times hold for one
machine on one day: compare the ratios, those of CPU time where others use the machine too. Rows are printed as they are
finished; progress goes to standard error.
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

from shared import parser, progress, table

from molprof.common.memory import available_bytes, proportional_bytes, resident_bytes
from molprof.common.process import members

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

# Left free of the memory that is available at the start.
_FREE_BYTES = 2 << 30
_SAMPLE_S = 0.05
# Reading the memory of a large process stops it for a while: it may take this share of the time.
_SAMPLING_SHARE = 0.02
_PROGRESS_S = 10


@dataclass(frozen=True)
class Tool:
    """A way to read the file: Python code, or arguments of `python -m molprof`."""

    title: str
    code: str | None = None
    arguments: tuple[str, ...] = ()
    package: str | None = None


HEADINGS = ("read by", "wall, s", "CPU, s", "peak, GB", "wall ratio", "CPU ratio", "memory ratio")
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
class Measured:
    """One process and those that it started; `failure`: why it was ended or what its error was."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    failure: str | None


def read(tool: Tool, path: Path, cache: Path, options: argparse.Namespace) -> Measured:
    """Read the file with a tool, up to the limits on time and memory."""
    how = ["-m", "molprof", *tool.arguments] if tool.code is None else ["-c", tool.code]
    variables = {**os.environ, "MOLPROF_CACHE": str(cache)}
    if tool.package:
        variables.pop("PYTHONPATH", None)
    command = [options.peers if tool.package else sys.executable, *how, str(path)]
    with tempfile.TemporaryFile() as errors:
        begin = time.monotonic()
        # A session of its own, so that what it starts can be ended with it.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=variables, start_new_session=True
        )
        try:
            peak_bytes, failure, status, usage = _watched(process.pid, tool.title, begin, options)
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
    pid: int, title: str, begin: float, options: argparse.Namespace
) -> tuple[int, str | None, int, os.struct_rusage]:
    """Wait for the process and end it at a limit: peak memory, failure, status, resource usage."""
    peak_bytes, failure, told = 0, None, begin
    handle = os.pidfd_open(pid)  # readable when the process has ended, so that no sleep is counted as its time
    try:
        while not (ended := os.wait4(pid, os.WNOHANG))[0]:
            before = time.monotonic()
            family = members(pid)
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
                progress(f"{title}: {after - begin:.0f} s, {now_bytes / 1e9:.2f} GB")
            select.select([handle], [], [], max(_SAMPLE_S, (after - before) / _SAMPLING_SHARE))
    finally:
        os.close(handle)
    _, status, usage = ended
    return peak_bytes, failure, status, usage


def _end(pid: int) -> None:
    """End what is left of a session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


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


def _file(options: argparse.Namespace, folder: Path) -> tuple[Path, int, int]:
    """The file to read, its uncompressed bytes and its events.

    Another process writes it: a child's peak memory is at least what its parent had when it started it.
    """
    path = folder / f"{options.size:.3g}-{options.trace.name}"
    facts = path.with_suffix(".facts")
    if not facts.exists():
        progress(f"writing {path}")
        script = Path(__file__).with_name("repeat.py")
        command = [sys.executable, str(script), str(options.trace), str(path), "--size", str(options.size)]
        facts.write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    written = json.loads(facts.read_text())
    return path, written["bytes"], written["events"]


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("trace", type=Path)
    options.add_argument("--size", type=float, default=1e9, help="uncompressed bytes of the file")
    options.add_argument(
        "--only", default=",".join(TOOLS), help="readers, separated by commas; molprof always comes first"
    )
    options.add_argument("--repeats", type=int, default=1, help="runs of each reader; the row has the median")
    options.add_argument("--peers", default=sys.executable, help="Python of an environment that has the other packages")
    options.add_argument("--keep", type=Path, help="folder to keep the file in for later runs")
    options.add_argument("--limit", type=float, default=1800, help="seconds that a reader may take")
    options.add_argument("--memory", type=float, help="bytes that a reader may take  [default: available, less 2 GiB]")
    found = options.parse_args()
    found.memory = found.memory or (available_bytes() or 1 << 50) - _FREE_BYTES
    if unknown := set(found.only.split(",")) - set(TOOLS):
        options.error(f"--only: no reader {', '.join(sorted(unknown))}; use {', '.join(TOOLS)}")
    return found


def main() -> None:
    options = _arguments()
    names = ["molprof", *(name for name in options.only.split(",") if name != "molprof")]
    with tempfile.TemporaryDirectory() as temporary:
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
        path, size_bytes, events = _file(options, options.keep or Path(temporary))
        cache = Path(temporary) / "cache"
        small = Path(temporary) / "warm.json"
        small.write_text('{"traceEvents": []}')
        for name in ("whole", "raw"):  # compiles the engine
            read(TOOLS[name], small, cache, options)
        print(f"{environment()}\n")
        print(f"{options.trace.name} repeated: {size_bytes / 1e9:.2f} GB, {events / 1e6:.2f} M events\n")
        print(table(HEADINGS, []), flush=True)
        first: Measured | None = None
        for tool in (TOOLS[name] for name in names):
            if tool.package and not _has(options.peers, tool.package):
                print(f"| {tool.title} | not installed | | | | | |", flush=True)
                continue
            if tool is TOOLS["cached"]:
                read(tool, path, cache, options)
            results = [read(tool, path, cache, options) for _ in range(options.repeats)]
            # The run of median time, or a failed one.
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
