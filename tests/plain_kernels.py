"""A second, plain way to count what findings say of kernels: in order, stream by stream, from a file's own events."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
POINTWISE = {"elementwise", "copy", "cat", "fill", "reduce", "norm"}
Kernel = tuple[int, int, int, str]  # start, place in the file, time, class


def ns(us: Any) -> int:
    return int((Decimal(us) * 1000).to_integral_value())


def union(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def figures(path: Path, classes: dict[tuple[str, str], str]) -> dict[str, dict[str, int]]:
    """By id of a finding. classes: by category and name."""
    with gzip.open(path) as file:
        events = json.load(file, parse_float=str, parse_int=str)["traceEvents"]
    streams: dict[Any, list[Kernel]] = defaultdict(list)
    for place, event in enumerate(events):
        if event.get("ph") == "X" and event.get("cat") in GPU:
            kind = classes[event["cat"], event["name"]]
            of = event["args"].get("device"), event["args"].get("stream")
            streams[of].append((ns(event["ts"]), place, ns(event.get("dur", 0)), kind))
    chains, attention = [], []
    for kernels in streams.values():
        kernels.sort()
        breaks = [-1, *(at for at, kernel in enumerate(kernels) if kernel[3] not in POINTWISE), len(kernels)]
        chains += [[kernel[2] for kernel in kernels[a + 1 : b]] for a, b in pairwise(breaks) if b - a > 2]
        products = [at for at, kernel in enumerate(kernels) if kernel[3] == "matmul"]
        between = [kernels[a + 1 : b] for a, b in pairwise(products)]
        attention += [
            some
            for some in between
            if len(some) <= 8 and "softmax" in {kernel[3] for kernel in some} <= {"softmax", *POINTWISE}
        ]
    exposed_ns = 0
    for device in {of[0] for of in streams}:
        work = [kernel for of, kernels in streams.items() if of[0] == device for kernel in kernels]
        everything, others = (
            union([(start, start + ns_) for start, _, ns_, kind in work if kind not in left_out])
            for left_out in ((), ("collective",))
        )
        exposed_ns += sum(b - a for a, b in everything) - sum(b - a for a, b in others)
    return {
        "elementwise_chains": {"chains": len(chains), "saved_ns": sum(sum(chain) - max(chain) for chain in chains)},
        "unfused_attention": {
            "attention_calls": len(attention),
            "between_ns": sum(k[2] for some in attention for k in some),
        },
        "communication": {"exposed_ns": exposed_ns},
    }
