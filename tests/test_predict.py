"""Predictions of small runs equal results by hand; the package's table and its held-out errors are right."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import predict as learning
import pytest
from goldens import called
from msgspec.structs import replace
from tiny_trace import slice_, work, write

from molprof import api
from molprof.analysis.predict.predict import (
    BUSY_FIGURE,
    COPY_FIGURE,
    GPU_FIGURE,
    LAUNCH_FIGURE,
    Prediction,
    device_of,
    predict,
)
from molprof.analysis.predict.run import read_run
from molprof.analysis.predict.table import CostRow, CostTable, TraceCosts, launching_of, quiet_of, stored
from molprof.common.errors import TraceError

BF16, ADD, MM = "c10::BFloat16", "aten::add", "aten::mm"
# What one trace of an H100 showed, ns: additions of 1,000, products of two kernels and 6,000.
SMALL = TraceCosts(
    "small", "NVIDIA H100 80GB HBM3", 5000, 1000, 2000.0, {"aten::view": 500.0, "aten::item": 700.0},
    [
        CostRow(ADD, "elementwise", "elementwise", "fp32", 8, 48, 1.0, 1000.0, 6000.0, 50),
        CostRow(MM, "matmul", "matrix product", "bf16", 256, 160, 2.0, 6000.0, 8000.0, 50),
        CostRow("aten::_local_scalar_dense", "memcpy", None, "", 0, 0, 0.0, 2000.0, 4000.0, 5),
    ],
)  # fmt: skip


def operator(name: str, ts: float, dur: float, *shapes: list[int]) -> dict[str, Any]:
    return slice_("cpu_op", name, ts, dur, **{"Input Dims": list(shapes), "Input type": [BF16] * len(shapes)})


# Us. An addition inside a product, as a CPU may compute it, is none of its own.
RUN = [
    operator(ADD, 0, 10, [8], [8]),
    operator("aten::view", 20, 1, [8]),
    operator(MM, 30, 40, [4, 8], [8, 4]),
    operator(ADD, 40, 10, [8], [8]),
    operator("aten::item", 80, 10, []),
    operator("aten::_local_scalar_dense", 82, 6, []),
]


def predicted(folder: Path, events: list[dict[str, Any]], source: TraceCosts = SMALL) -> Prediction:
    sources = [replace(source, model=name) for name in ("a", "b", "c")]
    path = write(folder / "run.json", {"traceEvents": events})
    with api.load(path, cached=False) as trace:
        run = trace.read(
            lambda engine, info: read_run(engine, info, launching_of(sources), quiet_of(sources)),
            stacks=True,
            all_args=True,
        )
    return predict(run, CostTable(sources, device_of("h100")), [])


def test_a_run_on_a_cpu(tmp_path: Path) -> None:
    found = predicted(tmp_path, RUN)
    calls = {share.operator: (share.calls, share.launches) for share in found.shares}
    assert calls == {ADD: (1, 1), MM: (1, 2), "aten::_local_scalar_dense": (1, 0)}
    assert found.gpu_ns.value == pytest.approx(9000, rel=0.1)
    assert sum(found.replayed.path.values()) == pytest.approx(found.length_ns.value)
    # The host: 18 us in the three calls, 1.2 in the view and in item, 2 before each of four outermost operators but
    # the first, whose time counts from its start, and 5 to return from the sync.
    assert found.length_ns.value == pytest.approx(18_000 + 1200 + 3 * 2000 + 2000 + 5000, abs=2100)
    assert found.limit == "host"
    assert found.graphs.length_ns < found.replayed.length_ns


def test_longer_kernels_decide(tmp_path: Path) -> None:
    source = replace(SMALL, rows=[replace(SMALL.rows[0], gpu_ns=30_000.0)])
    found = predicted(tmp_path, [operator(ADD, ts, 10, [8], [8]) for ts in range(0, 400, 20)], source)
    assert found.limit == "GPU"
    assert found.busy_ratio.value > 0.9
    assert (found.launches.value, found.launches.low, found.launches.high) == (20, 20, 20)  # no held-out errors


def test_operators_that_nothing_is_known_of(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace has shown: my::operator"):
        predicted(tmp_path, [*RUN, operator("my::operator", 100, 90, [8])])
    found = predicted(tmp_path, [*RUN, operator("my::operator", 100, 1, [8])])
    assert 0.9 < found.known_ratio < 1
    assert found.left_out == ("my::operator",)


@pytest.mark.parametrize(("graph_us", "refused"), [(0.5, False), (2, True)])
def test_what_a_graph_replays_is_in_no_operator(tmp_path: Path, graph_us: float, refused: bool) -> None:
    events = [
        operator(MM, 0, 20, [4, 8], [8, 4]),
        slice_("cuda_runtime", "cudaLaunchKernel", 5, 2, correlation=1),
        slice_("cuda_runtime", "cudaGraphLaunch", 30, 2, correlation=2),
        operator(MM, 40, 20, [4, 8], [8, 4]),
        work("kernel", "sgemm", 12, 9, 1),
        work("kernel", "sgemm", 33, graph_us, 2, graph=1),
    ]
    if refused:
        with pytest.raises(TraceError, match=r"18% of the run's GPU time is in no operator .* by cudaGraphLaunch"):
            predicted(tmp_path, events)
    else:
        assert predicted(tmp_path, events).launches.value == 2


def test_compiled_forwards(tmp_path: Path) -> None:
    """Two sums of as many elements between products become one kernel; a sum alone stays."""
    names = [(MM, 4, 8), (ADD, 4, 4), (ADD, 4, 4), (MM, 4, 8), (ADD, 4, 4)]
    shapes = {MM: ([4, 8], [8, 4]), ADD: ([4, 4], [4, 4])}
    found = predicted(tmp_path, [operator(name, 20 * at, 10, *shapes[name]) for at, (name, *_) in enumerate(names)])
    assert found.compiled is not None
    assert found.compiled.kernels == (2 + 1 + 1 + 2 + 1, 2 + 1 + 2 + 1)
    assert found.compiled.gpu_ns.value < found.gpu_ns.value
    assert found.compiled.length_ns.value < found.length_ns.value


def test_copies_and_waits_of_a_marked_step(tmp_path: Path) -> None:
    """A list as an index is copied to the GPU, tolist() to the host; a tensor of the host's own is not."""
    index = CostRow("aten::index", "index/scatter/gather", None, "", 0, 0, 1.0, 2000.0, 5000.0, 9)
    quiet = dict.fromkeys(("aten::lift_fresh", "aten::resolve_neg"), 500.0)
    source = replace(SMALL, rows=[*SMALL.rows, index], quiet=SMALL.quiet | quiet)
    events = [
        slice_("user_annotation", "ProfilerStep#1", 0, 200),
        operator("aten::lift_fresh", 10, 1, [3]),
        operator("aten::index", 20, 5, [8]),
        operator("aten::lift_fresh", 30, 1, [3]),
        operator(ADD, 40, 5, [8], [8]),
        operator("aten::resolve_neg", 60, 1, [8]),
    ]
    found = predicted(tmp_path, events, source)
    calls = {share.operator: share.calls for share in found.shares}
    assert calls == {"copy to the GPU": 1, "aten::index": 1, ADD: 1, "copy to the host": 1}
    assert (found.launches.value, found.syncs.value) == (2, 2)


