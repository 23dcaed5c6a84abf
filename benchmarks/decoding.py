"""What sorting, forced runs and dropped rows save: the same molecules decoded in each way, interleaved, in one run.

python benchmarks/decoding.py                       both presets, a few short molecules, to stdout
python benchmarks/decoding.py --write               the same, into docs/decoding.md
python benchmarks/decoding.py -n 64 --batch-size 16 --device cuda --dtype bfloat16 --kv-cache static

Times are CPU time of this process on a CPU, which other programs disturb least, and wall time on a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
from processors import runner
from shared import generation_parser, progress, publish, table

from molprof.common.settings import AUTO, CaptureSettings
from molprof.profiler.decoding.batches import BatchPlan, PassResult
from molprof.profiler.decoding.runner import Runner
from molprof.profiler.environment import environment
from molprof.profiler.models.load import load
from molprof.profiler.molecules.prompts import Prompt, short_molecules
from molprof.profiler.molecules.smiles import split_atoms
from molprof.profiler.molecules.template import prompt_text
from molprof.profiler.processors import make_processor

MARKS = "<!-- benchmarks/decoding.py -->", "<!-- end -->"
LOOPS = {
    "step by step": {"sort": False},
    "sorted": {"sort": True},
    "finished rows dropped": {"sort": False, "drop_finished": True},
    "forced runs": {"sort": False, "forced_runs": True},
    "forced runs, sorted": {"sort": True, "forced_runs": True},
    "forced runs, finished rows dropped": {"sort": False, "forced_runs": True, "drop_finished": True},
}
HEADINGS = (
    "preset", "LP", "way", "tokens", "steps", "idle row-steps", "forced", "time over no LP", "target",
    "time over the same LP, step by step",
)  # fmt: skip
# A processor's name, and one of `LOOPS`. All ways are compared with the first.
Way = tuple[str, str]
FIRST: Way = ("no LP", "step by step")


def ways(options: argparse.Namespace, model: str) -> dict[Way, tuple[Runner, list[BatchPlan]]]:
    """Every way of decoding, ready to run with the same loaded model and molecules."""
    loaded = load(CaptureSettings(model, device=options.device, dtype=options.dtype))
    # Longest and shortest in turn, so that unsorted batches are as uneven as a real list.
    by_size = sorted(short_molecules(options.count), key=len)
    mixed = [by_size.pop(-1 if place % 2 else 0) for place in range(len(by_size))]
    prompts = [
        Prompt(line, "", prompt_text(read.smiles), read) for line, read in enumerate(map(split_atoms, mixed), start=1)
    ]
    made = {}
    for name in (None, *(AUTO if item == "lp" else item for item in options.processors)):
        processor = None if name is None else make_processor(name, loaded.target)
        for kind, loop in LOOPS.items():
            if processor is None and kind not in ("step by step", "finished rows dropped"):
                continue  # lengths and forced tokens are known under a constraint only
            used = runner(loaded, processor, batch_size=options.batch_size, kv_cache=options.kv_cache, **loop)
            made[processor.name if processor else FIRST[0], kind] = used, used.plan(prompts)
    return made


def measure(options: argparse.Namespace, model: str) -> list[tuple[str, ...]]:
    """The rows of one model's table."""
    clock = time.perf_counter_ns if options.device.startswith("cuda") else time.process_time_ns
    prepared = ways(options, model)
    times: dict[Way, list[int]] = {way: [] for way in prepared}
    results: dict[Way, PassResult] = {}
    for repeat in range(options.repeats + 1):  # the first warms up
        for way, (used, plans) in prepared.items():
            progress(f"{model}: pass {repeat} of {options.repeats}, {', '.join(way)}")
            began = clock()
            results[way] = used.run(plans, None)
            if repeat:
                times[way].append(clock() - began)
    rows = []
    for way, result in results.items():
        tokens = sum(len(row) for batch in result.batches for row in batch.rows)
        row_steps = sum(sum(batch.rows_per_step) for batch in result.batches)
        busy = sum(batch.busy_steps(row) for batch in result.batches for row in range(len(batch.rows)))
        runs = "forced runs" in way[1]
        rows.append(
            (
                model,
                *way,
                f"{tokens:,}",
                f"{sum(batch.steps for batch in result.batches):,}",
                f"{row_steps - busy:,}",
                f"{1 - busy / tokens:.1%}" if runs else "-",
                ratio(times[way], times[FIRST]),
                f"{1.05 * busy / tokens:.2f}" if runs else "-",
                ratio(times[way], times[way[0], "step by step"]),
            )
        )
    return rows


def ratio(own: list[int], base: list[int]) -> str:
    """Median of the ratios of passes that ran one after the other, lowest and highest."""
    values = [one / other for one, other in zip(own, base, strict=True)]
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = generation_parser(__doc__, count=6, batch_size=3)
    parser.set_defaults(device="cpu")
    parser.add_argument(
        "--processors", nargs="+", default=["lp", "grammar"], help="lp: the one that suits the preset's tokenizer"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kv-cache", default="dynamic", choices=("dynamic", "static"))
    options = parser.parse_args()
    here = environment(torch.device(options.device))
    what = "wall time" if options.device.startswith("cuda") else "CPU time"
    head = (
        f"{options.count} molecules, batches of {options.batch_size}, {options.kv_cache} cache, greedy, "
        f"{options.dtype} on {here.gpu or here.cpu} ({here.threads} thread{'s' if here.threads > 1 else ''}; "
        f"{here.cores} core{'s' if here.cores != 1 else ''}, load {os.getloadavg()[0]:.0f}), torch {here.torch}, "
        f"transformers {here.transformers}. Ratios of {what}, median of "
        f"{options.repeats} interleaved passes (lowest to highest). "
        "Forced: share of the tokens that were appended without a step of their own; target: 1.05 x (1 - that share)."
    )
    rows = [row for model in options.models.split(",") for row in measure(options, model)]
    publish(f"{head}\n\n{table(HEADINGS, rows, left=3)}", options.write, "decoding.md", MARKS)


if __name__ == "__main__":
    main()
