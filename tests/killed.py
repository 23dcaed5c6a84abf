#!/usr/bin/env python3
"""Kills commands that write into one folder and one cache, at random moments: no half file, and no wrong figure.

python tests/killed.py --rounds 500 --seed 1

In each round two or three commands run at once, most of them are killed, and the same are then run to their end. Each
is a copy of this process. What was not as it should be is printed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import runpy
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

import tiny_trace
import torch
from forks import Copies, end_with

from molprof.cli import main as command_line

PROGRAM = """
import molprof, torch
with molprof.record("recorded.json.gz", force=True):
    for number in range(3):
        with molprof.step():
            torch.ones(50, 50) @ torch.ones(50, 50)
            molprof.tokens([3])
"""
TRACES = [f"traces/{number}.json" for number in range(3)]
LINES = {
    **{f"report-{number}.json": ["report", path] for number, path in enumerate(TRACES)},
    **{f"launches-{number}.csv": ["query", "launches", path] for number, path in enumerate(TRACES)},
    "trimmed.json.gz": ["trim", TRACES[0], "--from", "0s"],
    "exported.json": ["export", TRACES[1]],
    "rows.csv": ["report", "rows", "traces", "--parts", "parts"],
    "rows.json": ["report", "rows", "traces", "--parts", "parts", "--no-cache"],
    "compared.json": ["compare", TRACES[0], TRACES[1]],
    "recorded.json.gz": [],
}


def become(name: str, folder: Path) -> None:
    os.setsid()
    os.chdir(folder)
    with open(f"{folder}.said", "ab") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    os.environ["MOLPROF_CACHE"] = str(folder / "cache")
    subprocess.Popen = Copies  # type: ignore[misc]
    if LINES[name]:
        command_line([*LINES[name], "-o", name, "--force"])
    Path("program.py").write_text(PROGRAM)
    runpy.run_path("program.py", run_name="__main__")


def begun(name: str, folder: Path) -> int:
    if not (process := os.fork()):
        end_with(lambda: become(name, folder))
    return process


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def content(path: Path) -> object:
    """What the file holds; of a recorded trace, as each has its own times, what ran. Raises ValueError, EOFError."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if path.name == "recorded.json.gz":
        events = json.loads(data)["traceEvents"]
        return Counter(event["name"] for event in events if event.get("cat") in ("cpu_op", "molprof.token"))
    return data


def folder_of(path: Path) -> Path:
    """A new folder with the traces."""
    for number, name in enumerate(TRACES):
        document = tiny_trace.document()
        document["traceEvents"] += [
            tiny_trace.slice_("cpu_op", f"aten::add_{i}", 1000 + i, 1) for i in range(number * 300)
        ]
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        tiny_trace.write(path / name, document)
    return path


def wrong(folder: Path, names: Sequence[str], expected: dict[str, object], when: str) -> list[str]:
    found = []
    for name in names:
        if (path := folder / name).exists():
            try:
                if content(path) != expected[name]:
                    found.append(f"{name} differs {when}")
            except (ValueError, OSError, EOFError) as problem:
                found.append(f"{name} is not whole {when}: {problem}")
        elif when == "afterwards":
            found.append(f"{name} is missing")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance, counts = random.Random(asked.seed), Counter[str]()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="molprof-killed-") as base:
        first, folder = folder_of(Path(base, "first")), folder_of(Path(base, "shared"))
        lives = {}
        for name in LINES:
            began = time.monotonic()
            assert ended(begun(name, first)) == 0, Path(f"{first}.said").read_text()
            lives[name] = time.monotonic() - began
        expected = {name: content(first / name) for name in LINES}
        end = time.monotonic() + asked.seconds
        while counts["rounds"] < asked.rounds and time.monotonic() < end:
            if chance.random() < 0.4:
                shutil.rmtree(folder / chance.choice(["cache", "parts"]), ignore_errors=True)
            names = chance.choices(list(LINES), k=chance.choice((2, 2, 3)))
            if chance.random() < 0.5:
                names[1] = names[0]
            began = time.monotonic()
            processes = [begun(name, folder) for name in names]
            moments = sorted((began + chance.uniform(0, 1.3 * lives[name]), process) for name, process in
                             zip(names, processes, strict=True))  # fmt: skip
            kept = chance.random() < 0.3 and moments.pop()[1]
            for moment, process in moments:
                time.sleep(max(0, moment - time.monotonic()))
                os.kill(process, signal.SIGKILL)
            codes = [ended(process) for process in processes]
            counts["killed"] += codes.count(-signal.SIGKILL)
            found = wrong(folder, names, expected, "after the kill")
            if kept and codes[processes.index(kept)]:
                found.append(f"{names[processes.index(kept)]}: exit code {codes[processes.index(kept)]}")
            for name in dict.fromkeys(names):
                if code := ended(begun(name, folder)):
                    found.append(f"{name} afterwards: exit code {code}")
            found += wrong(folder, names, expected, "afterwards")
            found += [f"{path.name} is left" for path in folder.iterdir() if ".molprof-part" in path.name]
            counts["rounds"] += 1
            if found:
                counts["wrong"] += 1
                print(
                    f"round {counts['rounds']}: {names}", *found, Path(f"{folder}.said").read_text()[-2000:], sep="\n"
                )
            Path(f"{folder}.said").write_text("")
            if counts["rounds"] % 20 == 0:
                print(dict(counts), flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
