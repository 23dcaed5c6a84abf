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
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from molprof.common.files import replacing
from molprof.common.settings import AUTO, CaptureSettings
from molprof.profiler.decoding.batches import BatchPlan
from molprof.profiler.decoding.results import PassResult
from molprof.profiler.decoding.runner import Runner
from molprof.profiler.environment import environment
from molprof.profiler.models.load import load
from molprof.profiler.molecules.prompts import Prompt, short_molecules
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.molecules.template import prompt_text
from molprof.profiler.processors import make_processor

PAGE = Path(__file__).parent.parent / "docs" / "decoding.md"
BEGIN, END = "<!-- benchmarks/decoding.py -->", "<!-- end -->"

BASE = "no LP"
LOOPS = {
    "step by step": {"sort": False},
    "sorted": {"sort": True},
    "finished rows dropped": {"sort": False, "drop_finished": True},
    "forced runs": {"sort": False, "forced_runs": True},
    "forced runs, sorted": {"sort": True, "forced_runs": True},
    "forced runs, finished rows dropped": {"sort": False, "forced_runs": True, "drop_finished": True},
}


@dataclass(frozen=True)
class Way:
    """One way of decoding, ready to run; `processor` is None for no LP."""

    processor: str | None
    loop: str
    runner: Runner
    plans: list[BatchPlan]

    @property
    def name(self) -> str:
        return f"{self.processor or BASE}, {self.loop}"


def ways(arguments: argparse.Namespace, model: str) -> list[Way]:
    """Every way, with the same loaded model and molecules. The first is what all others are compared with."""
    loaded = load(CaptureSettings(model, device=arguments.device, dtype=arguments.dtype))
    # Longest and shortest in turn, so that unsorted batches are as uneven as a real list.
    by_size = sorted(short_molecules(arguments.count), key=len)
    mixed = [by_size.pop(-1 if place % 2 else 0) for place in range(len(by_size))]
    prompts = [
        Prompt(line, "", prompt_text(read.smiles), read) for line, read in enumerate(map(molecule, mixed), start=1)
    ]
    made = []
    for name in (None, *(item if item != "lp" else AUTO for item in arguments.processors)):
        processor = None if name is None else make_processor(name, loaded.target)
        for kind, loop in LOOPS.items():
            if name is None and kind not in ("step by step", "finished rows dropped"):
                continue  # lengths and forced tokens are known under a constraint only
            settings = CaptureSettings(model, kv_cache=arguments.kv_cache, batch_size=arguments.batch_size, **loop)
            runner = Runner(loaded, processor, settings)
            made.append(Way(None if processor is None else processor.name, kind, runner, runner.plan(prompts)))
    return made


def measure(arguments: argparse.Namespace, model: str) -> list[str]:
    """The rows of one model's table."""
    clock = time.perf_counter_ns if arguments.device.startswith("cuda") else time.process_time_ns
    prepared = ways(arguments, model)
    times: dict[str, list[int]] = {way.name: [] for way in prepared}
    results: dict[str, PassResult] = {}
    for repeat in range(arguments.repeats + 1):  # the first warms up
        for way in prepared:
            print(f"{model}: pass {repeat} of {arguments.repeats}, {way.name}", file=sys.stderr, flush=True)
            began = clock()
            results[way.name] = way.runner.run(way.plans, None)
            if repeat:
                times[way.name].append(clock() - began)
    base = prepared[0].name
    lines = []
    for way in prepared:
        batches = results[way.name].batches
        tokens = sum(len(row) for batch in batches for row in batch.rows)
        row_steps = sum(sum(batch.rows_per_step) for batch in batches)
        busy = sum(batch.busy_steps(row) for batch in batches for row in range(len(batch.rows)))
        own = f"{way.processor}, step by step" if way.processor else base
        forced = f"{1 - busy / tokens:.1%}" if "forced runs" in way.loop else "-"
        bound = f"{1.05 * busy / tokens:.2f}" if "forced runs" in way.loop else "-"
        lines.append(
            f"| {model} | {way.processor or BASE} | {way.loop} | {tokens:,} "
            f"| {sum(batch.steps for batch in batches):,} | {row_steps - busy:,} | {forced} "
            f"| {ratio(times[way.name], times[base])} | {bound} | {ratio(times[way.name], times[own])} |"
        )
    return lines


def ratio(own: list[int], base: list[int]) -> str:
    """Median of the ratios of passes that ran one after the other, lowest and highest."""
    return spread([one / other for one, other in zip(own, base, strict=True)])


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def report(arguments: argparse.Namespace) -> str:
    """What was run, and the table."""
    here = environment(torch.device(arguments.device))
    what = "wall time" if arguments.device.startswith("cuda") else "CPU time"
    head = (
        f"{arguments.count} molecules, batches of {arguments.batch_size}, {arguments.kv_cache} cache, greedy, "
        f"{arguments.dtype} on {here.gpu or here.cpu} ({here.threads} thread{'s' if here.threads > 1 else ''}; "
        f"{here.cores} core{'s' if here.cores != 1 else ''}, load {os.getloadavg()[0]:.0f}), torch {here.torch}, "
        f"transformers {here.transformers}. Ratios of {what}, median of "
        f"{arguments.repeats} interleaved passes (lowest to highest). "
        "Forced: share of the tokens that were appended without a step of their own; target: 1.05 x (1 - that share)."
    )
    rows = [line for model in arguments.models for line in measure(arguments, model)]
    table = [
        "| preset | LP | way | tokens | steps | idle row-steps | forced | time over no LP | target "
        "| time over the same LP, step by step |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *rows,
    ]
    return f"{head}\n\n" + "\n".join(table) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["qwen", "llama"])
    parser.add_argument(
        "--processors", nargs="+", default=["lp", "grammar"], help="lp: the one that suits the preset's tokenizer"
    )
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
