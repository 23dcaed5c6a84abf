#!/usr/bin/env python3
"""Everything that a GPU has to show, measured by one command on a machine with one NVIDIA GPU. Needs no network.

    python benchmarks/gpu.py results                     all parts: 25 minutes at most
    python benchmarks/gpu.py results --part qwen         one part: 8 minutes at most
    python benchmarks/gpu.py rehearsal --size tiny       the same steps on a CPU, with tiny models

FOLDER gets one tar file for each part, evidence.json (what ran, how it ended) and log.txt. Each step is kept as soon
as it ends. Run it again to go on: steps that are done are not repeated. docs/gpu.md says how
to show what it measured, docs/offline.md how to install molprof without a network.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpu_parts import FILE, FULL, SIZES, Part, Step, parts
from msgspec.structs import asdict
from shared import parser, progress

from molprof.common.errors import MolprofError, UsageError
from molprof.common.files import replacing
from molprof.common.process import call_line, command_line, run_line
from molprof.common.values import now

HERE = Path(__file__).resolve().parent
SCHEMA = 1
EVIDENCE, LOG = "evidence.json", "log.txt"
MOST_BYTES = 16_000_000  # of a file in the folder
LEAST_S = 5.0  # with less time left, no step is started
_WHY_CHARACTERS = 500


class Results:
    """The folder: what ran, and the files of each part. Every change is on disk at once, whole."""

    def __init__(self, folder: Path, size: str, environment: Mapping[str, Any]) -> None:
        """Takes up what an earlier call left. Raises UsageError if that is of another machine or size."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[str, Any] = {
            "schema": SCHEMA, "size": size, "environment": dict(environment), "started": now(), "parts": {}
        }  # fmt: skip
        if (path := folder / EVIDENCE).exists():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
                same = all(found[key] == self._known[key] for key in ("schema", "size", "environment"))
            except (ValueError, KeyError, TypeError) as problem:
                raise UsageError(f"{path} is damaged: {problem}", "name another folder") from problem
            if not same:
                raise UsageError(f"{folder} has results of another machine, software or size", "name another folder")
            self._known = found

    def done(self, part: str) -> set[str]:
        return {step["name"] for step in self.steps(part) if step["state"] == "done"}

    def steps(self, part: str) -> list[dict[str, Any]]:
        return self._known["parts"].get(part, {}).get("steps", [])

    def unpack(self, part: str, into: Path) -> None:
        if (path := self._tar(part)).exists():
            with tarfile.open(path) as tar:
                tar.extractall(into, filter="data")

    def keep(self, part: str, files: Path, step: dict[str, Any]) -> None:
        """Notes how a step ended, and packs the files of the part.

        A file that makes the part too large is left out, and its step has failed.
        """
        packed = _packed(files)
        if len(packed) > MOST_BYTES and step["file"] is not None:
            (files / step["file"]).unlink()
            step |= {"state": "failed", "file": None, "why": f"the files of a part exceed {MOST_BYTES:,} bytes"}
            packed = _packed(files)
        with replacing(self._tar(part)) as path:
            path.write_bytes(packed)
        entry = self._known["parts"].setdefault(part, {"steps": []})
        entry["steps"] = [other for other in entry["steps"] if other["name"] != step["name"]] + [step]
        entry["seconds"] = round(sum(other["seconds"] for other in entry["steps"]), 1)
        with replacing(self.folder / EVIDENCE) as path:
            path.write_text(json.dumps(self._known, indent=1) + "\n", encoding="utf-8")

    def _tar(self, part: str) -> Path:
        return self.folder / f"{part}.tar"


def _packed(files: Path) -> bytes:
    """The files of a folder as a tar without names or times of this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(files.iterdir()):
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(member, file)
    return buffer.getvalue()


def run_part(results: Results, name: str, part: Part, again: bool) -> None:
    """Runs the steps that are not done, within the part's time limit."""
    done = set() if again else results.done(name)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="molprof-gpu-") as scratch, (results.folder / LOG).open("ab") as log:
        results.unpack(name, Path(scratch))
        for number, step in enumerate(part.steps, start=1):
            head = f"{name} {number}/{len(part.steps)} {step.name}"
            if step.name in done:
                progress(f"{head}: done before")
                continue
            left = part.limit_s - (time.monotonic() - began)
            if left < LEAST_S:
                ended = {"state": "left out", "exit_code": None, "seconds": 0.0, "file": None}
                why = f"the part's {part.limit_s:g} s were over; run the part again"
                results.keep(name, Path(scratch), {"name": step.name, "command": list(step.line), **ended, "why": why})
                progress(f"{head}: left out, {why}")
                continue
            progress(f"{head} ...")
            log.write(f"\n== {head}: {' '.join(step.line)}\n".encode())
            entry = _run(step, Path(scratch), log, min(step.limit_s, left))
            results.keep(name, Path(scratch), entry)
            why = f": {entry['why']}" if entry["why"] else ""
            progress(f"{head}: {entry['state']} after {entry['seconds']:g} s{why}")


