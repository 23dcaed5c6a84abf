"""Files of benchmark results, made by hand, and stand-ins for measurements. Imports no torch."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from molprof.common.bench_records import digest
from molprof.common.errors import UnsupportedError
from molprof.common.settings import CaptureSettings
from molprof.profiler.bench.cases import Case, LineCase, SdpaCase, case_id, to_json
from molprof.profiler.bench.schemas import read_schemas

ENVIRONMENT = {
    "gpu": None, "cpu": "A CPU", "cores": 4, "threads": 2, "torch": "2.9", "transformers": "5.0", "cuda": None,
}  # fmt: skip

FIGURES: dict[str, Any] = {"wall_ns": [2_000_000], "phases_ns": [{"forward": 1_500_000}], "tokens": 10, "steps": 5}


def run_of(model: str = "qwen", **changed: Any) -> CaptureSettings:
    """The settings of a case of a sweep without recorded passes."""
    usual = {"batch_size": 8, "count": 8, "compile": "off", "repeats": 1, "timed_only": True, "fill": True}
    return CaptureSettings(model, **{**usual, "template_threads": 1, **changed})


def write(path: Path, *records: dict[str, Any], environment: dict[str, Any] | None = None) -> Path:
    where = environment or ENVIRONMENT
    head = {"record": "environment", "id": digest(where), "environment": where}
    text = "".join(json.dumps({"schema": 2, **record}) + "\n" for record in (head, *records))
    path.write_text(text)
    return path


def line_of(settings: CaptureSettings) -> LineCase:
    name = digest(vars(settings))
    return LineCase(name, ("capture",), "", ".json", {}, settings)


def result(
    case: Case | CaptureSettings, repeat: int, status: str, figures: dict[str, Any] | None, **more: Any
) -> dict[str, Any]:
    case = line_of(case) if isinstance(case, CaptureSettings) else case
    return {
        "record": "result", "case": case_id(case), "label": case.label(), "settings": to_json(case),
        "environment": digest(ENVIRONMENT), "repeat": repeat, "status": status, "message": None, "stack": None,
        "wall_s": 1.0, "figures": figures, **more,
    }  # fmt: skip


def ran(case: CaptureSettings, walls_ms: Sequence[float], tokens: int = 100, **more: Any) -> list[dict[str, Any]]:
    """One process per wall time, each with one timed pass and one before it that took twice as long."""
    return [
        result(
            case, repeat, "ok",
            {
                "wall_ns": [round(1e6 * wall)],
                "phases_ns": [{"prefill": round(1e5 * wall), "forward": round(7e5 * wall), "processor": 0,
                               "sampling": round(1e5 * wall), "bookkeeping": 0, "text": round(5e4 * wall)}],
                "tokens": tokens, "steps": 10, "warmup_ns": [round(2e6 * wall)], "warmup_compiles": [3],
                "warmup_compile_ns": [round(4e5 * wall)], "compiles": [0], "compile_ns": [0], "graph_breaks": 0,
                "load_ns": 1_500_000_000, "peak_memory_bytes": 2_000_000_000, "kv_cache_bytes": 1_000_000,
                "peak_memory_of": "resident memory of the process", "molecules": 4, "valid_molecules": 4, **more,
            },
        )
        for repeat, wall in enumerate(walls_ms)
    ]  # fmt: skip


def timed(case: SdpaCase, *medians_us: float, chosen: str | None = None) -> list[dict[str, Any]]:
    """One process per median of its calls."""
    return [
        result(
            case, repeat, "ok",
            {
                "times_ns": [round(900 * median), round(1000 * median), round(1500 * median)],
                "flops": 2_000_000_000, "bytes": 4_000_000, "first_call_ns": 5_000_000, "chosen": chosen,
                "largest_error": 1.25e-6,
            },
        )
        for repeat, median in enumerate(medians_us)
    ]  # fmt: skip


# What becomes of a case in place of being measured, by the threads that it asks for.
FAULTS = ("", "ok", "raise", "unsupported", "rows", "sleep", "other")
ROW_BYTES = 40_000_000


def fault(name: str, batch: int = 1, heads: int = 1) -> SdpaCase:
    return SdpaCase("auto", batch, heads, 1, 1, 1, 1, threads=FAULTS.index(name))


def measured(request: dict[str, Any]) -> dict[str, Any]:
    name = FAULTS[request["threads"]]
    if name == "raise":
        raise ValueError("no such luck")
    if name == "unsupported":
        raise UnsupportedError("torch's own reason")
    if name == "rows":
        block = bytearray(b"x") * (request["batch"] * ROW_BYTES)
        time.sleep(0.5 if len(block) else 0)
    if name == "sleep":
        Path("ready").touch()
        time.sleep(600)
    return {"figures": FIGURES, "environment": ENVIRONMENT}


def masks_ended(raw: dict[str, Any], done: int, kept: str) -> None:
    """In place of measuring masks: the process ends at `person`, and once, after others, at `unique`."""
    names = [item.name for item in read_schemas(Path(raw["folder"]))][done:]
    with Path(kept).open("a") as file:
        file.write(json.dumps({"version": "1", "environment": {}}) + "\n")
        for place, name in enumerate(names):
            file.flush()
            if name == "person" or (name == "unique" and place):
                file.write('{"name"')
                file.flush()
                os._exit(7)
            file.write(json.dumps({"name": name, "status": "ok"}) + "\n")
