"""What sorting, forced runs and dropped rows save: the same molecules decoded in each way, interleaved, in one run.

python benchmarks/decoding.py                       both presets, a few short molecules, as a table in Markdown
python benchmarks/decoding.py -n 64 --batch-size 16 --device cuda --dtype bfloat16 --kv-cache static -o FILE.json

Times are CPU time of this process on a CPU, which other programs disturb least, and wall time on a GPU. Ratios are
medians of interleaved passes (lowest to highest). The first way is the default without a processor: input order,
dynamic cache, every row to the end. Forced: share of the tokens that were appended without a step of their own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from processors import runner
from shared import generation_parser, keep, progress, table

from molprof.common.settings import CaptureSettings
from molprof.common.values import count_text, factor_text, percent_text
from molprof.profiler.constraints import make_processor
from molprof.profiler.engines import BatchPlan
from molprof.profiler.engines.runner import PassResult, Runner
from molprof.profiler.environment import environment
from molprof.profiler.models.device import on_gpu, resolve_device
from molprof.profiler.models.load import load
from molprof.profiler.molecules.prompts import Prompt, short_molecules
from molprof.profiler.molecules.smiles import split_atoms

LOOPS = {
    "step by step": {"sort": False},
    "sorted": {"sort": True},
    "finished rows dropped": {"sort": False, "drop_finished": True},
    "forced runs": {"sort": False, "forced_runs": True},
    "forced runs, sorted": {"sort": True, "forced_runs": True},
    "forced runs, finished rows dropped": {"sort": False, "forced_runs": True, "drop_finished": True},
}
# Its table compares every way with the first, the default of transformers and molprof without a processor.
DEFAULT = "default"
# A processor's name, or None, and one of `LOOPS`.
Named = tuple["str | None", str]
HEADINGS = ("preset", "LP", "way", "time over the default", "tokens", "steps", "forced")


@dataclass(frozen=True)
class Way:
    """One way of decoding, timed in interleaved passes; processor None: no LP."""

    processor: str | None
    way: str
    times_ns: list[int]
    tokens: int
    steps: int
    busy_steps: int  # row-steps until each row ended
    forced_runs: bool


def ways(options: argparse.Namespace, model: str) -> dict[Named, tuple[Runner, list[BatchPlan]]]:
    """Every way of decoding, ready to run with the same loaded model and molecules."""
    loaded = load(CaptureSettings(model, size=options.size, device=options.device, dtype=options.dtype))
    # Longest and shortest in turn, so that unsorted batches are as uneven as a real list.
    by_size = sorted(short_molecules(options.count), key=len)
    mixed = [by_size.pop(-1 if place % 2 else 0) for place in range(len(by_size))]
    prompts = [
        Prompt(line, "", loaded.target.form.prompt_of(read.smiles), read)
        for line, read in enumerate(map(split_atoms, mixed), start=1)
    ]
    made: dict[Named, tuple[Runner, list[BatchPlan]]] = {}

    def add(processor: Any, way: str, **loop: Any) -> None:
        bounds = {"batch_size": options.batch_size, "max_new_tokens": options.max_new_tokens}
        used = runner(loaded, processor, **bounds, **{"kv_cache": options.kv_cache, **loop})
        made[processor.name if processor else None, way] = used, used.plan(prompts)

    add(None, DEFAULT, sort=False, kv_cache="dynamic")
    for name in (None, *options.processors):
        processor = None if name is None else make_processor(name, loaded.target)
        for kind, loop in LOOPS.items():
            if processor is None and kind not in ("step by step", "finished rows dropped"):
                continue  # lengths and forced tokens are known under a constraint only
            if processor is None and kind == "step by step" and options.kv_cache == "dynamic":
                continue  # it is the default
            add(processor, kind, **loop)
    return made


def measure(options: argparse.Namespace, model: str, clock: Callable[[], int]) -> list[Way]:
    """Return the rows of one model's table."""
    prepared = ways(options, model)
    times: dict[Named, list[int]] = {way: [] for way in prepared}
    results: dict[Named, PassResult] = {}
    for repeat in range(options.repeats + 1):  # the first warms up
        for way, (used, plans) in prepared.items():
            progress(f"{model}: pass {repeat} of {options.repeats}, {way[0] or 'no LP'}, {way[1]}")
            began = clock()
            results[way] = used.run(plans, None)
            if repeat:
                times[way].append(clock() - began)
    return [
        Way(
            processor=way[0],
            way=way[1],
            times_ns=times[way],
            tokens=sum(len(row) for batch in result.batches for row in batch.rows),
            steps=sum(batch.steps for batch in result.batches),
            busy_steps=sum(batch.busy_steps(row) for batch in result.batches for row in range(len(batch.rows))),
            forced_runs=bool(LOOPS.get(way[1], {}).get("forced_runs")),
        )
        for way, result in results.items()
    ]


def main() -> None:
    parser = generation_parser(__doc__, count=6, batch_size=3)
    parser.add_argument("--processors", nargs="+", default=["generic", "grammar"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kv-cache", default="dynamic", choices=("dynamic", "static"))
    options = parser.parse_args()
    device = resolve_device(options.device)
    gpu = on_gpu(device)  # of which a pass waits at its end
    clock = time.perf_counter_ns if gpu else time.process_time_ns
    found = {model: measure(options, model, clock) for model in options.models.split(",")}
    print(way_table(found))
    keep(options.output, {"environment": environment(device), "models": found})


def way_table(found: dict[str, list[Way]]) -> str:
    return table(HEADINGS, [_row(model, way, ways[0]) for model, ways in found.items() for way in ways], left=3)


def _row(model: str, way: Way, default: Way) -> tuple[str, ...]:
    """Ratios are of passes that ran one after the other."""
    ratios = [one / other for one, other in zip(way.times_ns, default.times_ns, strict=True)]
    spread = f"{factor_text(min(ratios))} to {factor_text(max(ratios))}"
    return (
        model,
        way.processor or "no LP",
        way.way,
        f"{factor_text(statistics.median(ratios))} ({spread})",
        count_text(way.tokens),
        count_text(way.steps),
        percent_text(1 - way.busy_steps / way.tokens) if way.forced_runs else "-",
    )


if __name__ == "__main__":
    main()
