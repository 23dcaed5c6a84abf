"""A folder of captures: which of them a trace is opened with, by batch size and rank, and what is said of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from test_graph_capture import NAMES, captured, replayed
from tiny_trace import slice_, write

from molprof import api
from molprof.common.errors import MolprofError

VLLM = "execute_context_0(0)_generation_{0}({0})"
SGLANG = "step[DECODE bs={}]"


def folder_of(path: Path, captures: dict[str, tuple[str, int]], **keys: Any) -> Path:
    """A folder with captures of two layers by file: the range around each, and its rows."""
    for name, (around, rows) in captures.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        write(path / name, {"traceEvents": captured(0, around, 2, rows=rows), **keys})
    return path


def opened_with(folder: Path, step: str, **keys: Any) -> tuple[set[Any], set[Any], tuple[str, ...]]:
    """Names of the captures that were taken, the first dimension of shapes, and remarks."""
    path = write(folder.parent / "replay.json", {"traceEvents": replayed(0, 1, NAMES * 2, around=step), **keys})
    found = api.origins(path, capture=folder)[1]
    places = [found.places[item.id] for graph in found.graphs for item in graph.work]
    rows = {None if place.shapes is None else place.shapes[0][0] for place in places}
    return {name for graph in found.graphs for name in graph.captures}, rows, found.remarks


@pytest.mark.parametrize(
    ("step", "batch", "size"),
    [(VLLM, 8, 8), (VLLM, 5, 8), (VLLM, 9, 32), (SGLANG, 3, 4), (SGLANG, 32, 32), (SGLANG, 1, 4)],
)
def test_the_smallest_captured_size_that_holds_the_batch(tmp_path: Path, step: str, batch: int, size: int) -> None:
    """vLLM's files have no size in their names: it stands in the ranges around the captures."""
    files = {f"graph_capture_rank_0.{at}.pt.trace.json": (f"capture_{at}_FULL", at) for at in (4, 8, 32)}
    taken = opened_with(folder_of(tmp_path / "capture_traces", files), step.format(batch))
    assert taken == ({f"capture_{size}_FULL"}, {size}, (f"read 1 of 3 captures: of {size}",))


def test_a_batch_that_none_holds_is_told(tmp_path: Path) -> None:
    files = {f"bs_{at}_rank0.json": (f"capture_{at}_DECODE", at) for at in (4, 8)}
    folder = folder_of(tmp_path / "folder", files)
    path = write(tmp_path / "replay.json", {"traceEvents": replayed(0, 1, NAMES, around=VLLM.format(9))})
    found = api.origins(path, capture=folder)[1]
    assert found.remarks == (
        "no capture holds a batch of 9: the largest is of 8", "read 0 of 2 captures: of no known size",
    )  # fmt: skip
    assert not found.graphs[0].captures
    assert {place.certainty for place in found.places.values()} == {None}


def test_captures_of_the_rank_of_the_trace(tmp_path: Path) -> None:
    files = {f"bs_8_rank{rank}.json": ("alike", 8 + rank) for rank in range(3)}
    folder, step = folder_of(tmp_path / "folder", files), SGLANG.format(8)
    for rank in range(3):
        taken, rows, remarks = opened_with(folder, step, distributedInfo={"rank": rank, "world_size": 3})
        assert (taken, rows, remarks) == ({f"alike of bs_8_rank{rank}.json"}, {8 + rank}, ())
    *_, remarks = opened_with(folder, step, distributedInfo={"rank": 7, "world_size": 8})
    assert remarks == ("it is of rank 7: the captures are of rank 0, the lowest of several",)
    *_, remarks = opened_with(folder, step)
    assert remarks == ("its rank is not recorded: the captures are of rank 0, the lowest of several",)


def test_an_index_tells_sizes_that_nothing_else_does(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "folder", {"a.json": ("x", 4), "b.json": ("x", 8)})
    index = folder / "execution_details.json"
    index.write_text(
        json.dumps([{"file": f"{n}.json", "batch_size": s, "mode": "FULL"} for n, s in (("a", 4), ("b", 8))])
    )
    assert opened_with(folder, SGLANG.format(7)) == ({"x of b.json"}, {8}, ("read 1 of 2 captures: of 8",))
    # Without names of steps that tell sizes, all are read.
    taken, rows, remarks = opened_with(folder, "replay")
    assert (taken, rows, remarks) == ({"x of a.json", "x of b.json"}, {None}, ())
    index.write_text("{}")
    with pytest.raises(MolprofError, match=r"execution_details.json is no index of captures"):
        opened_with(folder, "replay")


def test_command(tmp_path: Path, molprof: Cli) -> None:
    folder = folder_of(tmp_path / "capture_traces", {"bs_8_rank0.json": ("capture_8_DECODE", 8)})
    replay = write(tmp_path / "replay.json", {"traceEvents": replayed(0, 1, NAMES * 2, around=SGLANG.format(8))})
    shown = molprof("report", str(replay), "--graph-capture", str(folder), "--all").stdout
    assert "graph 0: 1 replay of 6 nodes, captured in capture_8_DECODE (6 nodes)" in shown
    (tmp_path / "empty").mkdir()
    refused = molprof("report", "by", "module", str(replay), "--graph-capture", str(tmp_path / "empty"))
    assert refused.returncode == 2
    assert "holds no traces" in refused.stderr


def test_host_functions_of_a_graph(tmp_path: Path, molprof: Cli) -> None:
    """TensorRT-LLM fills masks in them: no kernel is theirs, and the GPU waits for them inside the graph."""
    capture = captured(0, "capture_8_DECODE", 2, rows=8)
    capture.append(slice_("cuda_runtime", "cudaLaunchHostFunc", 4.85, 0.05, correlation=99))
    replay = replayed(0, 1, NAMES, around=SGLANG.format(8))
    late = replayed(30, 1, NAMES)[2:]
    paths = [
        write(tmp_path / f"{name}.json", {"traceEvents": events})
        for name, events in (("capture", capture), ("replay", [*replay, *late]))
    ]
    found = api.origins(paths[1], capture=paths[0])[1]
    (graph,) = found.graphs
    # From the end of the third kernel to the start of the fourth.
    assert (graph.host_functions, graph.host_wait_ns, graph.doubts, len(graph.unused)) == (1, 25_000, (), 0)
    assert {place.certainty for place in found.places.values()} == {"aligned"}
    shown = molprof("report", str(paths[1]), "--graph-capture", str(paths[0]), "--all").stdout
    assert "1 host function in it, for which the GPU waits 25.0 µs of a replay" in " ".join(shown.split())
