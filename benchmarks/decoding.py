"""What sorting, forced runs and dropped rows save: the same molecules decoded in each way, interleaved, in one run.

python benchmarks/decoding.py                       both presets, a few short molecules, to stdout
python benchmarks/decoding.py --write               the same, into docs/decoding.md
python benchmarks/decoding.py -n 64 --batch-size 16 --device cuda --dtype bfloat16 --kv-cache static

On a CPU the time is CPU time of this process, which other programs disturb least; on a GPU it is wall time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from molprof.files import replacing
from molprof.profiler.decoding.batches import BatchPlan
from molprof.profiler.environment import environment
from molprof.profiler.generate import PassResult, Runner
from molprof.profiler.models import load
from molprof.profiler.processors import make_processor
from molprof.profiler.prompts import Prompt, short_molecules
from molprof.profiler.settings import Decoding, Loop
from molprof.profiler.smiles import molecule
from molprof.profiler.template import prompt_text

PAGE = Path(__file__).parent.parent / "docs" / "decoding.md"
BEGIN, END = "<!-- benchmarks/decoding.py -->", "<!-- end -->"

# Name -> (constrained, how). The first is what all others are compared with.
WAYS = {
    "no LP": (False, Loop(sort=False)),
    "no LP, finished rows dropped": (False, Loop(sort=False, drop_finished=True)),
    "LP, step by step": (True, Loop(sort=False)),
    "LP, sorted": (True, Loop(sort=True)),
    "LP, finished rows dropped": (True, Loop(sort=False, drop_finished=True)),
    "LP, forced runs": (True, Loop(sort=False, forced_runs=True)),
    "LP, forced runs, sorted": (True, Loop(sort=True, forced_runs=True)),
    "LP, forced runs, finished rows dropped": (True, Loop(sort=False, forced_runs=True, drop_finished=True)),
}


@dataclass(frozen=True)
class Way:
    """One way of decoding, ready to run."""

    name: str
    runner: Runner
    plans: list[BatchPlan]


def ways(arguments: argparse.Namespace, model: str) -> list[Way]:
    """Every way, with the same loaded model and molecules."""
    loaded = load(model, device=arguments.device, dtype=arguments.dtype)
    processor = make_processor(loaded.default_processor, loaded.target)
    # Longest and shortest in turn, so that unsorted batches are as uneven as a real list.
    by_size = sorted(short_molecules(arguments.count), key=len)
    mixed = [by_size.pop(-1 if place % 2 else 0) for place in range(len(by_size))]
    prompts = [
        Prompt(line, "", prompt_text(read.smiles), read) for line, read in enumerate(map(molecule, mixed), start=1)
    ]
    made = []
    for name, (constrained, loop) in WAYS.items():
        runner = Runner(loaded, processor if constrained else None, Decoding(), kv_cache=arguments.kv_cache, loop=loop)
        made.append(Way(name, runner, runner.plan(prompts, arguments.batch_size)))
    return made


def measure(arguments: argparse.Namespace, model: str) -> list[str]:
    """The rows of one model's table."""
    clock = time.perf_counter_ns if arguments.device.startswith("cuda") else time.process_time_ns
    times: dict[str, list[int]] = {name: [] for name in WAYS}
    results: dict[str, PassResult] = {}
    prepared = ways(arguments, model)
    for repeat in range(arguments.repeats + 1):  # the first warms up
        for way in prepared:
            began = clock()
            results[way.name] = way.runner.run(way.plans, None)
            if repeat:
                times[way.name].append(clock() - began)
    first, *_ = WAYS
    lines = []
    for way in prepared:
        batches = results[way.name].batches
        tokens = sum(len(row) for batch in batches for row in batch.rows)
        row_steps = sum(sum(batch.rows_per_step) for batch in batches)
        busy = sum(batch.busy_steps(row) for batch in batches for row in range(len(batch.rows)))
        ratios = [own / base for own, base in zip(times[way.name], times[first], strict=True)]
        stepwise = [own / base for own, base in zip(times[way.name], times["LP, step by step"], strict=True)]
        lines.append(
            f"| {model} | {way.name} | {tokens:,} | {sum(batch.steps for batch in batches):,} | {row_steps - busy:,} "
            f"| {spread(ratios)} | {spread(stepwise)} |"
        )
    lines.append(f"| {model} | forced tokens: {forced_ratio(prepared):.3f} of the LP's | | | | | |")
    return lines


def forced_ratio(prepared: list[Way]) -> float:
    """Share of the constrained tokens that no choice is left for, end tokens included."""
    runner = next(way.runner for way in prepared if way.runner.processor is not None)
    read = [prompt.molecule for prompt in prepared[0].plans[0].prompts if prompt.molecule is not None]
    for plan in prepared[0].plans[1:]:
        read += [prompt.molecule for prompt in plan.prompts if prompt.molecule is not None]
    templates = [runner.template(item) for item in read]
    free = sum(int(template.free.sum()) for template in templates)
    return 1 - free / sum(len(template.ids) + 1 for template in templates)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def report(arguments: argparse.Namespace) -> str:
    """What was run, and the table."""
    here = environment(torch.device(arguments.device))
    what = "wall time" if arguments.device.startswith("cuda") else "CPU time"
    head = (
        f"{arguments.count} molecules, batches of {arguments.batch_size}, {arguments.kv_cache} cache, greedy, "
        f"{arguments.dtype} on {here.gpu or here.cpu} ({here.threads} thread{'s' if here.threads > 1 else ''}; "
        f"load of the machine {os.getloadavg()[0]:.0f} on {here.cores} cores), torch {here.torch}, transformers "
        f"{here.transformers}. Ratios of {what}, median of {arguments.repeats} interleaved passes (lowest to highest)."
    )
    rows = [line for model in arguments.models for line in measure(arguments, model)]
    table = [
        "| preset | way | tokens | steps | idle row-steps | time over no LP | time over LP, step by step |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        *rows,
    ]
    return f"{head}\n\n" + "\n".join(table) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["qwen", "llama"])
    parser.add_argument("-n", dest="count", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kv-cache", default="dynamic", choices=("dynamic", "static"))
    parser.add_argument("--write", action="store_true", help="put the table into docs/decoding.md")
    arguments = parser.parse_args()
    text = report(arguments)
    if not arguments.write:
        print(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    with replacing(PAGE) as part:
        part.write_text(f"{before}{BEGIN}\n{text}{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
