"""The modules on traces that nobody prepared: fed unchanged to the trace processor they give the same rows.

Where Perfetto drops events of a file, its own counter says how many, and the rows may differ.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from trace_rows import losses

from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.queries import PACKAGE, modules
from molprof.queries.catalog import catalog

CORPUS = os.environ.get("MOLPROF_CORPUS")
ARGUMENTS = {"molprof_small_operations": "(100000, 100)", "molprof_long_operations": "(100000)"}
# Ids and times of one engine are not those of another.
OWN = ("JOINID", "TIMESTAMP", "ARGSETID")
DROPPED = {
    "b200_vllm_eager": 42,
    "h100_qwen1.5_0.5b": 1,
    "mi300x_sglang_qwen3_8b_decode": 1,
    "mi300x_vllm_decode_graph": 0,
    "mi300x_vllm_piecewise_graph": 2,
    "torch_compile_triton": 0,
    "v100_resnet_ddp": 774,
}


def all_rows(engine: TraceProcessor) -> dict[str, list[tuple[Any, ...]]]:
    """Every table, view and function of the package, in an order of its own."""
    engine.register_package(PACKAGE, modules())
    found = {}
    for module in catalog().values():
        for entry in module.entries:
            names = [column.name for column in entry.columns if not column.type.startswith(OWN)]
            if names:
                sql = f"SELECT {', '.join(names)} FROM {entry.name}{ARGUMENTS.get(entry.name, '')}"
                columns = engine.query(f"INCLUDE PERFETTO MODULE {module.key}; {sql}")
                values = zip(*(column.tolist() for column in columns.values()), strict=True)
                found[entry.name] = sorted(values, key=repr)
    return found


def read_both_ways(path: Path) -> tuple[dict[str, Any], dict[str, Any], int, int]:
    """Rows through the reader and through Perfetto's own, slices missing in the latter, and its own count of them.

    No rows if slices are missing.
    """
    raw = path.read_bytes()
    with open_engine() as ours, open_engine() as plain:
        load_trace(path, ours)
        plain.feed(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        plain.finish()
        count = "SELECT COUNT() AS n FROM slice"
        missing = ours.query(count)["n"][0] - plain.query(count)["n"][0]
        dropped = losses(plain).get("slice_drop_overlapping_complete_event", 0)
        return ({}, {}, missing, dropped) if dropped else (all_rows(ours), all_rows(plain), missing, dropped)


def test_a_captured_run_unchanged(tmp_path: Path) -> None:
    path = tiny_trace.write(tmp_path / "tiny.json", tiny_trace.document())
    ours, plain, missing, dropped = read_both_ways(path)
    assert (missing, dropped) == (0, 0)
    assert plain == ours
    assert len(ours["molprof_token"]) == 5


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")
@pytest.mark.parametrize("name", DROPPED)
def test_public_traces_unchanged(name: str) -> None:
    ours, plain, missing, dropped = read_both_ways(Path(str(CORPUS), "traces", f"{name}.json.gz"))
    assert (missing, dropped) == (DROPPED[name], DROPPED[name])
    assert bool(plain) == (not dropped)
    assert plain == ours
