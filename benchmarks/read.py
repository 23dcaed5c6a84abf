#!/usr/bin/env python3
"""How fast and lean reading a large trace is: molprof against other ways, in one run, as ratios.

    python benchmarks/read.py TRACE.json.gz [--size 1e9] [--only molprof,floor] [--keep DIR] [--peers PYTHON]

Writes a file of the wanted size by repeating a real trace (shifted times, other correlation ids), and reads it in
turn with everything that is installed, each in a process of its own. Absolute times hold for one machine on one
day; the ratios are what may be compared: those of CPU time where others use the machine too.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

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
_READ = """
import sys
from molprof.analysis.reports import open_trace
with open_trace(sys.argv[1], stacks=False, all_args=False) as (engine, info):
    assert info.lost_events == 0
"""
_WHOLE = """
import sys
from molprof.analysis.reports import open_trace
with open_trace(sys.argv[1]) as (engine, info):
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


@dataclass(frozen=True)
class Tool:
    """A way to read the file: Python code, or arguments of `python -m molprof`."""

    title: str
    code: str | None = None
    arguments: tuple[str, ...] = ()
    package: str | None = None


TOOLS = {
    "molprof": Tool("molprof report (new)", arguments=("report", "--no-cache", "--format", "json")),
    "read": Tool("molprof, reading alone", _READ),
    "whole": Tool("molprof, all events and args", _WHOLE),
    "cached": Tool("molprof report (again)", arguments=("report", "--format", "json")),
    "floor": Tool("floor: decompress, count bytes", _FLOOR),
    "json": Tool("json.load", _JSON),
    "raw": Tool("the same engine fed the raw file", _RAW),
    "hta": Tool("HolisticTraceAnalysis", _HTA, package="hta"),
    "tracelens": Tool("TraceLens", _TRACELENS, package="TraceLens"),
}


@dataclass(frozen=True)
class Measured:
    """One process and those that it started: wall and CPU time in seconds, peak memory in bytes; and its exit code."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    exit_code: int


def repeated(trace: Path) -> Iterator[tuple[bytes, int]]:
    """Blocks of JSON text with the number of events in each: the trace over and over, each time later."""
    with gzip.open(trace) as file:
        document = json.load(file, parse_float=Decimal)
    events = document.pop("traceEvents")
    named = [event for event in events if event.get("ph") == "M"]
    timed = [event for event in events if event.get("ph") != "M"]
    starts_ns = [int(Decimal(event["ts"]) * 1000) for event in timed]
    span_ns = max(starts_ns) - min(starts_ns) + 1_000_000
    # Numbers that change are marked, so that a repetition is a join of texts.
    for event, start_ns in zip(timed, starts_ns, strict=True):
        event["ts"] = f"@T{start_ns}@"
        if isinstance(event.get("args"), dict):
            for key in ("correlation", "External id"):
                if isinstance(event["args"].get(key), int):
                    event["args"][key] = f"@C{event['args'][key]}@"
        if event["ph"] in "sft" and isinstance(event.get("id"), int):
            event["id"] = f"@C{event['id']}@"
    head = json.dumps(document, default=float)[1:-1]
    begin = f'{{{head}{", " if head else ""}"traceEvents": [\n'
    yield "".join([begin, *(_text(event) + ",\n" for event in named)]).encode(), 0
    pieces = re.split(r'"@([TC])(\d+)@"', ",\n".join(map(_text, timed)))
    kinds = [(kind == "T", int(value)) for kind, value in zip(pieces[1::3], pieces[2::3], strict=True)]
    number = 0
    while True:
        parts = []
        for text, (is_time, value) in zip(pieces[::3], kinds, strict=False):
            if is_time:
                ns = value + number * span_ns
                parts += [text, f"{ns // 1000}.{ns % 1000:03d}"]
            else:
                parts += [text, str(value + number * 10_000_000 if value > 0 else value)]
        yield ("".join([*parts, pieces[-1]])).encode(), len(timed)
        number += 1


def _text(event: dict[str, Any]) -> str:
    return json.dumps(event, default=float)


def write_trace(source: Path, target: Path, size_bytes: int) -> tuple[int, int]:
    """Writes the file; returns its uncompressed bytes and its events."""
    from isal import igzip

    written = events = 0
    with igzip.open(target, "wb", compresslevel=1) as file:
        for block, count in repeated(source):
            text = block if not events else b",\n" + block
            file.write(text)
            written += len(text)
            events += count
            if written >= size_bytes:
                break
        file.write(b"\n]}\n")
    return written, events


def measure(tool: Tool, path: Path, cache: Path, peers: str) -> Measured:
    """Runs a tool on the file in a process of its own; `peers`: the Python that has the other packages."""
    python = peers if tool.package else sys.executable
    command = [python, "-m", "molprof", *tool.arguments, str(path)]
    if tool.code is not None:
        command = [python, "-c", tool.code, str(path)]
    variables = {**os.environ, "MOLPROF_CACHE": str(cache)}
    if tool.package:
        variables.pop("PYTHONPATH", None)
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=variables)
    peak_bytes = 0
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak_bytes = max(peak_bytes, sum(map(_memory_bytes, _family(process.pid))))
        time.sleep(_SAMPLE_S)
    wall_s = time.monotonic() - begin
    _, status, usage = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    peak_bytes = max(peak_bytes, usage.ru_maxrss * 1024)
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, peak_bytes, process.returncode)


def _family(pid: int) -> list[int]:
    """The process and those that it started."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{parent}/task").glob("*/children"):
                found += map(int, file.read_text().split())
    return found


