#!/usr/bin/env python3
"""What each logits processor costs and does to the text, side by side: the tables of docs/processors.md.

    python benchmarks/processors.py [-n 64] [--batch-size 32] [--rounds 2] [--models qwen,llama] [--only none,grammar]
    python benchmarks/processors.py --models qwen -o processors-qwen.json    (shown.py makes the tables, anywhere)

Same model, molecules, dtype, device and greedy decoding for all, in one process. Each round runs every processor once;
times are ratios to no processor within a round, medians over rounds: of a whole pass, and of the model's forward in a
decode step, which no processor should change. On a CPU they are ratios of CPU time, which other processes disturb less
than wall time. Absolute figures hold for one machine on one day. The second table has the coordinates (quality.py).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from records import PROCESSORS as RECORD
from records import SCHEMA, Answer, Cost, Costs, CostSettings, Round
from shared import generation_parser, progress
from shown import finish
from torch.utils._python_dispatch import TorchDispatchMode

from molprof.common.errors import MolprofError
from molprof.common.settings import CaptureSettings
from molprof.common.values import now
from molprof.profiler.capture.account import sequence_runs
from molprof.profiler.constraints import PROCESSORS, make_processor
from molprof.profiler.engines.runner import Runner
from molprof.profiler.environment import environment
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.molecules.prompts import Prompt, read_prompts
from molprof.profiler.recording.marks import HostMarks

COUNTED_STEPS = 40


def runner(loaded: LoadedModel, processor: Any, **settings: Any) -> Runner:
    """A greedy runner with `settings` of `CaptureSettings` besides the model."""
    return Runner(loaded, processor, CaptureSettings(loaded.name, template_threads=1, **settings))


class Counting(TorchDispatchMode):
    """Counts operators that compute; views do not. On a GPU each of them launches a kernel, and Triton's kernels
    come on top."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += not (func.is_view or name in ("_unsafe_view", "alias"))
        return func(*args, **(kwargs or {}))


class Counted:
    """A processor, and the batch processor that it started last, whose calls and operators are counted."""

    masked_logits = None

    def __init__(self, inner: Any) -> None:
        self._inner, self._counting, self._calls = inner, Counting(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start(self, templates: Any, prompt_width: int) -> Any:
        self._batch = self._inner.start(templates, prompt_width)
        return self

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self._calls += 1
        with self._counting:
            return self._batch(input_ids, scores)

    def operators_per_step(self) -> float:
        return self._counting.count / self._calls


def main() -> None:
    parser = generation_parser(__doc__, count=64, batch_size=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", help="processors, separated by commas; none is always run")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--note", help="a sentence on the machine, for the page")
    options = parser.parse_args()
    models, left_out = {}, {}
    for name in options.models.split(","):
        loaded = load(CaptureSettings(name, size=options.size, device=options.device, dtype=options.dtype))
        models[name], left_out[name] = measure(loaded, read_prompts(None, options.count).prompts, options)
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    settings = CostSettings(
        options.size, options.count, options.batch_size, options.rounds, dtype, options.max_new_tokens
    )
    where = environment(loaded.target.device)
    finish(Costs(SCHEMA, RECORD, now(), where, settings, models, left_out, options.note), options)


def measure(
    loaded: LoadedModel, prompts: Sequence[Prompt], options: argparse.Namespace
) -> tuple[list[Cost], dict[str, str]]:
    """No processor and each that suits the tokenizer, and why others were left out."""
    wanted = options.only.split(",") if options.only else list(PROCESSORS)
    size, rounds = options.batch_size, options.rounds
    made: dict[str, Any] = {"none": None}
    operators, left_out = {}, {}
    for name in wanted:
        if name == "none":
            continue
        try:
            made[name] = make_processor(name, loaded.target)
        except MolprofError as problem:  # not for this tokenizer, or not installed
            progress(f"{name}: {problem}; left out")
            left_out[name] = str(problem)
            continue
        # Over the first steps of one batch, untimed; this also warms the processor up.
        counted = Counted(made[name])
        used = runner(loaded, counted, batch_size=size, max_new_tokens=COUNTED_STEPS)
        used.run(used.plan(prompts[:size]), None)
        operators[name] = counted.operators_per_step()
    passes: dict[str, list[Round]] = {name: [] for name in made}
    runs: dict[str, list[Any]] = {}
    for number in range(rounds):
        for name, processor in made.items():
            progress(f"{loaded.name} {name}, round {number + 1} of {rounds}")
            figures, runs[name] = one_pass(loaded, processor, prompts, options)
            passes[name].append(figures)
    costs = [
        Cost(
            name=name,
            rounds=passes[name],
            operators_per_step=operators.get(name),
            kinds=dict(Counter("".join(run.kinds for run in done))),
            malformed_blocks=sum(run.malformed_blocks for run in done),
            answers=[Answer(run.smiles, run.text, run.valid) for run in done],
        )
        for name, done in runs.items()
    ]
    return costs, left_out


def one_pass(
    loaded: LoadedModel, processor: Any, prompts: Sequence[Prompt], options: argparse.Namespace
) -> tuple[Round, list[Any]]:
    """Time one pass: its figures, and its molecules."""
    used = runner(loaded, processor, batch_size=options.batch_size, max_new_tokens=options.max_new_tokens)
    plans = used.plan(prompts)

    def synchronized() -> int:
        used.synchronize()
        return time.perf_counter_ns()

    clock = synchronized if loaded.on_gpu else time.process_time_ns
    marks = HostMarks(now=clock)
    began = clock()
    done = used.run(plans, marks)
    figures = Round(
        time_ns=clock() - began,
        phases_ns=marks.phases_ns(),
        batches=len(done.batches),
        steps=sum(batch.steps for batch in done.batches),
        row_steps=sum(batch.steps * len(batch.rows) for batch in done.batches),
    )
    return figures, sequence_runs(used, plans, done)[0]


if __name__ == "__main__":
    main()
