#!/usr/bin/env python3
"""Whether paired captures tell a difference from the machine: pairs of which the truth is known, quiet and busy.

    python benchmarks/pairs.py -o pairs.json             (20 A/A and 4 of each A/B, quiet and busy; about 15 minutes)
    python benchmarks/pairs.py --quick

A/A: one configuration twice (`same`), and one processor under two names (`names`), which a comparison must not take for
equal work. A/B: a processor that takes 1 %, 3 % or 10 % of a step, asleep or computing, against one that takes none;
what it took is known, what the machine does after a sleep is not. Busy: beside a loop on every core. Each pair is a
whole capture and its comparison. With -o an interrupted series goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import waiting
from shared import keep, parser, progress, table

from molprof.common.files import read_text
from molprof.common.memory import default_threads, let_threads_sleep, processors

QUIET, BUSY = "quiet", "busy"
SAME, NAMES = "same", "names"
WAITS = ("sleep_1", "sleep_3", "sleep_10", "spin_3", "spin_10")
PART = "processor.host"
# Ends with its parent, which may be killed.
_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@dataclass(frozen=True)
class Pair:
    """One pair of runs; times in ns by round."""

    kind: str
    load: str
    number: int
    ratio: float
    low: float | None  # low, high: interval of the ratio
    high: float | None
    true_ratio: float
    part_ns: int  # of the processor in the difference
    part_low: float | None
    part_high: float | None
    taken_ns: float
    causes: list[str]
    doubts: list[str]
    seconds: float

    @property
    def key(self) -> tuple[str, str, int]:
        return self.kind, self.load, self.number


class Series:
    """Makes pairs of one loaded model."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        let_threads_sleep()  # before torch is imported
        import torch

        from molprof.common.settings import CaptureSettings
        from molprof.profiler.models.load import load
        from molprof.profiler.molecules.prompts import read_prompts

        torch.set_num_threads(default_threads(torch.get_num_threads()))
        self._folder = folder
        self._settings = CaptureSettings(
            options.model, count=2, batch_size=2, max_new_tokens=options.tokens, repeats=options.rounds, warmup=0
        )
        self._loaded, self._prompts = load(self._settings), read_prompts(None, 2)
        waiting.STEP_NS = self._step_ns()

    def _step_ns(self) -> int:
        from molprof.profiler.engines.runner import Runner

        runner = Runner(self._loaded, None, self._settings)
        plans = runner.plan(self._prompts.prompts)
        walls = [runner.run(plans, None) for _ in range(4)][1:]  # the first one warms up
        return round(min(found.wall_ns / found.batches[0].steps for found in walls))

    def pair(self, kind: str, load: str, number: int) -> Pair:
        """One capture of two runs and its comparison."""
        from molprof import api
        from molprof.analysis.compare import compare
        from molprof.profiler.capture.capture import interleaved
        from molprof.profiler.capture.run import CapturedRun
        from molprof.profiler.recording.tracefile import OutputFile

        names = {SAME: (None, None), NAMES: ("one", "another")}.get(kind, ("one", kind))
        began = time.monotonic()
        taken: list[int] = []

        def watch(state: Any) -> None:
            """Note what the timed passes of the second run wait."""
            if state.stage == "repeat" and state.run == "b":
                if state.batch:
                    taken.append(waiting.TAKEN_NS[kind] if kind in WAITS else 0)
                elif kind in WAITS:
                    waiting.TAKEN_NS[kind] = 0

        runs = [
            CapturedRun(
                replace(self._settings, processor=name and f"waiting:{name}"),
                OutputFile(self._folder / f"{run}.json", force=True),
                self._loaded,
                self._prompts,
                watch,
                run,
            )
            for run, name in zip("ab", names, strict=True)
        ]
        first, other = (api.report(result.path) for result in interleaved(runs, seed=number))
        comparison = compare([first, other])
        (item,) = comparison.differences
        row = comparison.wall
        interval = row.ratio_intervals[1]
        assert item is not None
        assert first.run is not None
        part = item.intervals.get(PART)
        base = statistics.fmean(repeat.wall_ns for repeat in first.run.repeats)
        taken_ns = statistics.fmean(taken)
        return Pair(
            kind, load, number, row.ratios[1] or 0.0,
            interval and interval.low, interval and interval.high, 1 + taken_ns / base,
            item.parts.get(PART, 0), part and part.low, part and part.high, taken_ns,
            list(item.causes), list(item.doubts), time.monotonic() - began,
        )  # fmt: skip