def _memory_bytes(pid: int) -> int:
    """What the process holds; of what it shares with others, its part."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _has(python: str, package: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def environment() -> str:
    """The machine and the versions that the figures hold for."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{model}, {cores} cores, Python {platform.python_version()}, load {load:.1f} before the first run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--size", type=float, default=1e9, help="uncompressed bytes of the file")
    parser.add_argument("--only", default=",".join(TOOLS), help="tools, separated by commas")
    parser.add_argument("--peers", default=sys.executable, help="Python of an environment that has the other packages")
    parser.add_argument("--keep", type=Path, help="folder for the file, which then stays")
    arguments = parser.parse_args()
    names = ["molprof", *(name for name in arguments.only.split(",") if name != "molprof")]
    with tempfile.TemporaryDirectory() as folder:
        if arguments.keep is not None:
            arguments.keep.mkdir(parents=True, exist_ok=True)
        path = (arguments.keep or Path(folder)) / f"repeated-{arguments.trace.name}"
        # In a process of its own: a child's peak memory cannot read below what its parent had when it started it.
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
            size_bytes, events = pool.submit(write_trace, arguments.trace, path, int(arguments.size)).result()
        cache = Path(folder) / "cache"
        small = Path(folder) / "warm.json"
        small.write_text('{"traceEvents": []}')
        measure(TOOLS["whole"], small, cache, arguments.peers)  # compiles the engine
        measure(TOOLS["raw"], small, cache, arguments.peers)
        print(f"{environment()}\n")
        print(f"{arguments.trace.name} repeated: {size_bytes / 1e9:.2f} GB, {events / 1e6:.2f} M events\n")
        print("| read by | wall, s | CPU, s | peak, GB | wall ratio | CPU ratio | memory ratio |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        first: Measured | None = None
        for name in names:
            tool = TOOLS[name]
            if tool.package and not _has(arguments.peers, tool.package):
                print(f"| {tool.title} | not installed | | | | | |")
                continue
            if name == "cached":
                measure(tool, path, cache, arguments.peers)
            result = measure(tool, path, cache, arguments.peers)
            first = first or result
            if result.exit_code:
                print(f"| {tool.title} | failed ({result.exit_code}) | | | | | |")
                continue
            print(
                f"| {tool.title} | {result.wall_s:.1f} | {result.cpu_s:.1f} | {result.peak_bytes / 1e9:.2f} |"
                f" {result.wall_s / first.wall_s:.2f} | {result.cpu_s / first.cpu_s:.2f} |"
                f" {result.peak_bytes / first.peak_bytes:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
