"""`molprof export`: any trace processor finds molprof's facts in the file, and molprof reads it as the original."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import native_trace
import pytest
import tiny_trace
from certificate_data import CORPUS, needs_traces
from conftest import Cli
from decoding_trace import decoding, launched
from tiny_trace import slice_, work
from trace_rows import rows, x

from molprof import api, queries
from molprof.analysis.export import export
from molprof.analysis.facts import statements
from molprof.analysis.facts.tables import TABLES
from molprof.analysis.figures.model import Report
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.analysis.trim import Wish, trim
from molprof.common.errors import QueryError
from molprof.queries import FACT_CATEGORY, FACTS, PACKAGE
from molprof.queries.catalog import catalog

TESTS = Path(__file__).parent
FOLDER = Path(next(iter(queries.__path__)))
MODULE = statements.module({name: table.columns for name, table in TABLES.items()})
MOVED = ("JOINID(slice.id)", "JOINID(track.id)")
# Of all but what was added.
TRACKS = """
SELECT id FROM track
WHERE id NOT IN (
  SELECT track.id FROM thread_track AS track JOIN thread USING (utid) JOIN process USING (upid)
  WHERE process.name = 'molprof facts'
)
ORDER BY id
"""
Ids = dict[str, dict[Any, Any]]
OWN = f"category IS NULL OR category != '{FACT_CATEGORY}'"


def shell(path: Path) -> TraceProcessor:
    """What `trace_processor_shell --add-sql-package queries@molprof FILE` holds."""
    engine = open_engine()
    engine.feed(path.read_bytes())
    engine.finish()
    engine.register_package(PACKAGE, {f"{PACKAGE}.{file.stem}": file.read_text() for file in FOLDER.glob("*.sql")})
    return engine


def run() -> dict[str, Any]:
    """Steps whose idle time has several causes, and slices that begin with a gap: longer, shorter and equal ones."""

    def per_step(start: int) -> list[dict[str, Any]]:
        found = [slice_("cpu_op", "aten::mm", start + 10, 50), slice_("python_function", "f", start + 5, 90)]
        for place in range(4):
            found += launched("kernel", f"gemm{place}", start + 20 + 50 * place, start + 30 + 100 * place, 20)
            gap = start + 50 + 100 * place
            found += [slice_("cpu_op", f"op{dur}", gap, dur, tid=200 + dur) for dur in (200, 80, 30)]
        return found

    return decoding(per_step, steps=3)


def overlapping() -> list[dict[str, Any]]:
    """On one stream and one thread, in processes whose number is a text, with times that no float64 of us holds."""
    begin = 1_700_000_000_000_000
    return [
        *(x(f"k{n}", begin + 10 * n + 0.25, 15, pid="GPU", tid=7, cat="kernel",
            args={"device": 0, "stream": 7, "correlation": n}) for n in range(5)),
        *(x("cudaLaunchKernel", begin + 3 * n, 5, pid=50, tid=50, cat="cuda_runtime", args={"correlation": n})
          for n in range(5)),
        {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 50, "tid": 50, "ts": begin + 4,
         "args": {"Bytes": 512, "Device Type": 1, "Device Id": 0, "Addr": 9, "Total Allocated": 512}},
    ]  # fmt: skip


def written(tmp_path: Path, content: Any) -> Path:
    return tiny_trace.write(tmp_path / "trace.json", {"traceEvents": content} if isinstance(content, list) else content)


def given(tmp_path: Path, name: str) -> Path:
    made = {"tiny": tiny_trace.document, "run": run, "overlapping": overlapping}
    if name == "native":
        path = tmp_path / "run.pftrace"
        path.write_bytes(native_trace.track_events(native_trace.named(tiny_trace.document())))
        return path
    return written(tmp_path, made[name]()) if name in made else TESTS / name


MADE = ("tiny", "run", "overlapping", "native", "goldens/given/tiny.json", "goldens/given/gpu-graph.json.gz")
# With stacks and counters, with graphs, with code that torch.compile made.
REAL = ("b200_vllm_eager", "mi300x_vllm_decode_graph", "torch_compile_triton")
PATHS = [*MADE, *(pytest.param(f"{CORPUS}/traces/{name}.json.gz", marks=needs_traces, id=name) for name in REAL)]


@pytest.mark.parametrize("name", PATHS)
def test_tables_of_another_trace_processor_are_those_of_molprof(tmp_path: Path, name: str) -> None:
    path = given(tmp_path, name)
    outcome = export(path, tmp_path / "out.json")
    with open_trace(path) as (ours, _), shell(tmp_path / "out.json") as other:
        other.query(f"INCLUDE PERFETTO MODULE {FACTS}")
        # By its new id, the old one of each slice and track.
        slices, tracks = (
            other.query(sql)["id"].tolist() for sql in (f"SELECT id FROM slice WHERE {OWN} ORDER BY id", TRACKS)
        )
        assert len(slices) == outcome.slices
        old: Ids = {
            "JOINID(slice.id)": {None: None, **{new: number for number, new in enumerate(slices)}},
            "JOINID(track.id)": dict(
                zip(tracks, ours.query("SELECT id FROM track ORDER BY id")["id"].tolist(), strict=True)
            ),
        }
        for fact, table in TABLES.items():
            columns = {column.split()[0]: column.split()[1] for column in table.columns}
            assert sorted(shown(other, f"_molprof_fact_{fact}", columns, old), key=repr) == sorted(
                shown(ours, f"_molprof_fact_{fact}", columns, None), key=repr
            ), fact
        for module in catalog().values():
            for entry in module.entries:
                columns = {column.name: column.type for column in entry.columns}
                columns = {column: kind for column, kind in columns.items() if not kind.startswith("ARGSETID")}
                if not entry.arguments:
                    for engine in (ours, other):
                        engine.query(f"INCLUDE PERFETTO MODULE {module.key}")
                    assert shown(other, entry.name, columns, old) == shown(ours, entry.name, columns, None), entry.name


def shown(engine: TraceProcessor, table: str, columns: dict[str, str], old: Ids | None) -> list[Any]:
    """The rows of a table with ids of slices and tracks as the original trace has them, and without other ids."""
    kept = [name for name, kind in columns.items() if kind in MOVED or not kind.startswith("JOINID")]
    found = engine.query(f"SELECT {', '.join(kept)} FROM {table}")
    values = [
        [old[columns[name]][number] for number in column.tolist()] if old and columns[name] in old else column.tolist()
        for name, column in found.items()
    ]
    return list(zip(*values, strict=True))


def numbers(report: Report) -> dict[str, Any]:
    """A report without what differs between two files of one run."""
    found: dict[str, Any] = json.loads(json.dumps(report.to_json()))
    for name in ("path", "bytes"):
        del found["trace"][name]
    return found


@pytest.mark.parametrize("name", PATHS)
def test_molprof_reads_the_exported_trace_as_the_original(tmp_path: Path, name: str) -> None:
    path = given(tmp_path, name)
    export(path, tmp_path / "out.json.gz")
    whole, again = (api.load(item) for item in (path, tmp_path / "out.json.gz"))
    assert numbers(again.report) == numbers(whole.report)
    assert (again.info.origin_ns, again.info.lanes, again.info.lost_events) == (
        whole.info.origin_ns, whole.info.lanes, 0
    )  # fmt: skip
    assert again.info.keys == whole.info.keys
    # All that is recorded, with all args: also when it is exported again.
    export(tmp_path / "out.json.gz", tmp_path / "again.json")
    everything = "SELECT id, ts, dur, depth, category, name, EXTRACT_ARG(arg_set_id, 'args.Bytes') AS bytes FROM slice"
    with open_trace(path) as (first, _), open_trace(tmp_path / "again.json") as (last, _):
        assert rows(last.query(everything)) == rows(first.query(everything)) != []


def test_idle_gaps_are_slices_on_a_track_per_device_named_by_cause(tmp_path: Path) -> None:
    events = [
        work("kernel", "a", 0, 10, 1), work("kernel", "b", 30, 10, 2),
        slice_("kernel", "c", 5, 10, 1, 7, device=1, stream=7, correlation=3),
        *(slice_("cuda_runtime", "cudaLaunchKernel", ts, 2, correlation=n) for n, ts in enumerate((-5, 25, 1), 1)),
    ]  # fmt: skip
    export(written(tmp_path, events), tmp_path / "out.json")
    with shell(tmp_path / "out.json") as engine:
        found = engine.query(
            "SELECT process.name AS process, thread.name AS track, slice.ts, dur, slice.name FROM slice"
            " JOIN thread_track ON thread_track.id = track_id JOIN thread USING (utid) JOIN process USING (upid)"
            f" WHERE category = '{FACT_CATEGORY}' AND dur > 0 ORDER BY track, slice.ts"
        )
        tracks = rows(found)
        everything = rows(engine.query("SELECT name, value FROM stats WHERE severity != 'info' AND value > 0"))
    assert tracks == [
        ("molprof facts", "GPU 0 idle", 0, 5_000, "launch under way"),
        ("molprof facts", "GPU 0 idle", 15_000, 20_000, "CPU outside operators"),
        ("molprof facts", "GPU 1 idle", 0, 10_000, "CPU outside operators"),
        ("molprof facts", "GPU 1 idle", 20_000, 25_000, "CPU outside operators"),
    ]
    assert everything == []


def test_the_module_is_that_of_the_tables() -> None:
    assert (FOLDER / "facts.sql").read_text(encoding="utf-8") == MODULE, "python tests/test_export.py writes it"


def test_a_trace_without_facts_has_no_empty_tables(tmp_path: Path) -> None:
    with (
        shell(written(tmp_path, tiny_trace.document())) as engine,
        pytest.raises(QueryError, match="this trace has no facts: write one that has them with molprof export"),
    ):
        engine.query(f"INCLUDE PERFETTO MODULE {FACTS}")


def test_sql_for_an_exported_trace_runs_in_molprof(tmp_path: Path) -> None:
    sql = (
        f"INCLUDE PERFETTO MODULE {FACTS}; INCLUDE PERFETTO MODULE molprof.devices; SELECT busy_ns FROM molprof_device"
    )
    path = written(tmp_path, tiny_trace.document())
    export(path, tmp_path / "out.json")
    ours = [api.load(item).sql(sql).rows() for item in (path, tmp_path / "out.json")]
    with shell(tmp_path / "out.json") as engine:
        assert [rows(engine.query(sql))] * 2 == ours


def test_trimming_leaves_out_facts_of_the_whole_trace(tmp_path: Path) -> None:
    path = written(tmp_path, run())
    export(path, tmp_path / "out.json")
    outcomes = [
        trim(item, tmp_path / f"small-{item.name}", Wish(steps=(2, 2))) for item in (path, tmp_path / "out.json")
    ]
    assert outcomes[0] == outcomes[1]
    assert FACT_CATEGORY not in (tmp_path / "small-out.json").read_text()


def test_events_with_a_separate_end_leave_gaps_as_rows_alone(tmp_path: Path) -> None:
    place = {"cat": "other", "name": "open", "pid": 100, "tid": 300}
    document = run()
    document["traceEvents"] += [{**place, "ph": "B", "ts": 1050}, {**place, "ph": "E", "ts": 1060}]
    outcome = export(written(tmp_path, document), tmp_path / "out.json")
    assert "idle gaps are rows of a table alone" in outcome.notes[0]
    with shell(tmp_path / "out.json") as engine:
        assert rows(engine.query(f"SELECT COUNT() FROM slice WHERE dur > 0 AND category = '{FACT_CATEGORY}'")) == [(0,)]


def test_the_command_writes_whole_files_and_replaces_none(molprof: Cli, tmp_path: Path) -> None:
    path = written(tmp_path, tiny_trace.document())
    result = molprof("export", str(path), "-o", "out.json.gz")
    assert (result.returncode, result.stdout) == (0, "")
    before = (tmp_path / "out.json.gz").read_bytes()
    result = molprof("export", str(path), "-o", "out.json.gz")
    assert result.returncode == 2
    assert "--force" in result.stderr
    path.write_text("{")
    assert molprof("export", str(path), "-o", "out.json.gz", "--force").returncode == 3
    assert (tmp_path / "out.json.gz").read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["out.json.gz", "trace.json"]


if __name__ == "__main__":
    (FOLDER / "facts.sql").write_text(MODULE, encoding="utf-8")
