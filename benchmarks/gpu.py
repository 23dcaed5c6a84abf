#!/usr/bin/env python3
"""Everything that a GPU has to show, measured by one command on a machine with one NVIDIA GPU. Needs no network.

    python benchmarks/gpu.py results                     all parts: 25 minutes at most
    python benchmarks/gpu.py results --part qwen         one part: 8 minutes at most
    python benchmarks/gpu.py rehearsal --size tiny       the same steps on a CPU, with tiny models

FOLDER gets a file for each step, and log.txt. Run it again to go on: a step whose file is there is not repeated. Exit
code 1: a step has left no file. Read the traces with molprof report and compare, the results with molprof bench show.
"""

from __future__ import annotations

import importlib.util
import math
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shared import parser, progress

from molprof.common.process import command_line, run_line

HERE = Path(__file__).resolve().parent
FULL, TINY = "full", "tiny"
# Preset -> the size at which it runs on a GPU.
MODELS = {"qwen": "0.6b", "llama": "380m"}
# What a trace is called after its model, and the options that make it. The most telling come first.
RUNS = {
    "": (),
    "-generic": ("--processor", "generic"),
    "-grammar": ("--processor", "grammar"),
    "-jump": ("--processor", "grammar", "--forced-runs"),
    "-qwen": ("--processor", "qwen"),
    "-vectorized": ("--processor", "vectorized"),
    "-truncate": ("--processor", "truncate"),
}
GRAPH_RUNS = ("", "-grammar", "-jump", "-generic")
PEERS = ("xgrammar", "llguidance")
_CPU = ("--device", "cpu", "--threads", "1")
_PATIENCE_S = 900.0  # of a step of a rehearsal
LEAST_S = 5.0  # with less time left, no step is started


@dataclass(frozen=True)
class Step:
    """One command: `molprof` or a script of this folder with its arguments, and the file that it leaves."""

    file: str
    line: tuple[str, ...]
    limit_s: float = 150.0


def parts(size: str) -> dict[str, tuple[float, list[Step]]]:
    """Each part by its name: its time limit, s, and its steps. Those of `FULL` take 25 minutes, and vLLM 7 more."""
    doctor = Step("doctor.json", ("molprof", "doctor", "--format", "json"), 100)
    graphs = [_graph(model, run, size) for run in GRAPH_RUNS for model in MODELS]
    engines = [_engine(model, size) for model in MODELS]
    return {
        "qwen": (420, [doctor, *_runs("qwen", size)]),  # each processor, and without
        "llama": (240, _runs("llama", size)),
        "graphs": (250, graphs),  # a static cache and a compiled forward: CUDA graphs
        "costs": (220, _costs(size)),  # what processors cost, XGrammar and llguidance beside them
        "attention": (300, _grids(size)),  # attention kernels, and batches up to out of memory
        **(
            {"vllm": (400, engines)} if importlib.util.find_spec("vllm") else {}
        ),  # its masks, in an environment with it
    }


def _capture(name: str, model: str, size: str, options: Sequence[str], limit_s: float = 150.0) -> Step:
    how: tuple[str, ...] = (
        "--size", MODELS[model], "--dtype", "bfloat16", "-n", "64", "--batch-size", "32", "--repeats", "3",
        "--window", "20:29",
    )  # fmt: skip
    if size == TINY:
        how = (
            "-n", "2", "--batch-size", "2", "--max-new-tokens", "32", "--repeats", "1", "--warmup", "0",
            "--window", "4:7", *_CPU,
        )  # fmt: skip
    return Step(f"{name}.json.gz", ("molprof", "capture", "--model", model, *how, *options), limit_s)


def _runs(model: str, size: str) -> list[Step]:
    return [_capture(f"{model}{run}", model, size, options) for run, options in RUNS.items()]


def _graph(model: str, run: str, size: str) -> Step:
    # Without a GPU a compiled forward has no graphs: `eager` rehearses the same path in seconds.
    compiled = "eager" if size == TINY else "auto"
    options = (*RUNS[run], "--kv-cache", "static", "--compile", compiled)
    return _capture(f"{model}-static{run}", model, size, options, 200)


def _costs(size: str) -> list[Step]:
    few: tuple[str, ...] = ("-n", "64", "--batch-size", "32")
    if size == TINY:
        few = ("-n", "2", "--batch-size", "2", "--max-new-tokens", "32", "--device", "cpu")
    steps = []
    for model in MODELS:
        common = ("--models", model, *few, *_sized(model, size))
        for script, count, least, usual in (("processors", "--rounds", "1", "2"), ("decoding", "--repeats", "1", "3")):
            line = (f"{script}.py", *common, count, least if size == TINY else usual)
            steps.append(Step(f"{script}-{model}.json", line, 200))
    once = () if size == TINY else ("--repeats", "1")
    return [
        *steps,
        *(_capture(f"{model}-{peer}", model, size, ("--processor", peer, *once)) for peer in PEERS for model in MODELS),
    ]


