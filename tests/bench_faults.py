"""A worker whose cases go wrong, each in its own way: the model's name says how. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from molprof.profiler.bench.answers import FACTS, Answer, UnsupportedError
from molprof.profiler.bench.worker import serve

ROW_BYTES = 40_000_000
ENVIRONMENT = {"cpu": "a test", "torch": "0", "cores": 1, "threads": 1}
FIGURES: dict[str, Any] = {"wall_ns": [2_000_000], "phases_ns": [{"forward": 1_500_000}], "tokens": 10, "steps": 5}


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


def stuck_here(seconds: float) -> None:
    while seconds > 0:
        time.sleep(1)
        seconds -= 1


def run(request: dict[str, Any]) -> Answer:
    if request["kind"] == FACTS:
        return {
            "figures": {
                "device": "cpu", "capability": None, "compiler": False, "packages": [], "environment": ENVIRONMENT,
            }
        }  # fmt: skip
    fault, rows = request["model"], request["batch_size"]
    if fault == "sleep":
        subprocess.Popen(["sleep", "600"])
        # One that leaves the session, and one whose parent is gone.
        subprocess.Popen(["setsid", "sleep", "600"])
        subprocess.run(["sh", "-c", "setsid sleep 600 & exit 0"], check=True)
        stuck_here(600)
    elif fault == "hold the lock":
        ctypes.PyDLL(None).sleep(600)  # with the interpreter's lock held: no Python code runs any more
    elif fault == "segfault":
        ctypes.string_at(0)
    elif fault == "allocate":
        held = []
        while True:
            held.append(bytearray(os.urandom(1) * 50_000_000))
    elif fault == "rows":
        block = bytearray(b"x") * (rows * ROW_BYTES)
        time.sleep(0.5 if len(block) else 0)
    elif fault == "raise":
        raise ValueError("no such luck\x1b[31m")
    elif fault == "unsupported":
        raise UnsupportedError("torch's own reason")
    elif fault == "memory error":
        raise MemoryError
    elif fault == "GPU memory":
        try:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        except RuntimeError as problem:
            raise ValueError("the model does not fit") from problem
    elif fault == "leave":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(3)
    elif fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "talk":
        sys.stdout.write("this is no answer\n")
        sys.stdout.flush()
        os.system("echo nor is this")
    elif fault.startswith("wait "):
        time.sleep(float(fault.removeprefix("wait ")))
    return {"figures": FIGURES, "environment": ENVIRONMENT}


def main() -> None:
    serve(run)
