#!/usr/bin/env python3
"""What each logits processor costs and does to the text, side by side: writes the table of docs/processors.md.

    python benchmarks/processors.py [-n 64] [--batch-size 32] [--rounds 2] [--models qwen,llama] [--only none,grammar]

Same model, molecules, dtype, device and greedy decoding for all; one process. Each round runs every processor once;
times are ratios to no processor within a round, medians over rounds: of a whole pass, and of the model's forward in a
decode step, which no processor should change. On a CPU they are ratios of the process's CPU
time, which other processes disturb less than they disturb wall time. Not a test: absolute figures hold for one
machine on one day.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from molprof.common.errors import MolprofError
from molprof.common.files import replacing
from molprof.common.phases import STEP_PHASES
from molprof.common.settings import CaptureSettings
from molprof.profiler.capture.account import molecule_runs
from molprof.profiler.decoding.marks import HostMarks
from molprof.profiler.decoding.runner import Runner
from molprof.profiler.environment import environment
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.molecules.prompts import Prompt, read_prompts
from molprof.profiler.processors import PROCESSORS, make_processor

PAGE = Path(__file__).resolve().parent.parent / "docs" / "processors.md"
BEGIN, END = "<!-- benchmarks/processors.py writes from here -->", "<!-- to here -->"
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
    """A processor whose calls are counted."""

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
    """Figures of one processor with one model; a ratio per round."""

    name: str
    total_ns: list[int] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    forward_ns: list[float] = field(default_factory=list)  # per decode step
    forward_ratios: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    processor_ns_per_token: list[float] = field(default_factory=list)
    setup_ns_per_molecule: list[float] = field(default_factory=list)
    operators: float = 0.0
    runs: list[Any] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=64, help="molecules")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--models", default="qwen,llama")
    parser.add_argument("--only", help="processors, comma-separated; none is always run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--note", help="a sentence on the machine, for the page")
    parser.add_argument("--dry", action="store_true", help="print the tables, leave the page as it is")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(PROCESSORS)
    sections = []
    for name in options.models.split(","):
        loaded = load(CaptureSettings(name, device=options.device, dtype=options.dtype))
        results = measure(loaded, [item for item in wanted if item != "none"], options)
        sections.append(f"### {name}\n\n{table(results)}")
    where = environment(loaded.target.device)
    machine = f"{where.gpu or where.cpu}, torch {where.torch}, transformers {where.transformers}"
    lines = [
        f"{options.n} molecules in batches of {options.batch_size}, greedy, {options.rounds} "
        f"round{'s' if options.rounds > 1 else ''}; {machine}; {datetime.date.today()}.",
        *([options.note] if options.note else []),
    ]
    text = "\n".join(lines) + "\n\n" + "\n\n".join(sections)
    print(text)
    if not options.dry:
        write(text)


def measure(loaded: LoadedModel, names: list[str], options: argparse.Namespace) -> list[Result]:
    prompts = read_prompts(None, options.n).prompts
    size, rounds = options.batch_size, options.rounds
    made: dict[str, Any] = {"none": None}
    for name in names:
        try:
            made[name] = make_processor(name, loaded.target)
        except MolprofError as problem:  # not for this tokenizer, or not installed
            print(f"{name}: {problem}; left out", file=sys.stderr)
    results = {name: Result(name) for name in made}
    for name, processor in made.items():
        if processor is not None:
            results[name].operators = count_operators(loaded, processor, prompts[:size])
    for number in range(rounds):
        for name, processor in made.items():
            print(f"{loaded.name} {name}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            one_pass(loaded, processor, prompts, size, results[name])
        for result in results.values():
            result.ratios.append(result.total_ns[-1] / results["none"].total_ns[-1])
            result.forward_ratios.append(result.forward_ns[-1] / results["none"].forward_ns[-1])
    return list(results.values())


def count_operators(loaded: LoadedModel, processor: Any, prompts: tuple[Prompt, ...]) -> float:
    """Operators per step, over the first steps of one batch, untimed; this also warms the processor up."""
    counted = Counted(processor)
    settings = CaptureSettings(loaded.name, batch_size=len(prompts), max_new_tokens=COUNTED_STEPS)
    runner = Runner(loaded, counted, settings)
    runner.run(runner.plan(prompts), None)
    return counted.operators / counted.calls


def one_pass(loaded: LoadedModel, processor: Any, prompts: tuple[Prompt, ...], size: int, result: Result) -> None:
    runner = Runner(loaded, processor, CaptureSettings(loaded.name, batch_size=size))
    plans = runner.plan(prompts)
    now = clock(loaded, runner)
    marks = HostMarks(now=now)
    began = now()
    done = runner.run(plans, marks)
    result.total_ns.append(now() - began)
    spent = marks.phases_ns()
    result.forward_ns.append(spent["forward"] / sum(batch.steps - 1 for batch in done.batches))
    if processor is not None:
        row_steps = sum(batch.steps * len(batch.rows) for batch in done.batches)
        result.shares.append(spent["processor"] / sum(spent.get(phase, 0) for phase in ("prefill", *STEP_PHASES)))
        result.processor_ns_per_token.append(spent["processor"] / row_steps)
        result.setup_ns_per_molecule.append(spent["template"] / len(prompts))
    result.runs = molecule_runs(runner, plans, done)[0]


def table(results: list[Result]) -> str:
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(row, results)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def row(result: Result) -> tuple[str, ...]:
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
        f"{statistics.median(result.ratios):.2f}x",
        f"{statistics.median(result.forward_ratios):.2f}x",
        *spent,
        f"{len(kinds):,}",
        *(f"{kinds.count(letter):,}" for letter in "jl"),
        f"{sum(run.malformed_blocks for run in result.runs):,}",
        f"{sum(bool(run.valid) for run in result.runs)} of {len(result.runs)}",
    )


def write(text: str) -> None:
    """Puts the tables between the page's marks."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    with replacing(PAGE) as part:
        part.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()
