"""The benchmarks: what each one varies, and the cases of its grid."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from molprof.common.errors import UsageError
from molprof.common.setting import rows
from molprof.common.settings import ATTENTION, AUTO, COMPILE, KV_CACHES, LP_WORD, STATIC_CACHES
from molprof.profiler.bench.cases import GenerateCase, SdpaCase
from molprof.profiler.constraints import OF_MOLECULES

_COMPILED = tuple(mode for mode in COMPILE if mode not in (AUTO, "eager"))


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of whole generation."""

    line: str  # for the help
    # what it compares by default, by setting; a setting that is missing is not varied
    values: Mapping[str, tuple[Any, ...]]


# Settings that a grid can vary, in the order in which they vary, the first one slowest.
AXES = {name: row for name, row in rows(GenerateCase).items() if row.axis is not None}
BENCHMARKS = {
    "attention": Benchmark("Compare attention implementations.", {"attention": ATTENTION}),
    "cache": Benchmark(
        "Compare KV caches, with a logits processor and without, compiled and not.",
        {"processor": (None, LP_WORD), "kv_cache": KV_CACHES, "compile": ("off", "reduce-overhead")},
    ),
    "batch": Benchmark(
        "Compare batch sizes, with a dynamic and a static KV cache.",
        {"batch_size": (1, 2, 4, 8, 16, 32), "kv_cache": ("dynamic", "static")},
    ),
    "compile": Benchmark(
        "Compare modes of torch.compile, with a static KV cache.", {"kv_cache": ("static",), "compile": _COMPILED}
    ),
    "processors": Benchmark(
        "Compare molprof's logits processors, and no processor.", {"processor": (None, *OF_MOLECULES)}
    ),
    "matrix": Benchmark(
        "Compare attention, KV cache and batch size, in every combination.",
        {"attention": ATTENTION, "kv_cache": ("dynamic", "static"), "batch_size": (1, 8, 32)},
    ),
}
_PLAIN = GenerateCase(model="qwen")


def values_of(benchmark: Benchmark) -> dict[str, tuple[Any, ...]]:
    """Return what a benchmark compares by default, by setting; one value if it does not vary the setting."""
    return {name: benchmark.values.get(name, (getattr(_PLAIN, name),)) for name in AXES}


def generation_cases(values: Mapping[str, Any]) -> tuple[GenerateCase, ...]:
    """Return every combination of values, but for those that are the same run.

    A cache that grows is never compiled and has no maximum length. `count` is a least number of molecules,
    which full batches may exceed; None: the largest batch.
    """
    common = {name: value for name, value in values.items() if name not in AXES}
    count = common.pop("count", None) or max(values["batch_size"])
    cases = []
    for chosen in itertools.product(*(values[name] for name in AXES)):
        settings = dict(zip(AXES, chosen, strict=True))
        if settings["kv_cache"] not in STATIC_CACHES:
            settings |= {"compile": "off", "max_cache_length": None}
        size = settings["batch_size"]
        if size < 1:
            raise UsageError(f"batch size {size} is below 1", hint="batch size: a whole number from 1 on")
        cases.append(GenerateCase(**settings, **common, count=-(-count // size) * size))
    return tuple(dict.fromkeys(cases))


# Of an attention: batch, heads, KV heads, sequence, head size.
Shape = tuple[int, int, int, int, int]
# By whether there is a GPU.
SHAPES = {True: ("4x16x16x2048x64", "16x16x8x1024x128"), False: ("1x16x16x512x64", "4x16x8x256x128")}
PHASES = ("prefill", "decode")


def read_shape(text: str) -> Shape:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){4}", text):
        raise UsageError(
            f"{text!r} is no shape BATCHxHEADSxKVHEADSxSEQUENCExSIZE", hint="five numbers, e.g. 4x16x16x2048x64"
        )
    batch, heads, kv_heads, sequence, head_dim = map(int, text.split("x"))
    return batch, heads, kv_heads, sequence, head_dim


def sdpa_cases(
    shapes: Sequence[Shape], backends: Sequence[str], phases: Sequence[str], masks: Sequence[str], **common: Any
) -> tuple[SdpaCase, ...]:
    """Return every combination; a prefill without a mask is causal, as that of a batch without padding is."""
    cases = []
    for shape, phase, mask, backend in itertools.product(shapes, phases, masks, backends):
        batch, heads, kv_heads, keys, head_dim = shape
        prefill = phase == "prefill"
        queries, masked = keys if prefill else 1, "causal" if prefill and mask == "none" else mask
        cases.append(SdpaCase(backend, batch, heads, kv_heads, queries, keys, head_dim, masked, **common))
    return tuple(dict.fromkeys(cases))
