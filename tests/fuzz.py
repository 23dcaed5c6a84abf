#!/usr/bin/env python3
"""Tries random inputs of all kinds for some time: prints each new failure with its smallest input, and counts of all.

python tests/fuzz.py --seconds 3600 --inputs 100000 --seed 1 --log fuzz.jsonl [KIND...]

Rounds of a thousand inputs repeat with the same seed and number. A line of the log is a round of one kind: its inputs,
those that were read whole, failures (`again`: of a place that failed before) and seconds of CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Of each thousand inputs.
SHARES = {"traces": 100, "manifests": 250, "schemas": 200, "requests": 200, "grids": 150, "names": 100}
MOST_CPU_S = 30  # of one input


def place_of(problem: BaseException) -> str:
    """Kind of a failure, and the last line of molprof that it went through."""
    lines = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(problem.__traceback__)]
    ours = [line for line in lines if "site-packages" not in line and "/lib/python" not in line]
    return f"{type(problem).__name__} in {ours[-1] if ours else '?'}"


def tried(
    strategy: Any, reads: Callable[[Path, Any], bool], inputs: int, number: int, folder: Path, known: set[str]
) -> Counter[str]:
    """Counts of a round. A failure of a place that is not known is printed with its smallest input, and then known."""
    counts: Counter[str] = Counter()
    last: list[Any] = []

    @seed(number)
    @settings(
        max_examples=inputs, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[*HealthCheck], report_multiple_bugs=False, verbosity=Verbosity.quiet,
    )  # fmt: skip
    @given(strategy)
    def check(value: Any) -> None:
        last[:] = [value]
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
        try:
            counts["read"] += reads(folder, value)
        except Exception as problem:
            if place_of(problem) not in known:
                raise
            counts["again"] += 1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            counts["inputs"] += 1

    try:
        check()
    except Exception as problem:
        counts["failures"] += 1
        known.add(place_of(problem))
        traceback.print_exception(problem, limit=-6, chain=False, file=sys.stdout)
        whole = folder.parent / f"molprof-fuzz-{os.getpid()}-{number}.txt"
        whole.write_text(ascii(last))
        print(f"round {number}: {place_of(problem)}\n{ascii(last)[:1000]}\nwhole: {whole}\n", flush=True)
    return counts


def too_long(*_: object) -> None:
    raise TimeoutError(f"an input took {MOST_CPU_S} s of CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(SHARES), help=" ".join(SHARES))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--inputs", type=int, default=100_000, help="end after as many, of all kinds together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("fuzz.jsonl"))
    asked = parser.parse_args()
    signal.signal(signal.SIGPROF, too_long)
    with tempfile.TemporaryDirectory(prefix="molprof-fuzz-") as name:
        folder = Path(name)
        os.environ["MOLPROF_CACHE"] = str(folder / "cache")
        from test_hostile import KINDS

        known: set[str] = set()
        total: Counter[str] = Counter()
        end, number = time.monotonic() + asked.seconds, asked.seed * 1_000_000
        while time.monotonic() < end and total["inputs"] < asked.inputs:
            for kind in asked.kinds:
                began = time.process_time()
                counts = tried(*KINDS[kind], SHARES[kind], number, folder, known)
                total += counts
                with asked.log.open("a") as log:
                    cpu_s = round(time.process_time() - began, 1)
                    log.write(json.dumps({"kind": kind, "round": number, **counts, "cpu_s": cpu_s}) + "\n")
            number += 1
            gc.collect()
        print(dict(total), *sorted(known), sep="\n")


if __name__ == "__main__":
    main()