def test_a_copy_that_the_driver_makes(tmp_path: Path) -> None:
    def copy(ts: float, kinds: list[str], strides: list[list[int]]) -> dict[str, Any]:
        how = {"Input Dims": [[4, 8], [4, 8]], "Input type": kinds, "Input Strides": strides}
        return slice_("cpu_op", "aten::copy_", ts, 10, **how)

    both, plain = [BF16, BF16], [[8, 1], [8, 1]]
    events = [copy(0, both, plain), copy(20, both, [[8, 1], [1, 4]]), copy(40, [BF16, "float"], plain)]
    known = CostRow("aten::copy_", "copy", "copy", "fp32", 0, 64, 1.0, 1500.0, 5000.0, 9)
    found = predicted(tmp_path, events, replace(SMALL, rows=[*SMALL.rows, known]))
    names = {share.operator: share.calls for share in found.shares}
    assert names == {"aten::copy_ (memcpy)": 1, "aten::copy_ (permuted)": 1, "aten::copy_": 1}


def test_what_a_gpu_trace_shows(tmp_path: Path) -> None:
    events = [
        operator(MM, 0, 20, [4, 8], [8, 4]),
        slice_("cuda_runtime", "cudaLaunchKernel", 5, 2, correlation=1),
        slice_("cuda_runtime", "cudaLaunchKernel", 10, 2, correlation=2),
        operator("aten::view", 25, 1, [4]),
        operator(ADD, 30, 10, [8], [8]),  # of tensors of the host
        work("kernel", "sgemm", 12, 3, 1),
        work("kernel", "splitKreduce_kernel", 16, 2, 2),
    ]
    path = write(tmp_path / "gpu.json", {"traceEvents": events, "deviceProperties": [{"id": 0, "name": SMALL.device}]})
    with api.load(path, cached=False) as trace:
        source = trace.read(
            lambda engine, info: learning.read_source(engine, info, "x", {MM, ADD}), stacks=True, all_args=True
        )
    (row,) = source.rows
    assert (row.operator, row.kernels, row.gpu_ns, row.host_ns, row.flops) == (MM, 2, 5000, 20_000, 256)
    assert source.quiet == {"aten::view": 1000}


