#!/usr/bin/env python3
"""What recording costs: the same decode steps without the profiler, beside recorded steps, and recorded.

    python benchmarks/overhead.py --model qwen --size 0.6b -o overhead-qwen.json

Each round runs one batch three times: without phase timestamps, with them, and with some of the steps recorded as
`molprof capture` records them. Times are medians over rounds, of each step; ratios are medians over steps.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from operator import truediv
from pathlib import Path
from typing import Any

from msgspec.structs import asdict
from shared import keep, parser, progress

from molprof.common.settings import CaptureSettings
from molprof.profiler.engines.runner import Runner
from molprof.profiler.environment import environment
from molprof.profiler.models.load import load
from molprof.profiler.molecules.prompts import read_prompts
from molprof.profiler.recording.cost import mark_cost_ns
from molprof.profiler.recording.marks import HostMarks
from molprof.profiler.recording.window import ProfilerMarks, Steps, recording

WARM_STEPS = 5  # the first steps of a batch are slower


class TimedRecording(ProfilerMarks):
    """Records a window, goes on after it, and takes the phase timestamps of all steps.

    The profiler starts at the end of the step before the window and stops at the beginning of the one after it.
    """

    def __init__(self, host: HostMarks, window: tuple[int, int], runner: Runner) -> None:
        super().__init__(runner.loaded.target.device, Steps(0, *window))
        self._host, self._last = host, window[1]

    def begin(self, batch: int) -> None:
        super().begin(batch)
        self._host.begin(batch)

    def forward(self) -> None:
        ends = self._recording and self._step == self._last
        if ends:
            self._host.forward()
            self.finish()
        super().forward()
        if not ends:
            self._host.forward()

    def processor(self) -> None:
        super().processor()
        self._host.processor()

    def sampling(self) -> None:
        super().sampling()
        self._host.sampling()

    def bookkeeping(self) -> None:
        super().bookkeeping()
        self._host.bookkeeping()

    def end(self) -> None:
        self._host.end()
        super().end()


def measure(settings: CaptureSettings, window: tuple[int, int], rounds: int) -> dict[str, Any]:
    """The figures of one model; `step_ns` are per step, ratios are over the steps that are not recorded."""
    loaded = load(settings)
    runner = Runner(loaded, None, settings)
    plans = runner.plan(read_prompts(None, settings.batch_size).prompts)
    with tempfile.TemporaryDirectory() as folder, recording(Path(folder) / "first.json", loaded.target.device):
        runner.synchronize()  # the first recording of a process sets up what all need
    runner.run(plans, HostMarks())
    plain, passes, bare_passes, recorded = [], [], [], []
    for number in range(rounds):
        progress(f"{settings.model}: round {number + 1} of {rounds}")
        bare_passes.append(runner.run(plans, None).wall_ns)
        marks = HostMarks()
        passes.append(runner.run(plans, marks).wall_ns)
        plain.append(marks.steps_ns()[0])
        host = HostMarks()
        marked = TimedRecording(host, window, runner)
        runner.run(plans, marked)
        marked.finish()
        recorded.append(host.steps_ns()[0])
    base, with_recording = _medians(plain), _medians(recorded)
    first, last = window
    # Starting and stopping the profiler falls into the steps beside the window.
    spans = {"before": (WARM_STEPS, first - 1), "inside": (first, last + 1), "after": (last + 2, len(base))}
    ratios = {name: _ratio(with_recording[slice(*span)], base[slice(*span)]) for name, span in spans.items()}
    return {
        "model": settings.model,
        "size": settings.size,
        "environment": asdict(environment(loaded.target.device)),
        "batch_size": settings.batch_size,
        "rounds": rounds,
        "window": list(window),
        "step_ns": {"unprofiled": base, **ratios},
        "pass_ratio": statistics.median(map(truediv, passes, bare_passes)),
        "mark_ns": mark_cost_ns(),
    }


def _medians(rounds: Sequence[Sequence[int]]) -> list[float]:
    return [statistics.median(step) for step in zip(*rounds, strict=True)]


def _ratio(values: Sequence[float], base: Sequence[float]) -> float | None:
    return statistics.median(map(truediv, values, base)) if values else None


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--model", default="qwen", help="a preset")
    options.add_argument("--size", help="its size, as of molprof capture")
    options.add_argument("--tiny", action="store_true", help="a few steps of two molecules on the CPU")
    options.add_argument("-o", dest="output", type=Path, help="keep the figures in this file too")
    given = options.parse_args()
    common: dict[str, Any] = {"size": given.size, "dtype": "bfloat16", "batch_size": 32, "max_new_tokens": 96}
    window, rounds = (30, 39), 3
    if given.tiny:
        common = {"device": "cpu", "batch_size": 2, "max_new_tokens": 24}
        window, rounds = (8, 12), 1
    found = measure(CaptureSettings(given.model, **common), window, rounds)
    print(json.dumps(found, indent=1))
    keep(given.output, found)


if __name__ == "__main__":
    main()
