"""The parts of benchmarks/gpu.py: what each one runs, the most telling step first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

FULL, TINY = "full", "tiny"
SIZES = (FULL, TINY)
# Preset -> the size at which it runs on a GPU.
MODELS = {"qwen": "0.6b", "llama": "380m"}
_CPU = ("--device", "cpu", "--threads", "1")
_PATIENCE_S = 900.0
# Stands for the file that a step leaves.
FILE = "FILE"
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


@dataclass(frozen=True)
class Step:
    """One command: `molprof` or a script of this folder, its arguments, the file that it leaves, and its time limit."""

    name: str
    line: tuple[str, ...]
    file: str
    limit_s: float = 150.0


@dataclass(frozen=True)
class Part:
    """Steps that run together, and the time limit of all of them."""

    text: str
    limit_s: float
    steps: tuple[Step, ...]


def parts(size: str) -> dict[str, Part]:
    """Every part by its name. All limits of `FULL` together are 25 minutes."""
    doctor = Step("doctor", ("molprof", "doctor", "--format", "json", "-o", FILE, "--force"), "doctor.json", 100)
    known = {
        "qwen": Part("a Qwen3 of 0.6B, with each processor and without", 420, (doctor, *_runs("qwen", size))),
        "llama": Part("a LLaMA of 380M, with each processor and without", 240, _runs("llama", size)),
        "graphs": Part(
            "a static cache and a compiled forward (CUDA graphs)",
            250,
            tuple(step for run in GRAPH_RUNS for model in MODELS for step in [_graph(model, run, size)]),
        ),
        "costs": Part("what processors cost, XGrammar and llguidance beside them", 220, _costs(size)),
        "attention": Part("attention kernels, and batches up to out of memory", 300, _attention(size)),
        "overhead": Part("what recording costs", 70, tuple(_overhead(model, size) for model in MODELS)),
    }
    return known if size == FULL else {name: _patient(part) for name, part in known.items()}


def _patient(part: Part) -> Part:
    """The part without the limits that are made for a GPU: nothing is learned from how long a rehearsal takes."""
    steps = (replace(step, limit_s=_PATIENCE_S) for step in part.steps)
    return replace(part, limit_s=_PATIENCE_S * len(part.steps), steps=tuple(steps))


def _model(model: str, size: str) -> tuple[str, ...]:
    """The model, its dtype, the molecules and the passes, as options of `molprof capture`."""
    if size == TINY:
        return (
            "--model", model, "-n", "2", "--batch-size", "2", "--max-new-tokens", "32", "--repeats", "1",
            "--warmup", "0", "--window", "4:7", *_CPU,
        )  # fmt: skip
    return (
        "--model", model, "--size", MODELS[model], "--dtype", "bfloat16", "-n", "64", "--batch-size", "32",
        "--repeats", "3", "--window", "20:29",
    )  # fmt: skip


def _capture(name: str, model: str, size: str, options: Sequence[str], limit_s: float = 150.0) -> Step:
    line = ("molprof", "capture", *_model(model, size), *options, "-o", FILE, "--force")
    return Step(name, line, f"{name}.json.gz", limit_s)


def _runs(model: str, size: str) -> tuple[Step, ...]:
    return tuple(_capture(f"{model}{run}", model, size, options) for run, options in RUNS.items())


def _graph(model: str, run: str, size: str) -> Step:
    # Without a GPU a compiled forward has no graphs: `eager` rehearses the same path in seconds.
    compiled = "eager" if size == TINY else "auto"
    options = (*RUNS[run], "--kv-cache", "static", "--compile", compiled)
    return _capture(f"{model}-static{run}", model, size, options, 200)


def _costs(size: str) -> tuple[Step, ...]:
    few: tuple[str, ...] = ("-n", "64", "--batch-size", "32")
    if size == TINY:
        few = ("-n", "2", "--batch-size", "2", "--max-new-tokens", "32", "--device", "cpu")
    steps = []
    for model in MODELS:
        common = ("--models", model, *few, *_sized(model, size), "-o", FILE)
        rounds = ("--rounds", "1" if size == TINY else "2")
        repeats = ("--repeats", "1" if size == TINY else "3")
        steps += [
            Step(f"processors-{model}", ("processors.py", *common, *rounds), f"processors-{model}.json", 200),
            Step(f"decoding-{model}", ("decoding.py", *common, *repeats), f"decoding-{model}.json", 200),
        ]
    for peer in PEERS:
        options = ("--processor", peer, *(() if size == TINY else ("--repeats", "1")))
        steps += [_capture(f"{model}-{peer}", model, size, options) for model in MODELS]
    return tuple(steps)


def _sized(model: str, size: str) -> tuple[str, ...]:
    return () if size == TINY else ("--size", MODELS[model], "--dtype", "bfloat16")


def _attention(size: str) -> tuple[Step, ...]:
    tiny = size == TINY
    model = ("--model", "qwen", *_sized("qwen", size), "--max-new-tokens", "8" if tiny else "96")
    grids = {
        "attention": (
            *model,
            "--attention",
            "eager,sdpa,sdpa-flash" if tiny else "all",
            "--batch-size",
            "2" if tiny else "16",
        ),
        "sdpa": ("--shape", "1x2x1x16x8", "--phase", "decode") if tiny else ("--shape", "4x16x16x2048x64"),
        # One batch of each size, the last one larger than any GPU's memory.
        "batch": (
            *model,
            "-n",
            "1",
            "--kv-cache",
            "dynamic",
            "--batch-size",
            "1,2" if tiny else "16,128,1024,4096,16384",
        ),
    }
    common = ("--repeats", "1", "--limit", "60", "--resume", *(_CPU if tiny else ()), "-o", FILE)
    return tuple(
        Step(name, ("molprof", "bench", name, *options, *common), f"{name}.jsonl") for name, options in grids.items()
    )


def _overhead(model: str, size: str) -> Step:
    few = ("--tiny",) if size == TINY else ("--size", MODELS[model])
    return Step(f"overhead-{model}", ("overhead.py", "--model", model, *few, "-o", FILE), f"overhead-{model}.json")
