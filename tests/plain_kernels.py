"""A plain reference for counts in findings on kernels: in order, stream by stream, from a file's own events."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
POINTWISE = {"elementwise", "copy", "cat", "fill", "all fill", "reduce", "norm"}
Kernel = tuple[int, int, int, str, bool]  # start, place in the file, time, class, whether an optimizer launched it


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
    steps = [event for event in events if event.get("ph") == "X" and event["name"].startswith("Optimizer.")]
    by_optimizers = {
        event["args"]["correlation"]
        for event in (events if steps else [])
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and any(
            (step["pid"], step["tid"]) == (event["pid"], event["tid"])
            and ns(step["ts"]) <= ns(event["ts"]) < ns(step["ts"]) + ns(step["dur"])
            for step in steps
        )
    }
    for place, event in enumerate(events):
        if event.get("ph") == "X" and event.get("cat") in GPU:
            kind = classes[event["cat"], event["name"]]
            if kind == "fill" and any(
                word in event["name"].lower() for word in ("fillfunctor", "fillbuffer", "arange")
            ):
                kind = "all fill"
            of = event["args"].get("device"), event["args"].get("stream")
            mine = event["args"].get("correlation") in by_optimizers
            streams[of].append((ns(event["ts"]), place, ns(event.get("dur", 0)), kind, mine))
    chains, attention = [], []
    for kernels in streams.values():
        kernels.sort()
        chain: list[int] = []
        before = ""
        for _, _, time_ns, kind, is_optimizer in [*kernels, (0, 0, 0, "end", False)]:
            chosen = kind in POINTWISE and not is_optimizer
            if not chosen or kind == before == "all fill":
                chains += [chain] if len(chain) > 1 else []
                chain = []
            chain += [time_ns] if chosen else []
            before = kind
        products = [at for at, kernel in enumerate(kernels) if kernel[3] == "matmul"]
        attention += [
            kernels[a : b + 1]
            for a, b in pairwise(products)
            if b - a <= 9 and "softmax" in {kernel[3] for kernel in kernels[a + 1 : b]} <= {"softmax", *POINTWISE}
        ]
    exposed_ns = 0
    for device in {of[0] for of in streams}:
        work = [kernel for of, kernels in streams.items() if of[0] == device for kernel in kernels]
        everything, others = (
            union([(start, start + ns_) for start, _, ns_, kind, _ in work if kind not in left_out])
            for left_out in ((), ("collective",))
        )
        exposed_ns += sum(b - a for a, b in everything) - sum(b - a for a, b in others)
    return {
        "elementwise_chains": {"chains": len(chains), "saved_ns": sum(sum(chain) - max(chain) for chain in chains)},
        "unfused_attention": {
            "attention_calls": len(attention),
            "between_ns": sum(k[2] for some in attention for k in some[1:-1]),
            "products_ns": sum(k[2] for some in attention for k in (some[0], some[-1])),
        },
        "communication": {"exposed_ns": exposed_ns},
    }
