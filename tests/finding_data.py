"""What the tests of findings share: findings of a trace by id, and events of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_trace
from decoding_trace import Event, launched
from tiny_trace import slice_

from molprof.analysis.figures.build import build_report
from molprof.analysis.figures.model import Finding
from molprof.analysis.findings import Known, find_all
from molprof.analysis.query import find_statement
from molprof.analysis.reader.open import open_trace
from molprof.analysis.reader.stacks import Stacks

GEMM, FLASH, CUTLASS = "sm90_xmma_gemm_bf16", "flash_fwd_kernel_bf16", "fmha_cutlassF_bf16_aligned_64x64_rf_sm80"


def findings(tmp_path: Path, content: dict[str, Any]) -> dict[str, Finding]:
    """By id. Every finding's query must run, and show something."""
    path = tiny_trace.write(tmp_path / "trace.json.gz", content)
    stacks: list[Stacks] = []
    with open_trace(path, stacks=False, all_args=False, beside=stacks) as (engine, info):
        found = find_all(Known(engine, build_report(engine, info), *stacks))
        for item in found:
            statement = find_statement(item.query, {})
            for module in statement.modules:
                engine.query(f"INCLUDE PERFETTO MODULE molprof.{module}; SELECT 1")
            columns = engine.query(statement.sql)
            assert len(next(iter(columns.values()))) > 0, item.id
    assert [item.note for item in found] == sorted(item.note for item in found)
    assert all(0 <= item.gain.low <= item.gain.high <= 1 for item in found if item.gain is not None)
    assert all(item.figures and item.evidence and item.explanation and item.fix for item in found)
    assert len({item.id for item in found}) == len(found)
    return {item.id: item for item in found}


def op(name: str, at: float, dur: float) -> Event:
    return slice_("cpu_op", name, at, dur)


def gemms(start: int, every: int, gpu_us: float, count: int, first: int = 0) -> list[Event]:
    """Kernels that begin 2 us after their launches, as many us apart."""
    moments = [start + first + every * number for number in range(count)]
    return [event for at in moments for event in launched("kernel", GEMM, at, at + 2, gpu_us)]


def busy(start: int) -> list[Event]:
    """One kernel for the whole step, launched in the step before it ends."""
    return launched("kernel", GEMM, start, start + 2, 990)
