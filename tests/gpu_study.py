"""A copy of what the case study is made from, with captures of a simulated GPU and benchmark results made by hand."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench_data import ran, result, timed, write
from gpu_like import simulate

from molprof.profiler.bench.cases import GenerateCase, SdpaCase

ROOT = Path(__file__).parent.parent
PREFIX = "sim"
# Name: the CPU's capture that it is made from, and how.
_TAILS: dict[str, tuple[str, dict[str, Any]]] = {
    "": ("", {}),
    "generic": ("generic", {}),
    "vectorized": ("generic", {"processor": "vectorized"}),
    "truncate": ("grammar", {"processor": "truncate"}),
    "grammar": ("grammar", {}),
    "jump": ("jump", {}),
    "xgrammar": ("grammar", {"processor": "xgrammar"}),
    "llguidance": ("grammar", {"processor": "llguidance"}),
    "static": ("", {"graph": True}),
    "static-generic": ("generic", {"graph": True}),
    "static-grammar": ("grammar", {"graph": True}),
    "static-jump": ("jump", {"graph": True}),
}
RUNS = {
    "-".join(filter(None, (model, name))): ("-".join(filter(None, ("cpu", model, source))), options)
    for model in ("qwen", "llama")
    for name, (source, options) in {**_TAILS, **({"qwen": ("qwen", {})} if model == "qwen" else {})}.items()
}


def project(folder: Path) -> Path:
    """A copy of the project's pages and traces."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("docs", "traces"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


def add_runs(root: Path, names: Iterable[str]) -> None:
    """Captures of these names on a simulated GPU."""
    for name in names:
        source, options = RUNS[name]
        simulate(ROOT / "traces" / f"{source}.json.gz", root / "traces" / f"{PREFIX}-{name}.json.gz", **options)


def add_results(root: Path) -> None:
    """Results of attention kernels: two run, one has no kernel, two time out."""
    folder = root / "docs" / "results" / PREFIX
    folder.mkdir(parents=True, exist_ok=True)

    def case(attention: str, kv_cache: str = "dynamic") -> GenerateCase:
        return GenerateCase("qwen", attention=attention, kv_cache=kv_cache)

    def kernel(backend: str, mask: str) -> SdpaCase:
        return SdpaCase(backend, 4, 16, 16, 2048, 2048, 64, mask)

    write(
        folder / "sdpa.jsonl",
        *timed(kernel("flash", "causal"), 160),
        result(kernel("flash", "padding"), 0, "unsupported", None, message="flash takes no mask"),
    )
    write(
        folder / "attention.jsonl",
        *ran(case("sdpa"), [10, 10, 10]),
        *ran(case("eager"), [11, 11, 11]),
        result(case("sdpa-flash"), 0, "failed", None, message="RuntimeError: No available kernel. Aborting execution."),
        result(
            case("sdpa-cudnn"), 0, "timed out", None, message="no end after 600 s", stack=["run", "cudnn_attention"]
        ),
        result(case("flash_attention_2", "static"), 0, "timed out", None, message="no end after 600 s"),
    )