@contextlib.contextmanager
def loops(count: int) -> Iterator[None]:
    """So many other programs that compute all the time."""
    running = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def holds(low: float | None, value: float, high: float | None) -> bool:
    return low is not None and high is not None and low <= value <= high


def _said(kind: str) -> str:
    way, _, percent = kind.partition("_")
    if percent:
        return f"A/B, {percent} % {'asleep' if way == 'sleep' else 'computing'}"
    return {SAME: "A/A", NAMES: "A/A, two names"}[kind]


def summary(pairs: list[Pair]) -> str:
    rows = []
    for kind, load in dict.fromkeys((pair.kind, pair.load) for pair in pairs):
        mine = [pair for pair in pairs if (pair.kind, pair.load) == (kind, load)]
        expected = {PART} if kind in WAITS else set()
        ratio = statistics.median(pair.ratio for pair in mine)
        true = statistics.median(pair.true_ratio for pair in mine)
        # A wait costs a little itself: what runs next finds cold caches.
        sizes = [abs(pair.part_ns - pair.taken_ns) <= 0.05 * pair.taken_ns for pair in mine]
        rows.append(
            (
                _said(kind),
                load,
                str(len(mine)),
                str(sum(bool(set(pair.causes) - expected) for pair in mine)),
                str(sum(holds(pair.low, pair.true_ratio, pair.high) for pair in mine)),
                str(sum(PART in pair.causes for pair in mine)) if expected else "-",
                str(sum(sizes)) if expected else "-",
                f"{ratio:.3f}x",
                f"{true:.3f}x",
            )
        )
    head = (
        "pair", "machine", "pairs", "false causes", "interval holds the true ratio", "found", "to 5 %",
        "median ratio", "true ratio",
    )  # fmt: skip
    return table(head, rows, left=2)


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--model", default="qwen")
    asked.add_argument("--same", type=int, default=20, help="pairs A/A for each load, half of them under two names")
    asked.add_argument("--waiting", type=int, default=4, help="pairs A/B for each load and wait")
    asked.add_argument("--rounds", type=int, default=8)
    asked.add_argument("--tokens", type=int, default=16, help="decode steps of a pass")
    asked.add_argument("--quick", action="store_true", help="two A/A, one A/B, three rounds of few steps")
    asked.add_argument("-o", "--output", type=Path, help="keep the pairs in this file, and go on with what it has")
    options = asked.parse_args()
    if options.quick:
        options.same, options.waiting, options.rounds, options.tokens = 2, 1, 3, 6
    kept = [] if options.output is None or not options.output.exists() else json.loads(read_text(options.output))
    pairs = [Pair(**item) for item in kept]
    done = {pair.key for pair in pairs}
    plan = [(NAMES if number % 2 else SAME, number) for number in range(options.same)]
    plan += [(kind, number) for number in range(options.waiting) for kind in WAITS]
    left = [(kind, load, number) for load in (QUIET, BUSY) for kind, number in plan]
    left = [key for key in left if key not in done]

    with tempfile.TemporaryDirectory(prefix="molprof-pairs-") as name:
        series = Series(options, Path(name)) if left else None
        for place, (kind, load, number) in enumerate(left, start=1):
            assert series is not None
            with loops(processors() if load == BUSY else 0):
                pairs.append(series.pair(kind, load, number))
            progress(f"{place} of {len(left)}: {kind} {load} {pairs[-1].ratio:.3f}x, {pairs[-1].seconds:.1f} s")
            keep(options.output, pairs)
    print(summary(pairs))


if __name__ == "__main__":
    main()
