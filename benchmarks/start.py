"""Times of commands that people wait for: wall time of whole processes, with an empty cache, and again.

    python benchmarks/start.py                   # help, report, compare, query of traces/
    python benchmarks/start.py --demo            # the demo too: a minute more

The trace processor is compiled before, as an installation does once. Compare ratios of one run; targets are for two
quiet cores.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared import ROOT, parser, progress, table

FOUR = tuple(f"traces/cpu-{name}.json.gz" for name in ("llama", "llama-generic", "qwen", "qwen-generic"))
_PRESET = (
    "import time, molprof.profiler.capture.capture\n"
    "from molprof.common.settings import CaptureSettings\n"
    "from molprof.profiler.models.load import load\n"
    "begin = time.perf_counter()\n"
    "load(CaptureSettings(model='qwen'))\n"
    "print(time.perf_counter() - begin)"
)


@dataclass(frozen=True)
class Command:
    """A command line, and what its times should be at most, s; None: no target."""

    text: str
    first_s: float | None = None
    again_s: float | None = None


COMMANDS = (
    Command("--help", 0.1, 0.1),
    Command("report traces/cpu-qwen.json.gz", 0.6, 0.15),
    Command(f"compare {' '.join(FOUR)}", 1.0),
    Command("query launches traces/cpu-qwen.json.gz", None, 0.2),
    Command("query steps traces/cpu-qwen.json.gz", None, 0.2),
)


def measured(line: Sequence[str], cache: Path) -> float:
    """Wall time of a process, s. Raises CalledProcessError where it fails."""
    environment = {**os.environ, "MOLPROF_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed, code is compiled once
    begin = time.perf_counter()
    subprocess.run(line, check=True, cwd=ROOT, env=environment, capture_output=True)
    return time.perf_counter() - begin


def times(line: Sequence[str], repeats: int) -> tuple[float, float]:
    """Medians of the first time, with an empty cache, and of the next."""
    first, again = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            first.append(measured(line, Path(folder)))
            again.append(measured(line, Path(folder)))
    return statistics.median(first), statistics.median(again)


def loading(repeats: int) -> float:
    """Median time to load the preset qwen in a process that has imported torch and transformers, s."""
    found = []
    for _ in range(repeats):
        line = [sys.executable, "-c", _PRESET]
        found.append(float(subprocess.run(line, check=True, cwd="/", capture_output=True, text=True).stdout))
    return statistics.median(found)


def row(name: str, seconds: Sequence[float | None], targets: Sequence[float | None]) -> list[str]:
    shown = [name]
    for value, target in zip(seconds, targets, strict=True):
        shown += ["" if value is None else f"{value:.2f}", "" if target is None else f"{target:g}"]
    return shown


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--demo", action="store_true", help="measure the demo too, once")
    asked = options.parse_args()
    molprof = [sys.executable, "-m", "molprof"] if (found := shutil.which("molprof")) is None else [found]
    rows = []
    for command in COMMANDS:
        line = [*molprof, *command.text.split()]
        measured(line, Path(tempfile.gettempdir(), "molprof-start"))  # compiles, and reads the files from the disk
        rows.append(row(f"`molprof {command.text}`", times(line, asked.repeats), (command.first_s, command.again_s)))
        progress(" ".join(rows[-1]))
    rows.append(row("load a preset, torch imported", (loading(asked.repeats), None), (1.5, None)))
    progress(" ".join(rows[-1]))
    if asked.demo:
        with tempfile.TemporaryDirectory() as folder:
            line = [*molprof, "demo", "-o", f"{folder}/demo"]
            rows.append(row("`molprof demo`", (measured(line, Path(folder, "cache")), None), (75, None)))
            progress(" ".join(rows[-1]))
    print(table(("command", "first, s", "at most", "again, s", "at most"), rows))


if __name__ == "__main__":
    main()