def _run(step: Step, folder: Path, log: Any, limit_s: float) -> dict[str, Any]:
    """How the step ended. A file of a failed step stays if it is one that a benchmark goes on with."""
    words = [str(folder / step.file) if word == FILE else word for word in step.line]
    line = command_line(words[1:]) if words[0] == "molprof" else [sys.executable, str(HERE / words[0]), *words[1:]]
    began = time.monotonic()
    ending = run_line(line, folder, log, limit_s)
    made = folder / step.file
    if ending.state != "ok" and made.suffix != ".jsonl":
        made.unlink(missing_ok=True)
    for left in folder.iterdir():
        if left.name.startswith("."):  # half-written
            left.unlink()
    state = "done" if ending.state == "ok" else ending.state
    why = None if ending.message is None else ending.message[:_WHY_CHARACTERS]
    return {
        "name": step.name,
        "command": list(step.line),
        "state": state,
        "exit_code": ending.exit_code,
        "seconds": round(time.monotonic() - began, 1),
        "file": step.file if made.exists() else None,
        "why": why,
    }


def print_environment() -> None:
    """This machine's, as JSON on stdout. Runs in a process of its own, so that this one never holds the GPU."""
    from molprof.profiler.environment import environment
    from molprof.profiler.models.device import resolve_device

    print(json.dumps(asdict(environment(resolve_device("auto")))))


def read_environment() -> dict[str, Any]:
    child = subprocess.run(call_line("gpu:print_environment"), stdout=subprocess.PIPE, text=True, check=False)
    if child.returncode:
        raise MolprofError("torch or transformers does not load here", hint="molprof doctor")
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def summary(results: Results, chosen: Mapping[str, Part]) -> bool:
    """Prints how every step of the chosen parts ended; whether all are done."""
    complete = True
    for name, part in chosen.items():
        states = [step["state"] for step in results.steps(name)]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        complete &= states.count("done") == len(part.steps)
        size = sum(path.stat().st_size for path in results.folder.glob(f"{name}.tar"))
        print(f"{name:10} {counts or 'not run'}; {size / 1e6:.1f} MB")
    return complete


def main() -> int:
    known = parts(FULL)
    options = parser(__doc__)
    options.add_argument("folder", type=Path, help="folder for the results; one of an earlier call goes on")
    options.add_argument("--part", choices=known, action="append", help="run this part only; repeatable")
    options.add_argument("--size", choices=SIZES, default=FULL, help="tiny: a rehearsal on a CPU")
    options.add_argument("--again", action="store_true", help="repeat steps that are done")
    options.add_argument("--list", action="store_true", help="list the parts and their steps, and run nothing")
    given = options.parse_args()
    chosen = {name: part for name, part in parts(given.size).items() if given.part is None or name in given.part}
    if given.list:
        for name, part in chosen.items():
            print(f"{name}: {part.text}; at most {part.limit_s / 60:.1f} minutes")
            for step in part.steps:
                print(f"  {' '.join(step.line)}")
        return 0
    # Whoever stops this process stops the running step too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    environment = read_environment()
    if given.size == FULL and environment["gpu"] is None:
        raise UsageError("torch sees no GPU here", "molprof doctor says why; --size tiny rehearses on a CPU")
    results = Results(given.folder, given.size, environment)
    for name, part in chosen.items():
        run_part(results, name, part, given.again)
    complete = summary(results, chosen)
    return 0 if complete else 1


def guarded(function: Callable[[], int]) -> int:
    """The exit code of a script; an error of molprof is one line."""
    try:
        return function()
    except MolprofError as problem:
        hint = f"\n  {problem.hint}" if problem.hint else ""
        print(f"error: {problem}{hint}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("interrupted; steps that were done are kept, and the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(guarded(main))
