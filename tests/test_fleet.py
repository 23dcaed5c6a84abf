"""Rows of many traces: parts, joins, workers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tiny_trace
from goldens import called

from molprof.analysis.fleet.row import FleetRow, joined_text, read_part, row_path
from molprof.analysis.fleet.rows import Fleet, each_row
from molprof.analysis.reader import Reading
from molprof.common.errors import UsageError
from molprof.common.jobs.dask import call_alone, connected
from molprof.common.process.workers import WorkerError

ROWS = ["report", "rows", "traces", "--no-cache", "--parts", "parts"]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder with three traces of 1, 2 and 3 kernels, one that is cut off, and their parts; what was said."""
    folder = tmp_path_factory.mktemp("read")
    (folder / "traces").mkdir()
    for count in (1, 2, 3):
        events = [tiny_trace.work("kernel", "a", 10 * number, 5, number) for number in range(count)]
        tiny_trace.write(folder / "traces" / f"{count}.json", {"traceEvents": events})
    (folder / "traces" / "cut.json").write_text('{"traceEvents": [')
    code, out, said = called([*ROWS, "--format", "json"], folder)
    assert code == 3
    return folder, out, said


@pytest.fixture
def folder(tmp_path: Path, read: tuple[Path, str, str]) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(read[0], tmp_path / "copy"))


def rows(folder: Path) -> dict[str, FleetRow]:
    return {Path(row.file).name: row for row in map(read_part, folder.iterdir())}


def test_a_trace_is_one_part_and_a_failure_is_one_too(read: tuple[Path, str, str]) -> None:
    folder, out, said = read
    assert "3 of 4 traces read, 1 failed because traces/cut.json is truncated" in said
    kept = rows(folder / "parts")
    kernels = {name: row.figures.get("kernels") for name, row in kept.items()}
    assert kernels == {"1.json": 1, "2.json": 2, "3.json": 3, "cut.json": None}
    assert "truncated" in (kept["cut.json"].problem or "")
    assert [row["figures"].get("kernels") for row in msgspec.json.decode(out)] == [1, 2, 3, None]


def test_a_rerun_reads_what_failed_or_is_damaged_alone(folder: Path) -> None:
    kept = rows(folder / "parts")
    marked = msgspec.structs.replace(kept["1.json"], figures={**kept["1.json"].figures, "kernels": 99})
    row_path(folder / "parts", marked.digest or "", partial=False).write_bytes(msgspec.json.encode(marked))
    damaged = row_path(folder / "parts", kept["2.json"].digest or "", partial=False)
    damaged.write_bytes(b'{"kind":"molprof row"')
    tiny_trace.write(folder / "traces" / "cut.json", {"traceEvents": [tiny_trace.work("kernel", "a", 0, 5, 1)]})
    code, out, said = called([*ROWS, "--format", "json"], folder)
    assert (code, "4 of 4 traces read\n" in said) == (0, True)
    assert [row["figures"]["kernels"] for row in msgspec.json.decode(out)] == [99, 2, 3, 1]
    assert read_part(damaged).figures["kernels"] == 2


def test_parts_are_joined_once_whatever_else_is_there(folder: Path) -> None:
    old = msgspec.structs.replace(rows(folder / "parts")["1.json"], version="0")
    (folder / "parts" / "old.row.json").write_bytes(msgspec.json.encode(old))
    code, out, said = called(["report", "rows", "parts", "--format", "json"], folder)
    assert (code, "1 row left out: of molprof 0; this is molprof" in said) == (3, True)
    names = sorted(row["file"] for row in msgspec.json.decode(out))
    assert names == [f"traces/{name}.json" for name in ("1", "2", "3", "cut")]
    _, out, said = called(["report", "rows", "parts", "traces/1.json", "--format", "json"], folder)
    assert "1 row left out: of traces that are given too" in said
    assert sorted(row["file"] for row in msgspec.json.decode(out)) == names


def test_parquet_has_the_same_columns_for_any_traces(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert called(["report", "rows", "parts", "-o", "all.parquet"], folder)[0] == 3
    assert called(["report", "rows", "traces/cut.json", "-o", "bad.parquet"], folder)[0] == 3
    table, bad = parquet.read_table(folder / "all.parquet"), parquet.read_table(folder / "bad.parquet")
    assert table.schema == bad.schema
    found = dict(zip(table["file"].to_pylist(), table["kernels"].to_pylist(), strict=True))
    assert found == {"traces/1.json": 1, "traces/2.json": 2, "traces/3.json": 3, "traces/cut.json": None}
    assert "truncated" in bad["problem"].to_pylist()[0]
    assert {"dtype", "certificate_gpu_work", "digest", "finding"} <= {*table.column_names}
    assert "molprof report rows" in called(["report", "traces/1.json", "-o", "one.parquet"], folder)[2]


def test_reasons_are_told_with_their_number() -> None:
    bad = [FleetRow("", 1, "", f"{name}.json", problem=f"{name}.json is empty") for name in "abc"]
    other = [FleetRow("", 1, "", f"{name}.json", problem=f"{name}.json: {name}") for name in "defg"]
    good = [FleetRow("", 1, "", "h.json")] * 993
    assert joined_text([*good, *bad, *other]) == (
        "993 of 1,000 traces read, 3 failed because a.json is empty, 1 failed because d.json: d, "
        "1 failed because e.json: e, 2 failed for other reasons"
    )


class Workers(Executor):
    """Workers that answer with something else."""

    at_once = 1

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        future.set_result(self.answer)
        return future


def test_garbage_of_a_worker_is_a_failure(folder: Path) -> None:
    files, parts = [folder / "traces" / "1.json"], folder / "new"
    parts.mkdir()
    old = FleetRow("", 1, "0.0.0", str(files[0]))
    for answer, said in ((7, "no row of this file"), (old, "a row of molprof 0.0.0")):
        (row,) = each_row(files, Reading(), Fleet(parts, Workers(answer)))  # type: ignore[arg-type]
        assert said in (row.problem or "")
    (row,) = each_row(files, Reading(), Fleet(parts))  # a retry after that
    assert (row.problem, row.figures["kernels"], len(list(parts.iterdir()))) == (None, 1, 1)


def test_an_address_of_no_workers() -> None:
    for address in ("127.0.0.1:1", "dask://here", "ray://here:1"):
        with pytest.raises(UsageError, match="names no workers"), connected(address, 1):
            pass


def test_dask_reads_whole_traces(folder: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
    ) as cluster:
        on = cluster.scheduler_address.replace("tcp://", "dask://")
        code, out, said = called([*ROWS[:-1], "new", "--on", on, "--format", "json"], folder)
    assert "3 of 4 traces read, 1 failed because" in said
    assert (code, [row["figures"].get("kernels") for row in msgspec.json.decode(out)]) == (3, [1, 2, 3, None])


def test_a_trace_that_hangs_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"it took over 0\.01 s"):
        call_alone(".", time.sleep, 600, 0.01)
