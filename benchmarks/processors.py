#!/usr/bin/env python3
"""What each logits processor costs and does to the text, side by side: writes the table of docs/processors.md.

    python benchmarks/processors.py [-n 64] [--batch-size 32] [--rounds 2] [--models qwen,llama] [--only none,grammar]

Same model, molecules, dtype, device and greedy decoding for all, in one process. Each round runs every processor once;
times are ratios to no processor within a round, medians over rounds: of a whole pass, and of the model's forward in a
decode step, which no processor should change. On a CPU they are ratios of CPU time, which other processes disturb less
than wall time. Absolute figures hold for one machine on one day.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shared import generation_parser, insert, progress, runner, table
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
from molprof.profiler.processors import PROCESSORS, make_processor

MARKS = "<!-- benchmarks/processors.py writes from here -->", "<!-- to here -->"
COUNTED_STEPS = 40
HEADINGS = (
    "processor", "time", "forward", "share of a step", "per token", "set-up per molecule", "operators per step",
    "tokens", "junk", "filler", "malformed", "valid",
)  # fmt: skip


def clock(loaded: LoadedModel, runner: Runner) -> Callable[[], int]:
    """The process's CPU time on a CPU, the synchronized host's wall time on a GPU; in ns."""
    if loaded.target.device.type != "cuda":
        return time.process_time_ns

    def synchronized() -> int:
        runner.synchronize()
        return time.perf_counter_ns()

    return synchronized


class Counting(TorchDispatchMode):
    """Counts operators that compute; views do not. On a GPU each of them launches a kernel, and Triton's kernels
    come on top."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += not (func.is_view or name in ("_unsafe_view", "alias"))
        return func(*args, **(kwargs or {}))


class Counted:
    """A processor whose calls and operators are counted."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.calls, self.operators = inner, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start(self, templates: Any, prompt_width: int) -> Any:
        batch = self._inner.start(templates, prompt_width)
        outer = self

        class Batch:
            masked_logits = None

            def __call__(self, input_ids: Any, scores: Any) -> Any:
                with Counting() as counting:
                    out = batch(input_ids, scores)
                outer.calls += 1
                outer.operators += counting.count
                return out

        return Batch()


@dataclass
class Result:
    """Figures of one processor with one model, one of each list per round."""

    name: str
    total_ns: list[int] = field(default_factory=list)
    forward_ns: list[float] = field(default_factory=list)  # per decode step
    shares: list[float] = field(default_factory=list)
    processor_ns_per_token: list[float] = field(default_factory=list)
    setup_ns_per_molecule: list[float] = field(default_factory=list)
    operators: float = 0.0
    runs: list[Any] = field(default_factory=list)


def main() -> None:
    parser = generation_parser(__doc__, count=64, batch_size=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", help="processors, separated by commas; none is always run")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--note", help="a sentence on the machine, for the page")
    parser.add_argument("--dry", action="store_true", help="print the tables, leave the page as it is")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(PROCESSORS)
    sections = []
    for name in options.models.split(","):
        loaded = load(CaptureSettings(name, device=options.device, dtype=options.dtype))
        results = measure(loaded, [item for item in wanted if item != "none"], options)
        rows = [row(result, results[0]) for result in results]
        sections.append(f"### {name}\n\n{table(HEADINGS, rows, left=len(HEADINGS))}")
    where = environment(loaded.target.device)
    machine = f"{where.gpu or where.cpu}, torch {where.torch}, transformers {where.transformers}"
    head = (
        f"{options.count} molecules in batches of {options.batch_size}, greedy, {options.rounds} "
        f"round{'s' if options.rounds > 1 else ''}; {machine}; {datetime.date.today()}."
    )
    text = "\n".join([head, *([options.note] if options.note else [])]) + "\n\n" + "\n\n".join(sections)
    print(text)
    if not options.dry:
        insert("processors.md", MARKS, text)


def measure(loaded: LoadedModel, names: list[str], options: argparse.Namespace) -> list[Result]:
    """The result without a processor, then one for each that suits the tokenizer."""
    prompts = read_prompts(None, options.count).prompts
    size, rounds = options.batch_size, options.rounds
    made: dict[str, Any] = {"none": None}
    for name in names:
        try:
            made[name] = make_processor(name, loaded.target)
        except MolprofError as problem:  # not for this tokenizer, or not installed
            progress(f"{name}: {problem}; left out")
    results = {name: Result(name) for name in made}
    for name, processor in made.items():
        if processor is not None:
            results[name].operators = count_operators(loaded, processor, prompts[:size])
    for number in range(rounds):
        for name, processor in made.items():
            progress(f"{loaded.name} {name}, round {number + 1} of {rounds}")
            one_pass(loaded, processor, prompts, size, results[name])
    return list(results.values())


def count_operators(loaded: LoadedModel, processor: Any, prompts: tuple[Prompt, ...]) -> float:
    """Operators per step, over the first steps of one batch, untimed; this also warms the processor up."""
    counted = Counted(processor)
    used = runner(loaded, counted, batch_size=len(prompts), max_new_tokens=COUNTED_STEPS)
    used.run(used.plan(prompts), None)
    return counted.operators / counted.calls


def one_pass(loaded: LoadedModel, processor: Any, prompts: tuple[Prompt, ...], size: int, result: Result) -> None:
    """Times one pass and adds its figures to `result`."""
    used = runner(loaded, processor, batch_size=size)
    plans = used.plan(prompts)
    now = clock(loaded, used)
    marks = HostMarks(now=now)
    began = now()
    done = used.run(plans, marks)
    result.total_ns.append(now() - began)
    spent = marks.phases_ns()
    result.forward_ns.append(spent["forward"] / sum(batch.steps - 1 for batch in done.batches))
    if processor is not None:
        row_steps = sum(batch.steps * len(batch.rows) for batch in done.batches)
        result.shares.append(spent["processor"] / sum(spent.get(phase, 0) for phase in ("prefill", *STEP_PHASES)))
        result.processor_ns_per_token.append(spent["processor"] / row_steps)
        result.setup_ns_per_molecule.append(spent["template"] / len(prompts))
    result.runs = molecule_runs(used, plans, done)[0]


def row(result: Result, base: Result) -> tuple[str, ...]:
    """The cells of one processor; `base` is no processor."""
    kinds = "".join(run.kinds for run in result.runs)
    spent = ("-",) * 4
    if result.name != "none":
        spent = (
            f"{statistics.median(result.shares):.1%}",
            f"{statistics.median(result.processor_ns_per_token) / 1000:.1f} µs",
            f"{statistics.median(result.setup_ns_per_molecule) / 1e6:.2f} ms",
            f"{result.operators:.1f}",
        )
    return (
        result.name,
        ratio(result.total_ns, base.total_ns),
        ratio(result.forward_ns, base.forward_ns),
        *spent,
        f"{len(kinds):,}",
        *(f"{kinds.count(letter):,}" for letter in "jl"),
        f"{sum(run.malformed_blocks for run in result.runs):,}",
        f"{sum(bool(run.valid) for run in result.runs)} of {len(result.runs)}",
    )


def ratio(own: list[Any], base: list[Any]) -> str:
    return f"{statistics.median(one / other for one, other in zip(own, base, strict=True)):.2f}x"


if __name__ == "__main__":
    main()