def test_the_table_of_the_package() -> None:
    """Of runs on a CPU, models left out: what docs/predict.md says."""
    checks = [check for check in stored().checks if check.origin == "CPU" and check.shown]
    errors = {
        name: [abs(check.predicted / check.recorded - 1) for check in checks if check.figure == name]
        for name in (LAUNCH_FIGURE, GPU_FIGURE)
    }
    assert len(errors[GPU_FIGURE]) == 8
    assert statistics.median(errors[GPU_FIGURE]) <= 0.15
    assert max(errors[LAUNCH_FIGURE]) <= 0.06
    assert all(abs(check.predicted - check.recorded) < 0.15 for check in checks if check.figure == BUSY_FIGURE)
    of_gpus = [check for check in stored().checks if check.origin != "CPU" and check.shown]
    assert all(abs(check.predicted - check.recorded) <= 5 for check in of_gpus if check.figure == COPY_FIGURE)


def test_times_measured_on_the_device(tmp_path: Path) -> None:
    """A call of the same operator and size takes what was measured; what fits no call is refused."""
    events = [operator(ADD, ts, 10, [64, 1024], [64, 1024]) for ts in range(0, 400, 20)]
    write(tmp_path / "run.json", {"traceEvents": events})
    code, out, err = called(["replay", "run.json", "--op", "1", "--format", "json"], tmp_path)
    assert code == 0, err
    replayed = json.loads(out)
    replayed["measured"] |= {"device": "NVIDIA H100 80GB HBM3", "gpu_ns": 123_000.0}
    (tmp_path / "add.json").write_text(json.dumps(replayed))
    command = ["predict", "run.json", "--format", "json", "--measured", "add.json", "--device"]
    code, out, err = called([*command, "h100"], tmp_path)
    assert code == 0, err
    found = json.loads(out)
    assert found["predicted"]["gpu_ns"]["value"] == pytest.approx(20 * 123_000)
    assert found["measured_calls"] == 20
    for change, problem in (
        ({"operator": "aten::mul"}, "no call of the run is aten::mul of this size"),
        ({"measured": {"device": "NVIDIA A100-SXM4-40GB", "gpu_ns": 1.0}}, "was measured on 'NVIDIA A100-SXM4-40GB'"),
        ({"measured": {"device": "cpu", "gpu_ns": None}}, "was measured without a GPU"),
        ({"measured": 3}, "add.json: Expected `object`"),
    ):
        (tmp_path / "add.json").write_text(json.dumps(replayed | change))
        code, _, err = called([*command, "h100"], tmp_path)
        assert (code, problem in err) == (2, True), err
    assert (
        called(["predict", "run.json", "--device", "h100", "--batches", "1:8", "--measured", "add.json"], tmp_path)[0]
        == 2
    )


def test_the_command(tmp_path: Path) -> None:
    events = [operator(ADD, ts, 10, [64, 1024], [64, 1024]) for ts in range(0, 400, 20)]
    write(tmp_path / "run.json", {"traceEvents": events})
    code, out, err = called(["predict", "run.json", "--device", "a100", "--what-if", "elementwise=0.5x"], tmp_path)
    assert code == 0, err
    assert "predicted for NVIDIA A100, 40 GB" in out
    assert "has no traces of this GPU" in out
    assert re.search(r"elementwise=0.5x +\S+ .s +\S+ .s to \S+ .s", out)
    code, out, _ = called(["predict", "run.json", "--device", "h100", "--format", "csv"], tmp_path)
    assert code == 0
    head, launches, *_ = out.splitlines()
    assert (head, launches.split(",")[:2]) == ("figure,predicted,low,high", ["launches", "20"])