def _sized(model: str, size: str) -> tuple[str, ...]:
    return () if size == TINY else ("--size", MODELS[model], "--dtype", "bfloat16")


def _grids(size: str) -> list[Step]:
    tiny = size == TINY
    model = ("--model", "qwen", *_sized("qwen", size), "--max-new-tokens", "8" if tiny else "96")
    kernels, rows = ("eager,sdpa,sdpa-flash", "2") if tiny else ("all", "16")
    # One batch of each size, the last one larger than any GPU's memory.
    batches = "1,2" if tiny else "16,128,1024,4096,16384"
    grids = {
        "attention": (*model, "--attention", kernels, "--batch-size", rows),
        "sdpa": ("--shape", "1x2x1x16x8", "--phase", "decode") if tiny else ("--shape", "4x16x16x2048x64"),
        "batch": (*model, "-n", "1", "--kv-cache", "dynamic", "--batch-size", batches),
    }
    common = ("--repeats", "1", "--limit", "60", "--resume", *(_CPU if tiny else ()))
    return [Step(f"{name}.jsonl", ("molprof", "bench", name, *options, *common)) for name, options in grids.items()]


def _engine(model: str, size: str) -> Step:
    few = ("--requests", "2", "--repeats", "1", "--backends", "xgrammar", "--max-new-tokens", "8")
    usual = ("--requests", "1,32", "--repeats", "4", *_sized(model, size))
    return Step(f"vllm-{model}.json", ("engines.py", "--models", model, *(few if size == TINY else usual)), 200)


def run_part(folder: Path, name: str, limit_s: float, steps: Sequence[Step]) -> int:
    """Run the steps whose file is not there yet, within the part's time limit; how many leave none."""
    began = time.monotonic()
    missing = 0
    for number, step in enumerate(steps, start=1):
        path = folder / step.file
        head = f"{name} {number}/{len(steps)} {step.file}"
        left_s = limit_s - (time.monotonic() - began)
        if path.exists():
            progress(f"{head}: there already")
        elif left_s < LEAST_S:
            progress(f"{head}: left out, the part's {limit_s:g} s are over; run it again")
            missing += 1
        else:
            missing += not run_step(step, path, head, min(step.limit_s, left_s))
    return missing


def run_step(step: Step, path: Path, head: str, limit_s: float) -> bool:
    """Whether the step ended well. Results of a benchmark that did not are kept: it goes on with its file."""
    progress(f"{head} ...")
    unfinished = path.with_name(f"unfinished-{path.name}")
    line = (*step.line[1:], "-o", str(unfinished))
    command = command_line(line) if step.line[0] == "molprof" else [sys.executable, str(HERE / step.line[0]), *line]
    began = time.monotonic()
    with (path.parent / "log.txt").open("ab") as log:
        log.write(f"\n== {head}: {' '.join(step.line)}\n".encode())
        log.flush()
        ending = run_line(command, path.parent, log, limit_s)
    good = ending.state == "ok" and unfinished.exists()
    if good:
        unfinished.replace(path)
    elif unfinished.suffix != ".jsonl":
        unfinished.unlink(missing_ok=True)
    why = "" if good else f": {ending.message or ending.state}"
    progress(f"{head}: {'done' if good else 'failed'} after {time.monotonic() - began:.1f} s{why}")
    return good


def main() -> int:
    known = parts(FULL)
    options = parser(__doc__)
    options.add_argument("folder", type=Path, help="folder for the results; one of an earlier call goes on")
    options.add_argument("--part", choices=known, action="append", help="run this part only; repeatable")
    options.add_argument("--size", choices=(FULL, TINY), default=FULL, help="tiny: a rehearsal on a CPU")
    options.add_argument("--list", action="store_true", help="list the parts and their steps, and run nothing")
    given = options.parse_args()
    chosen = {name: part for name, part in parts(given.size).items() if given.part is None or name in given.part}
    if given.list:
        for name, (limit_s, steps) in chosen.items():
            print(f"{name}, at most {limit_s / 60:.1f} minutes", *(" ".join(step.line) for step in steps), sep="\n  ")
        return 0
    # In a process of its own, so that this one never holds the GPU.
    look = [sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    if given.size == FULL and subprocess.run(look, check=False).returncode:
        sys.exit("torch sees no GPU here; molprof doctor says why, and --size tiny rehearses on a CPU")
    # Whoever stops this process stops the running step too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    missing = 0
    for name, (limit_s, steps) in chosen.items():
        if given.size == TINY:  # nothing is learned from how long a rehearsal takes
            limit_s, steps = math.inf, [replace(step, limit_s=_PATIENCE_S) for step in steps]
        missing += run_part(folder, name, limit_s, steps)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
