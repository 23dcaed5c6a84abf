"""A trace that cannot be read is told, and stops no other: of the ranks of a job, of folders to compare."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import Cli
from rank_traces import events, write_rank

from molprof import api
from molprof.common.errors import TraceError

TRACES = Path(__file__).resolve().parent.parent / "traces"


def test_a_damaged_trace_of_a_folder_is_left_out_and_told(tmp_path: Path, molprof: Cli) -> None:
    for name in ("cpu-llama", "cpu-llama-jump"):
        shutil.copy(TRACES / f"{name}.json.gz", tmp_path)
    cut = (TRACES / "cpu-llama.json.gz").read_bytes()[:50_000]
    (tmp_path / "cut.json.gz").write_bytes(cut)
    result = molprof("compare", ".", "--format", "json")
    assert result.returncode == 3
    assert '"cpu-llama-jump' in result.stdout
    assert "2 of 3 traces read, 1 failed because cut.json.gz: gzip data is truncated at byte 50000" in result.stderr
    named = molprof("compare", *sorted(path.name for path in tmp_path.iterdir()))
    assert (named.returncode, named.stdout) == (3, "")


def test_a_file_that_fails_stops_no_other(tmp_path: Path, molprof: Cli) -> None:
    for rank in range(4):
        write_rank(tmp_path / f"{rank}.json", rank, events(), world_size=4)
    damaged = tmp_path / "2.json"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    (tmp_path / "parts").mkdir()
    result = molprof("ranks", *(f"{rank}.json" for rank in range(4)), "--parts", "parts", "--format", "json")
    assert result.returncode == 3
    job = json.loads(result.stdout)
    assert [rank["rank"] for rank in job["ranks"]] == [0, 1, 3]
    assert [item["path"] for item in job["unread"]] == ["2.json"]
    assert job["remarks"][0].startswith("3 of 4 files read, 1 failed because 2.json")
    assert len(list((tmp_path / "parts").iterdir())) == 3
    with pytest.raises(TraceError, match=r"2\.json"):
        api.ranks([damaged])
    parquet = pytest.importorskip("pyarrow.parquet")
    assert molprof("ranks", "parts", "-o", "ranks.parquet").returncode == 0
    rows = parquet.read_table(tmp_path / "ranks.parquet").to_pylist()
    assert [row["rank"] for row in rows] == [0, 1, 3] * (len(rows) // 3)
    assert rows[0]["wall_ns"] > 0
