"""What each benchmark compares: the cases of a grid, each once, combinations that mean the same left out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from molprof.common.errors import UsageError
from molprof.common.settings import ATTENTION, AUTO, COMPILE, KV_CACHES, STATIC_CACHES
from molprof.profiler.bench.cases import BACKENDS, GenerateCase, SdpaCase
from molprof.profiler.processors import PROCESSORS

NO_PROCESSOR = "none"
ALL = "all"
# Dimension of a grid -> setting of a case, in the order in which they vary: the first one slowest.
DIMENSIONS = {
    "models": "model",
    "processors": "processor",
    "batch_sizes": "batch_size",
    "attentions": "attention",
    "kv_caches": "kv_cache",
    "compiles": "compile",
    "tf32s": "tf32",
    "cudnn_benchmarks": "cudnn_benchmark",
    "padding_multiples": "padding_multiple",
}
_COMPILED = tuple(mode for mode in COMPILE if mode not in (AUTO, "eager"))


@dataclass(frozen=True)
class Benchmark:
    """A command's grid: what it compares where the user names nothing.

    Attributes:
        line: for the help.
        defaults: values by name of `DIMENSIONS`; a dimension that is missing has the plainest value only.
    """

    line: str
    defaults: Mapping[str, tuple[Any, ...]]


PLAIN: Mapping[str, tuple[Any, ...]] = {
    "models": ("qwen",),
    "processors": (None,),
    "batch_sizes": (8,),
    "attentions": ("sdpa",),
    "kv_caches": ("dynamic",),
    "compiles": ("off",),
    "tf32s": (False,),
    "cudnn_benchmarks": (False,),
    "padding_multiples": (1,),
}
BENCHMARKS = {
    "attention": Benchmark("Generation by attention implementation.", {"attentions": ATTENTION}),
    "cache": Benchmark(
        "Generation by KV cache, with the processor and without, compiled and not.",
        {"processors": (None, AUTO), "kv_caches": KV_CACHES, "compiles": ("off", "reduce-overhead")},
    ),
    "batch": Benchmark(
        "Generation by batch size, with a dynamic and with a static cache.",
        {"batch_sizes": (1, 2, 4, 8, 16, 32), "kv_caches": ("dynamic", "static")},
    ),
    "compile": Benchmark(
        "Generation with a static cache by mode of torch.compile.", {"kv_caches": ("static",), "compiles": _COMPILED}
    ),
    "processors": Benchmark(
        "Generation without a logits processor and with each of molprof's.",
        {"processors": (None, *PROCESSORS)},
    ),
    "matrix": Benchmark(
        "Generation over attention, cache and batch size, and whatever else is named.",
        {"attentions": ATTENTION, "kv_caches": ("dynamic", "static"), "batch_sizes": (1, 8, 32)},
    ),
}


def generation_cases(values: Mapping[str, Sequence[Any]], common: Mapping[str, Any]) -> tuple[GenerateCase, ...]:
    """Every combination of the dimensions' values, but for those that are the same run.

    A cache whose shape grows is never compiled, so that its cases have `compile` off.

    Args:
        values: by name of `DIMENSIONS`, each at least one.
        common: settings that all cases share; `count` is what at least is generated, in full batches.

    Raises:
        UsageError: a value that no case takes.
    """
    common = dict(common)
    count = common.pop("count", None) or max(values["batch_sizes"])
    cases = []
    for chosen in itertools.product(*(values[name] for name in DIMENSIONS)):
        settings = dict(zip(DIMENSIONS.values(), chosen, strict=True))
        if settings["kv_cache"] not in STATIC_CACHES:
            settings["compile"] = "off"
        size = settings["batch_size"]
        if size < 1:
            raise UsageError(f"batch size {size} is below 1", hint="batch size: a whole number from 1 on")
        cases.append(GenerateCase(**settings, **common, count=-(-count // size) * size))
    return tuple(dict.fromkeys(cases))


@dataclass(frozen=True)
class Shape:
    """Of an attention: `batch x heads x KV heads x sequence x head size`."""

    batch: int
    heads: int
    kv_heads: int
    sequence: int
    head_dim: int


# The first is the one of which 0.119 ms (cuDNN) to 7.1 ms (math) are told of an H100, the second a small model's.
SHAPES = {True: ("4x16x16x2048x64", "16x16x8x1024x128"), False: ("1x16x16x512x64", "4x16x8x256x128")}
PHASES = ("prefill", "decode")


def read_shape(text: str) -> Shape:
    """A shape from `4x16x16x2048x64`.

    Raises:
        UsageError: not five whole numbers above 0.
    """
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){4}", text):
        raise UsageError(
            f"{text!r} is no shape BATCHxHEADSxKVHEADSxSEQUENCExSIZE", hint="five numbers, e.g. 4x16x16x2048x64"
        )
    return Shape(*map(int, text.split("x")))


def sdpa_cases(
    shapes: Sequence[Shape], backends: Sequence[str], phases: Sequence[str], masks: Sequence[str],
    dtypes: Sequence[str], device: str, threads: int | None,
) -> tuple[SdpaCase, ...]:  # fmt: skip
    """Every combination; without a mask a prefill is causal, as a batch that needs no padding is."""
    cases = []
    for shape, phase, mask, dtype, backend in itertools.product(shapes, phases, masks, dtypes, backends):
        prefill = phase == "prefill"
        cases.append(
            SdpaCase(
                backend, shape.batch, shape.heads, shape.kv_heads, shape.sequence if prefill else 1, shape.sequence,
                shape.head_dim, "causal" if prefill and mask == "none" else mask, dtype, device, threads,
            )
        )  # fmt: skip
    return tuple(dict.fromkeys(cases))


__all__ = [
    "ALL", "BACKENDS", "BENCHMARKS", "DIMENSIONS", "NO_PROCESSOR", "PHASES", "PLAIN", "SHAPES", "Benchmark", "Shape",
    "generation_cases", "read_shape", "sdpa_cases",
]  # fmt: skip
