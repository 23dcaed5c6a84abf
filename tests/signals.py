#!/usr/bin/env python3
"""Interrupts commands at random moments: one line, the right exit code, no traceback, nothing left.

python tests/signals.py --moments 200 --seed 1 --log signals.jsonl [COMMAND...]

Each command is a copy of this process, which has imported torch; but `run` replaces its process, and imports it. A line
of the log is a moment; what was not as it should be is printed with what the command said.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import json
import os
import random
import runpy
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from forks import Copies, end_with

from molprof.cli import main as molprof

for module in ("capture", "models.load", "recording.record"):  # what the commands import
    importlib.import_module(f"molprof.profiler.{module}")

GRID = '[options]\nmodel = "llama"\nn = 1\nrepeats = 1\nwarmup = 0\nmax-new-tokens = 8\n[grid]\nbatch-size = [1, 2]\n'
PROGRAM = """
import torch
def work():
    for _ in range(3):
        with molprof.step():
            torch.ones(300, 300) @ torch.ones(300, 300)
            molprof.tokens([3])
import molprof
with molprof.record("out.json"):
    work()
"""
OWN = "import torch\nfor _ in range(9):\n    torch.ones(300, 300) @ torch.ones(300, 300)\n"
CAPTURE = "--model llama -n 1 --repeats 1 --warmup 0 --max-new-tokens 8"
LINES = {
    "capture": f"capture {CAPTURE} -o out.json",
    "record": "",
    "sweep": "sweep grid.toml -o swept",
    "attach": "attach URL --prompts ask.txt --regex [0-9]+ --max-new-tokens 9 --repeats 1 --trace-dir served "
    "--traces out",
    "run": "run --full -o out.json own.py",
}
SIGNALS = {"SIGINT": 2, "SIGTERM": 1, "SIGHUP": 1, "SIGINT SIGINT": 1}
GIVEN = {"grid.toml", "own.py", "program.py", "ask.txt", "served", "said", "tmp", "cache"}
AFTER_S = 20  # by when all processes have ended


def become(command: str, folder: Path, url: str) -> None:
    """The command in a session of its own, whose folders for caches and for temporary files are in `folder`."""
    os.setsid()
    os.chdir(folder)
    with open("said", "wb") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    os.environ |= {"MOLPROF_CACHE": str(folder.parent / "cache"), "TMPDIR": str(folder / "tmp")}
    tempfile.tempdir = None
    record = command == "record"
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(
            getattr(signal, name), signal.default_int_handler if record and name == "SIGINT" else signal.SIG_DFL
        )
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    subprocess.Popen = Copies  # type: ignore[misc]
    if record:
        runpy.run_path("program.py", run_name="__main__")
    else:
        molprof(LINES[command].replace("URL", url).split())


def group(session: int) -> list[int]:
    """Processes of the session, but those that have ended."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, _, _, of = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state not in "ZX":
                found.append(int(name))
    return found


def begun(command: str, folder: Path, url: str) -> int:
    for name in ("served", "tmp"):
        (folder / name).mkdir(parents=True)
    for name, text in {"grid.toml": GRID, "own.py": OWN, "program.py": PROGRAM, "ask.txt": "a\nb\n"}.items():
        (folder / name).write_text(text)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    if not (process := os.fork()):
        end_with(lambda: become(command, folder, url))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    return process


def wrong(command: str, sent: str, code: int, folder: Path) -> list[str]:
    """What is not as it should be after the command has ended."""
    said = (folder / "said").read_text(errors="replace")
    found = []
    twice, number = " " in sent, getattr(signal, sent.split()[0]) if sent else 0
    codes = {0, -number} if command == "record" or twice else {0, 130, -number}
    if command == "record" and number == signal.SIGINT:
        codes = {0, 1, -number}  # of a program that ends by an exception
    is_killed = twice or (command == "record" and code < 0)  # it cannot clean up: the next that writes there does
    if code not in codes | ({130} if twice else set()):
        found.append(f"exit code {code}")
    lines = [line for line in said.splitlines() if line.startswith("molprof: error: interrupted")]
    if code == 130 and len(lines) != 1:
        found.append(f"{len(lines)} lines of the interrupt")
    if ("Traceback" in said and command != "record") or "/profiler/" in said or "bug in molprof" in said:
        found.append("a traceback")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] == "tmp" and len(name.parts) > 1 and name.parts[1] != "data-gym-cache":  # which tiktoken keeps
            found.append(f"{name} is left")
        elif path.is_file() and name.parts[0] not in GIVEN:
            try:
                data = path.read_bytes()
                if path.suffix == ".gz":
                    data = gzip.decompress(data)
                if not (".molprof-part" in path.name and is_killed) and ".json" in path.suffixes[-2:]:
                    json.loads(data)
                elif ".molprof-part" in path.name and not is_killed:
                    found.append(f"{name} is left")
            except (ValueError, OSError, EOFError) as problem:
                found.append(f"{name} is not whole: {problem}")
    return found


def moment(command: str, sent: str, after_s: float, folder: Path, server: Any) -> tuple[int, list[str], float]:
    """Exit code, what was wrong, and the seconds until the end, of the command that gets signals after so long."""
    began = time.monotonic()
    if server is not None:
        server.folder = folder / "served"
    process = begun(command, folder, "" if server is None else server.url)
    time.sleep(after_s)
    for name in sent.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, getattr(signal, name))
        time.sleep(0.05)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    took = time.monotonic() - began
    end = time.monotonic() + AFTER_S
    while (rest := group(process)) and time.monotonic() < end:
        time.sleep(0.1)
    found = wrong(command, sent, code, folder)
    for left in rest:
        found.append(f"process {left} is left")
        os.kill(left, signal.SIGKILL)
    return code, found, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", default=list(LINES), help=" ".join(LINES))
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("signals.jsonl"))
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="molprof-signals-") as name, contextlib.ExitStack() as stack:
        server = None
        if "attach" in asked.commands:
            from test_attach import Fake

            server = stack.enter_context(Fake(Path(name)))
            threading.Thread(target=server.serve_forever, daemon=True).start()
        lives: dict[str, float] = {}
        for command in dict.fromkeys(asked.commands):
            code, found, lives[command] = moment(command, "", 0, Path(name, command), server)
            print(command, code, *found, f"{lives[command]:.1f} s", flush=True)
            if code:
                print(Path(name, command, "said").read_text()[-2000:])
        for number in range(asked.moments):
            command = asked.commands[number % len(asked.commands)]
            sent = chance.choices(list(SIGNALS), list(SIGNALS.values()))[0]
            after_s, folder = chance.uniform(0, 1.05 * lives[command]), Path(name, str(number))
            code, found, _ = moment(command, sent, after_s, folder, server)
            counts[f"{command} {sent}"] += 1
            record = {"command": command, "signal": sent, "after_s": round(after_s, 2), "code": code, "wrong": found}
            with asked.log.open("a") as log:
                log.write(json.dumps(record) + "\n")
            if found:
                counts[f"{command}: wrong"] += 1
                print(record, (folder / "said").read_text(errors="replace")[-3000:], sep="\n", flush=True)
            subprocess.run(["rm", "-rf", str(folder)], check=True)
    print(*sorted(counts.items()), sep="\n")


if __name__ == "__main__":
    main()
