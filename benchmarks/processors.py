#!/usr/bin/env python3
"""What each logits processor costs and does to the text, side by side: the tables of docs/processors.md.

    python benchmarks/processors.py [-n 64] [--batch-size 32] [--rounds 2] [--models qwen,llama] [--only none,grammar]

Same model, molecules, dtype, device and greedy decoding for all, in one process. Each round runs every processor once;
times are ratios to no processor within a round, medians over rounds: of a whole pass, and of the model's forward in a
decode step, which no processor should change. On a CPU they are ratios of CPU time, which other processes disturb less
than wall time. Absolute figures hold for one machine on one day. The second table has the coordinates (quality.py).
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Sequence
from typing import Any

import quality
from shared import generation_parser, progress, publish, table
from torch.utils._python_dispatch import TorchDispatchMode

from molprof.common.errors import MolprofError
from molprof.common.phases import STEP_PHASES
from molprof.common.settings import CaptureSettings
from molprof.profiler.capture.account import molecule_runs
from molprof.profiler.decoding.marks import HostMarks
from molprof.profiler.decoding.runner import Runner
from molprof.profiler.environment import environment
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.molecules.prompts import Prompt, read_prompts
from molprof.profiler.molecules.smiles import has_rdkit
from molprof.profiler.processors import PROCESSORS, make_processor

MARKS = "<!-- benchmarks/processors.py writes from here -->", "<!-- to here -->"
COORDINATE_MARKS = "<!-- benchmarks/quality.py writes from here -->", "<!-- to there -->"
COUNTED_STEPS = 40
HEADINGS = (
    "processor", "time", "forward", "share of a step", "per token", "set-up per molecule", "operators per step",
    "tokens", "junk", "filler", "malformed", "valid",
)  # fmt: skip


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
    costs, coordinates = [], []
    for name in options.models.split(","):
        loaded = load(CaptureSettings(name, device=options.device, dtype=options.dtype))
        prompts = read_prompts(None, options.count).prompts
        rows, texts = measure(loaded, prompts, options)
        costs.append(f"### {name}\n\n{table(HEADINGS, rows, left=len(HEADINGS))}")
        if has_rdkit():
            coordinates.append(f"### {name}\n\n{table(quality.HEADINGS, quality.rows(prompts, texts))}")
    where = environment(loaded.target.device)
    what = f"{options.count} molecules in batches of {options.batch_size}, greedy"
    head = (
        f"{what}, {options.rounds} round{'s' if options.rounds > 1 else ''}; {where.gpu or where.cpu}, "
        f"torch {where.torch}, transformers {where.transformers}; {datetime.date.today()}."
    )
    if options.note:
        head += f"\n{options.note}"
    publish("\n\n".join([head, *costs]), options.write, "processors.md", MARKS)
    if coordinates:
        publish("\n\n".join([f"{what}.", *coordinates]), options.write, "processors.md", COORDINATE_MARKS)
    else:
        progress("no table of coordinates: bonds need the package rdkit, which is not installed")


def measure(
    loaded: LoadedModel, prompts: Sequence[Prompt], options: argparse.Namespace
) -> tuple[list[tuple[str, ...]], dict[str, list[str]]]:
    """The cells of no processor and of each that suits the tokenizer, and their texts in the order of the prompts."""
    wanted = options.only.split(",") if options.only else list(PROCESSORS)
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
    passes: dict[str, list[dict[str, float]]] = {name: [] for name in made}
    runs: dict[str, list[Any]] = {}
    for number in range(rounds):
        for name, processor in made.items():
            progress(f"{loaded.name} {name}, round {number + 1} of {rounds}")
            figures, runs[name] = one_pass(loaded, processor, prompts, size)
            passes[name].append(figures)
    rows = [cells(name, passes[name], passes["none"], operators.get(name), runs[name]) for name in made]
    return rows, {name: [run.text for run in sorted(runs[name], key=lambda run: run.sequence)] for name in made}


def one_pass(
    loaded: LoadedModel, processor: Any, prompts: Sequence[Prompt], size: int
) -> tuple[dict[str, float], list[Any]]:
    """Time one pass: its figures, and its molecules."""
    used = runner(loaded, processor, batch_size=size)
    plans = used.plan(prompts)

    def synchronized() -> int:
        used.synchronize()
        return time.perf_counter_ns()

    now = synchronized if loaded.target.device.type == "cuda" else time.process_time_ns
    marks = HostMarks(now=now)
    began = now()
    done = used.run(plans, marks)
    figures: dict[str, float] = {"time": now() - began}
    spent = marks.phases_ns()
    figures["forward"] = spent["forward"] / sum(batch.steps - 1 for batch in done.batches)
    if processor is not None:
        row_steps = sum(batch.steps * len(batch.rows) for batch in done.batches)
        figures["share"] = spent["processor"] / sum(spent.get(phase, 0) for phase in ("prefill", *STEP_PHASES))
        figures["ns per token"] = spent["processor"] / row_steps
        figures["set-up ns"] = spent["template"] / len(prompts)
    return figures, molecule_runs(used, plans, done)[0]


def cells(
    name: str,
    passes: list[dict[str, float]],
    base: list[dict[str, float]],
    operators: float | None,
    runs: list[Any],
) -> tuple[str, ...]:
    """The cells of one processor; `base`: passes of no processor."""
    kinds = "".join(run.kinds for run in runs)
    ratios = [
        statistics.median(own[key] / other[key] for own, other in zip(passes, base, strict=True))
        for key in ("time", "forward")
    ]
    spent = ("-",) * 4
    if operators is not None:
        middle = {key: statistics.median(item[key] for item in passes) for key in passes[0]}
        spent = (
            f"{middle['share']:.1%}",
            f"{middle['ns per token'] / 1000:.1f} µs",
            f"{middle['set-up ns'] / 1e6:.2f} ms",
            f"{operators:.1f}",
        )
    return (
        name,
        *(f"{ratio:.2f}x" for ratio in ratios),
        *spent,
        f"{len(kinds):,}",
        *(f"{kinds.count(letter):,}" for letter in "jl"),
        f"{sum(run.malformed_blocks for run in runs):,}",
        validity(runs),
    )


def validity(runs: list[Any]) -> str:
    """How many molecules are valid, and how many were not checked for want of RDKit."""
    unchecked = sum(run.unchecked for run in runs)
    checked = f"{sum(run.valid is True for run in runs)} of {len(runs) - unchecked}"
    return f"{checked}, {unchecked} not checked" if unchecked else checked


if __name__ == "__main__":
    main()
