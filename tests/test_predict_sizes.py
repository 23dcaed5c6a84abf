"""Predicted runs at other batch sizes equal recorded ones in shapes and memory; others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from goldens import called
from tiny_trace import slice_, write

from molprof import api
from molprof.common.errors import TraceError, UsageError

GIVEN = Path(__file__).parent / "goldens" / "given"
# A decode step of one layer with the row-by-row processor `generic`, of 1 and of 3 rows.
ONE, THREE = GIVEN / "rows-1.json.gz", GIVEN / "rows-3.json.gz"
BF16 = "c10::BFloat16"


def operator(name: str, ts: float, *shapes: list[int]) -> dict[str, Any]:
    return slice_("cpu_op", name, ts, 10, **{"Input Dims": list(shapes), "Input type": [BF16] * len(shapes)})


def test_shapes_of_three_rows_and_of_one() -> None:
    _, sizes = api.predict_sizes(THREE, "h100", "1,3", beside=ONE)
    assert sizes.other is not None
    rows, agreed = sizes.other
    assert (sizes.rows, rows, agreed.calls, agreed.equal, agreed.missing) == (3, 1, 78, 78, 0)
    first, third = sizes.each
    assert 3 * first.per_s.value == pytest.approx(third.per_s.value, rel=0.2)
    assert first.memory_bytes is not None
    assert third.memory_bytes is not None
    assert third.memory_bytes.low - first.memory_bytes.low == 2 * (
        # Keys and values of 6 heads; logits, and two copies as float32.
        sizes.tokens * 2 * 6 * 32 * 4 + 128_256 * (4 + 4 + 4)
    )


def test_shapes_of_one_row_leave_one_open() -> None:
    """Positions that all rows share look like a row's own: one sum of them in each step."""
    _, sizes = api.predict_sizes(ONE, "h100", "3", beside=THREE)
    assert sizes.other is not None
    _, agreed = sizes.other
    assert (agreed.calls, agreed.equal, agreed.missing) == (82, 81, 0)
    assert agreed.differing == {("aten::add", "[[3, 1], [3, 1], []]", "[[1, 1], [3, 1], []]"): 1}


def test_rows_of_a_run_that_does_not_tell(tmp_path: Path) -> None:
    events = [operator("aten::mm", 0, [4, 8], [8, 16]), operator("aten::add", 20, [2, 2, 16], [16])]
    path = write(tmp_path / "run.json", {"traceEvents": events})
    with pytest.raises(TraceError, match="does not record how many rows"):
        api.predict_sizes(path, "h100", "1:4")
    found, sizes = api.predict_sizes(path, "h100", "1:4", rows=2)
    assert [size.rows for size in sizes.each] == [1, 2, 4]
    assert sizes.each[1].gpu_ns.value == found.gpu_ns.value
    assert sizes.each[0].memory_bytes is None


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    events = [operator("aten::mm", 0, [4, 8], [8, 16]), operator("aten::mul", 20, [6, 4096, 4096], [6, 4096, 4096])]
    path = write(tmp_path / "run.json", {"traceEvents": events})
    with pytest.raises(TraceError, match="may be in operators whose shapes do not show the rows: aten::mul"):
        api.predict_sizes(path, "h100", "8", rows=4)
    training = [operator("aten::threshold_backward", 0, [4, 8], [4, 8])]
    with pytest.raises(TraceError, match="has a backward pass"):
        api.predict_sizes(write(tmp_path / "step.json", {"traceEvents": training}), "h100", "8", rows=4)


@pytest.mark.parametrize("text", ["", "0", "8:1", "1,x", "-1"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="no batch sizes"):
        api.predict_sizes(ONE, "h100", text)


def test_the_command_leaves_out_what_does_not_fit(tmp_path: Path) -> None:
    line = ["predict", str(THREE), "--device", "Tesla T4", "--batches", "1,64,65536", "--format", "json"]
    code, out, err = called(line, tmp_path)
    assert code == 0, err
    batches = json.loads(out)["batches"]
    assert [item["rows"] for item in batches["each"]] == [1, 64]
    assert batches["too_large"]["rows"] == 65536
    code, out, err = called([*line[:4], "--batches", "1:64", "--format", "html", "-o", "sizes.html"], tmp_path)
    assert code == 0, err
    assert "Batch sizes, drawn" in (tmp_path / "sizes.html").read_text(encoding="utf-8")


def test_rows_that_contradict_the_run() -> None:
    with pytest.raises(UsageError, match=r"--rows says 2, and .* has steps of 3 rows"):
        api.predict_sizes(THREE, "h100", "1:4", rows=2)
