"""Real traces with events removed or changed, for tests of the certificate."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny_trace

from molprof import api
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Certificate

CORPUS = os.environ.get("MOLPROF_CORPUS")
needs_traces = pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to change")
Event = dict[str, Any]
Content = dict[str, Any]
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
TRITON, DDP, GRAPHS = (
    f"traces/{name}" for name in ("torch_compile_triton", "v100_resnet_ddp", "mi300x_vllm_piecewise_graph")
)


@cache
def text_of(name: str) -> bytes:
    return gzip.decompress(Path(str(CORPUS), f"{name}.json.gz").read_bytes())


@cache
def _from_0(name: str) -> str:
    """Its times from 0 on: absolute ones would lose digits where Python writes them."""
    content = json.loads(text_of(name), parse_float=Decimal)
    origin = min(Decimal(event["ts"]) for event in content["traceEvents"] if event.get("ph") == "X")
    for event in content["traceEvents"]:
        if "ts" in event:
            event["ts"] = Decimal(event["ts"]) - origin
    return json.dumps(content, default=float)


def real(name: str) -> Content:
    content: Content = json.loads(_from_0(name))
    return content


@cache
def whole(name: str) -> Report:
    return api.report(Path(str(CORPUS), f"{name}.json.gz"))


def changed(tmp_path: Path, content: Content) -> Report:
    return api.report(tiny_trace.write(tmp_path / "changed.json", content))


def certified(report: Report) -> Certificate:
    assert report.certificate is not None
    return report.certificate


def found(report: Report) -> set[tuple[str, str, str]]:
    """Check, group and verdict of every doubt."""
    return {(doubt.check, doubt.group, doubt.verdict) for doubt in certified(report).doubts}


def correlation(event: Event) -> int | None:
    number: int | None = event.get("args", {}).get("correlation")
    return number


def with_events(content: Content, events: list[Event]) -> Content:
    return {**content, "traceEvents": events}


def without(content: Content, gone: Callable[[Event], bool]) -> Content:
    return with_events(content, [event for event in content["traceEvents"] if not gone(event)])
