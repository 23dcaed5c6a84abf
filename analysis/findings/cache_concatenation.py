"""The KV cache grows by concatenation, which copies all keys and values for every token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from molprof.analysis.engine import Engine
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.operators import Operators, read_operators
from molprof.analysis.findings.rule import Rule
from molprof.analysis.findings.scope import LEAST_GAIN, Scope
from molprof.common.values import count_text, number_text, time_text

_ATTENTION = (
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_*attention*",
    "flash_attn*::_flash_attn*forward*",
    "aten::softmax",  # eager attention
)
_CAT = "aten::cat"
# Before the cache, rotating queries and keys concatenates twice in each layer.
_CATS_OF_ROTATION = 2
_CATS_OF_CACHE = 2


def _find(engine: Engine, report: Report, scope: Scope | None) -> Iterator[Finding]:
    """Fires where the two concatenations before each attention are of the cache and cost LEAST_GAIN: where the run's
    cache is dynamic, and in a foreign trace with four or more, because rotating queries and keys takes two.

    Gain: the time of those concatenations, on the GPU and on the host.
    """
    run = report.run
    if scope is None or (run is not None and run.setup.cache != "dynamic"):
        return
    needed = _CATS_OF_CACHE if run is not None else _CATS_OF_CACHE + _CATS_OF_ROTATION
    cats, layers = _before_attention(read_operators(engine, _CAT, *_ATTENTION), needed, run is not None)
    if not layers:
        return
    count, gpu_ns = cats.launched(engine)
    host_ns = cats.host_ns()
    gain = min(1.0, scope.host_part(host_ns, "forward") + scope.gpu_part(gpu_ns))
    if gain < LEAST_GAIN:
        return
    figures: dict[str, int | float] = {
        "concatenations": len(cats),
        "attention_calls": layers,
        "host_ns": host_ns,
        "gpu_ns": gpu_ns,
        "kernels": count,
    }
    on_gpu = f", {count_text(count)} kernels, {time_text(gpu_ns)} in all" if scope.devices else ""
    yield Finding(
        id="cache_concatenation",
        title="The KV cache is copied for every token",
        evidence=(
            f"{number_text(len(cats) / layers)} aten::cat before each of {count_text(layers)} attention calls: "
            f"{time_text(host_ns)} on the host{on_gpu}"
        ),
        gain_ratio=gain,
        fix="Use a static cache, which writes new keys and values in place. Do not count its compile time.",
        explanation=(
            "A dynamic cache creates tensors that are one token longer, in every layer and step. Each step copies all "
            "keys and values so far, so its work grows with the sequence."
        ),
        query="SELECT ts, dur, name FROM slice WHERE name = 'aten::cat' ORDER BY dur DESC, ts LIMIT 50",
        figures=figures,
    )


def _before_attention(operators: Operators, needed: int, in_forward: bool) -> tuple[Operators, int]:
    """The last two concatenations before each attention that at least `needed` come before, and how many such."""
    if in_forward:
        operators = operators.within(("forward",))
    chosen: list[int] = []
    layers = 0
    for place in dict.fromkeys(operators.places.tolist()):
        waiting: list[int] = []
        for index in np.flatnonzero(operators.places == place).tolist():
            if operators.names[index] == _CAT:
                waiting.append(index)
                continue
            if len(waiting) >= needed:
                chosen.extend(waiting[-_CATS_OF_CACHE:])
                layers += 1
            waiting = []
    return operators.where(np.array(sorted(chosen), dtype=np.int64)), layers


RULE = Rule(("cache_concatenation",), _find)
