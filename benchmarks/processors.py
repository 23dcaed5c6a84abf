#!/usr/bin/env python3
"""What each logits processor costs and does to the text, side by side, as tables in Markdown.

    python benchmarks/processors.py [-n 64] [--batch-size 32] [--rounds 2] [--models qwen,llama] [--only none,grammar]

Same model, molecules, dtype, device and greedy decoding for all, in one process. Each round runs every processor once;
times are ratios to no processor within a round, medians over rounds: of a whole pass, and of the model's forward in a
decode step, which no processor should change. On a CPU they are ratios of CPU time, which other processes disturb less
than wall time. Absolute figures hold for one machine on one day. The second table has the coordinates (quality.py).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import quality
from shared import generation_parser, keep, progress, table
from torch.utils._python_dispatch import TorchDispatchMode

from molprof.common.errors import MolprofError
from molprof.common.manifest import STEP_PHASES, SequenceRun
from molprof.common.settings import CaptureSettings
from molprof.common.values import count_text, factor_text, number_text, percent_text, time_text
from molprof.profiler.capture.account import sequence_runs
from molprof.profiler.constraints import OF_MOLECULES, make_processor
from molprof.profiler.engines.runner import Runner
from molprof.profiler.environment import environment
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.molecules.prompts import Prompt, read_prompts
from molprof.profiler.molecules.smiles import has_rdkit
from molprof.profiler.recording.marks import HostMarks

COUNTED_STEPS = 40
HEADINGS = (
    "processor", "time", "forward", "share of a step", "per token", "set-up per molecule", "operators per step",
    "tokens", "junk", "filler", "malformed", "valid",
)  # fmt: skip


@dataclass(frozen=True)
class Round:
    """One timed pass. Times are CPU time on a CPU; on a GPU wall time, the device synchronized after each phase."""

    time_ns: int
    phases_ns: dict[str, int]
    batches: int
    steps: int
    row_steps: int

    @property
    def forward_ns(self) -> float:
        """The model's forward per decode step."""
        return self.phases_ns["forward"] / (self.steps - self.batches)

    @property
    def processor_ratio(self) -> float:
        """The processor's share of all steps."""
        spent = self.phases_ns
        return spent["processor"] / sum(spent.get(phase, 0) for phase in ("prefill", *STEP_PHASES))


@dataclass(frozen=True)
class Cost:
    """What a processor costs and writes; name `none`: no processor."""

    name: str
    rounds: list[Round]
    operators_per_step: float | None
    runs: list[SequenceRun]  # of the last round


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

    def start(self, rows: Any) -> Any:
        self._batch = self._inner.start(rows)
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
    options = parser.parse_args()
    found = {}
    for name in options.models.split(","):
        loaded = load(CaptureSettings(name, size=options.size, device=options.device, dtype=options.dtype))
        found[name] = measure(loaded, read_prompts(None, options.count).prompts, options)
        print(f"### {name}\n\n{cost_table(found[name])}\n")
        if has_rdkit():
            print(f"{coordinate_table(found[name])}\n")
    keep(options.output, {"environment": environment(loaded.target.device), "models": found})


def measure(loaded: LoadedModel, prompts: Sequence[Prompt], options: argparse.Namespace) -> list[Cost]:
    """No processor, and each that suits the tokenizer."""
    wanted = options.only.split(",") if options.only else list(OF_MOLECULES)
    size, rounds = options.batch_size, options.rounds
    made: dict[str, Any] = {"none": None}
    operators = {}
    for name in wanted:
        if name == "none":
            continue
        try:
            made[name] = make_processor(name, loaded.target)
        except MolprofError as problem:  # not for this tokenizer, or not installed
            progress(f"{name}: {problem}; left out")
            continue
        # Over the first steps of one batch, untimed; this also warms the processor up.
        counted = Counted(made[name])
        used = runner(loaded, counted, batch_size=size, max_new_tokens=COUNTED_STEPS)
        used.run(used.plan(prompts[:size]), None)
        operators[name] = counted.operators_per_step()
    passes: dict[str, list[Round]] = {name: [] for name in made}
    runs: dict[str, list[SequenceRun]] = {}
    for number in range(rounds):
        for name, processor in made.items():
            progress(f"{loaded.name} {name}, round {number + 1} of {rounds}")
            figures, runs[name] = one_pass(loaded, processor, prompts, options)
            passes[name].append(figures)
    return [Cost(name, passes[name], operators.get(name), done) for name, done in runs.items()]


def one_pass(
    loaded: LoadedModel, processor: Any, prompts: Sequence[Prompt], options: argparse.Namespace
) -> tuple[Round, list[SequenceRun]]:
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


def cost_table(costs: Sequence[Cost]) -> str:
    return table(HEADINGS, [_row(cost, costs[0]) for cost in costs])


def coordinate_table(costs: Sequence[Cost]) -> str:
    """What each processor does to the coordinates. Needs RDKit."""
    smiles = [str(run.smiles) for run in costs[0].runs]
    texts = {cost.name: [run.text for run in cost.runs] for cost in costs}
    return table(quality.HEADINGS, quality.rows(smiles, texts))


def _row(cost: Cost, base: Cost) -> tuple[str, ...]:
    def ratio(figure: Callable[[Round], float]) -> str:
        pairs = zip(cost.rounds, base.rounds, strict=True)
        return factor_text(statistics.median(figure(own) / figure(other) for own, other in pairs))

    def middle(figure: Callable[[Round], float]) -> float:
        return statistics.median(map(figure, cost.rounds))

    spent = ("-",) * 4
    if cost is not base:
        spent = (
            percent_text(middle(lambda item: item.processor_ratio)),
            time_text(middle(lambda item: item.phases_ns["processor"] / item.row_steps)),
            time_text(middle(lambda item: item.phases_ns["template"]) / len(cost.runs)),
            number_text(cost.operators_per_step),
        )
    kinds = Counter("".join(run.kinds for run in cost.runs))
    valid = [run.valid for run in cost.runs if run.valid is not None]
    return (
        cost.name,
        ratio(lambda item: item.time_ns),
        ratio(lambda item: item.forward_ns),
        *spent,
        count_text(kinds.total()),
        *(count_text(kinds[letter]) for letter in "jl"),
        count_text(sum(run.malformed_blocks for run in cost.runs)),
        f"{sum(valid)} of {len(valid)}",
    )


if __name__ == "__main__":
    main()
