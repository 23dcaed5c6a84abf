"""PyTorch's traces in Perfetto's own format: the figures of the same run in Chrome JSON, and of real files."""

from __future__ import annotations

import copy
import gzip
import json
import os
from pathlib import Path
from typing import Any

import native_trace
import pytest
import tiny_trace
from trace_rows import SLICES, rows

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.figures.model import Report
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trim import Wish, trim
from molprof.common.errors import TraceError

CORPUS = os.environ.get("MOLPROF_CORPUS")


def both(tmp_path: Path, document: dict[str, Any]) -> tuple[Path, Path]:
    """The document in both forms."""
    return tiny_trace.write(tmp_path / "run.json", document), native_trace.write(tmp_path / "run.pftrace", document)


def shown(report: Report) -> dict[str, Any]:
    """A report without what differs between two files of one run."""
    result = copy.deepcopy(report.to_json())
    for name in ("path", "bytes"):
        del result["trace"][name]
    return result


def document() -> dict[str, Any]:
    """The tiny run, and what a GPU records beside: annotations, overlap on a stream, two devices."""
    result = tiny_trace.document()
    result["traceEvents"] += [
        tiny_trace.slice_("gpu_user_annotation", "molprof.forward batch=0 step=1", 1030, 50, tiny_trace.GPU, 7),
        tiny_trace.slice_("overhead", "Activity Buffer Request", 990, 4, 77, 77),
        tiny_trace.work("kernel", "overlaps the mystery", 1178.5, 1.25, 99),
        tiny_trace.slice_(
            "kernel", "elsewhere", 1100.001, 7.002, 1, 9, device=1, stream=9, correlation=98, grid=[1, 2]
        ),
    ]
    return native_trace.named(result)


@pytest.mark.parametrize("stacks", [False, True])
def test_one_run_in_both_forms_has_equal_reports(tmp_path: Path, stacks: bool) -> None:
    json_path, native_path = both(tmp_path, document())
    expected = api.report(json_path, stacks=stacks)
    report = api.report(native_path, stacks=stacks)
    assert expected.trace.lanes == 1
    assert expected.run is not None
    assert expected.run.junk_tokens == 1
    assert shown(report) == shown(expected)
    assert report.findings == expected.findings
    assert report.tables == expected.tables


def test_the_slices_of_both_forms_are_equal(tmp_path: Path) -> None:
    slices = []
    for path in both(tmp_path, document()):
        with open_trace(path) as (engine, info):
            assert (info.lost_events, info.lanes, info.complete) == (0, 1, True)
            # The numbers of lanes are made up.
            slices.append(sorted((row[:4] + row[5:] for row in rows(engine.query(SLICES))), key=repr))
            assert engine.query("SELECT COUNT() AS n FROM flow")["n"].tolist() == [0 if path.suffix == ".json" else 7]
    assert slices[0] == slices[1]


def test_both_forms_compare_as_equal(tmp_path: Path) -> None:
    reports = [api.report(path) for path in both(tmp_path, document())]
    (difference,) = compare(reports).differences
    assert difference is not None
    assert (difference.wall_ns, difference.residual_ns, set(difference.parts.values())) == (0, 0, {0})


def test_queries_give_the_same_rows(tmp_path: Path) -> None:
    found = [api.query([path], "launches") for path in both(tmp_path, document())]
    assert rows(found[0].frame.columns) == rows(found[1].frame.columns)


def test_args_are_those_of_chrome_json(tmp_path: Path) -> None:
    args = {
        "device": 0, "stream": 7, "correlation": 5, "graph id": 2, "graph node id": 8589934592, "grid": [2, 1, 1],
        "annotation": '[{"name": "embedding"}]', "blocks per SM": 1.5, "odd": {"a": [1, "x"]}, "flag": True,
    }  # fmt: skip
    event = tiny_trace.slice_("kernel", "k", 5, 1, 0, 7, **args)
    found = []
    for path in both(tmp_path, {"traceEvents": [event]}):
        with open_trace(path) as (engine, _):
            sql = "SELECT flat_key, COALESCE(string_value, int_value, real_value) FROM args WHERE flat_key LIKE 'a%'"
            found.append(sorted(rows(engine.query(sql)), key=repr))
    assert found[0] == found[1]
    assert ("args.graph node id", 8589934592) in found[1]
    assert ("args.annotation", '[{"name": "embedding"}]') in found[1]


def test_a_report_reads_the_same_args_of_both_forms(tmp_path: Path) -> None:
    """What the engine gets where not all args are wanted."""
    events = [
        tiny_trace.slice_("cpu_op", "aten::mm", 1, 9, 99, 99, **{"External id": 4, "Input Dims": [[2, 2]]}),
        tiny_trace.slice_("user_annotation", "nccl:all_reduce", 11, 9, 99, 99, **{"Input Dims": [[2048]], "Seq": 3}),
        tiny_trace.slice_("molprof.token", "<", 21, 9, 99, 98, sequence=0, kind="free", grid=5),
        tiny_trace.work("kernel", "k", 31, 1, 5, grid=[2], **{"graph id": 3}),
    ]
    found = []
    for path in both(tmp_path, native_trace.named({"traceEvents": events})):
        with open_trace(path, all_args=False) as (engine, _):
            sql = "SELECT s.name, flat_key, key, display_value FROM slice AS s LEFT JOIN args USING (arg_set_id)"
            found.append(sorted(rows(engine.query(sql)), key=repr))
    assert found[0] == found[1]
    assert ("aten::mm", None, None, None) in found[1]
    assert {row[1] for row in found[1] if row[0] == "<"} == {"args.sequence", "args.kind", "args.grid"}


def test_counters_keep_names_owners_and_values(tmp_path: Path) -> None:
    samples = [
        {"ph": "C", "name": "Power (W)", "pid": "GPU 0 Counters", "ts": time, "args": {"": watts}}
        for time, watts in ((1.5, 260.25), (2.5, 300.0))
    ]
    found = []
    for path in both(tmp_path, {"traceEvents": [tiny_trace.work("kernel", "k", 1, 2, 1), *samples]}):
        with open_trace(path) as (engine, _):
            sql = """SELECT ts, value, t.name AS name, p.name AS process FROM counter AS c
                JOIN process_counter_track AS t ON t.id = c.track_id JOIN process AS p USING (upid) ORDER BY ts"""
            found.append(rows(engine.query(sql)))
    assert found[0] == found[1] == [
        (500, 260.25, "Power (W) ", "GPU 0 Counters"), (1500, 300.0, "Power (W) ", "GPU 0 Counters"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["other.json", "trace", "run.pftrace.gz"])
def test_a_file_is_recognized_by_its_content(tmp_path: Path, name: str) -> None:
    data = native_trace.Native(document()).data()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert api.report(path).counts.kernels == 8


def two_runs(shared: str) -> dict[str, Any]:
    """A run in process 0, and one in process 1 of which `shared` has the same correlation number."""
    events = []
    for run in (0, 1):
        numbers = {what: 5 if shared == what else 6 + run for what in ("calls", "GPU work")}
        call = {"correlation": numbers["calls"]}
        work = {"device": 0, "stream": 7, "correlation": numbers["GPU work"]}
        events.append(tiny_trace.slice_("cuda_runtime", "cudaLaunchKernel", 1, 1, run, 40 + run, **call))
        events.append(tiny_trace.slice_("kernel", "k", 3 + run, 1, run, 7, **work))
    return {"traceEvents": events}


@pytest.mark.parametrize("shared", ["calls", "GPU work"])
def test_two_runs_in_one_file_are_refused(tmp_path: Path, shared: str) -> None:
    path = native_trace.write(tmp_path / "runs.pftrace", two_runs(shared))
    message = f"{path} holds several runs, .*: {shared} of process 0 and process 1 have the same correlation number, 5"
    with pytest.raises(TraceError, match=message) as refused:
        api.report(path)
    assert "into a file of its own" in str(refused.value.hint)


def test_two_runs_without_a_common_number_stay_apart(tmp_path: Path) -> None:
    path = native_trace.write(tmp_path / "runs.pftrace", two_runs("nothing"))
    counts = api.report(path).counts
    assert (counts.kernels, counts.kernels_without_call, counts.launches_without_gpu_work) == (2, 0, 0)


def test_one_graph_may_run_on_several_devices(tmp_path: Path) -> None:
    events = [tiny_trace.slice_("cuda_runtime", "cudaGraphLaunch", 1, 1, 100, 100, correlation=5)]
    events += [tiny_trace.slice_("kernel", "k", 3, 1, gpu, 7, device=gpu, stream=7, correlation=5) for gpu in (0, 1)]
    counts = api.report(native_trace.write(tmp_path / "graph.pftrace", {"traceEvents": events})).counts
    assert (counts.kernels, counts.graph_launches, counts.kernels_without_call) == (2, 1, 0)


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real native traces")
def test_real_traces_have_exactly_the_expected_figures() -> None:
    folder = Path(str(CORPUS), "native")
    expected = json.loads((folder / "expected.json").read_text())
    assert len(expected) == 3
    for name, figures in expected.items():
        report = api.report(folder / name).to_json()
        assert {key: report["counts"][key] for key in figures["counts"]} == figures["counts"], name
        assert report["devices"] == figures["devices"], name
        assert report["trace"]["events_by_category"] == figures["trace"]["events_by_category"], name
        assert report["trace"]["lost_events"] == 0, name


def test_a_trimmed_native_trace_is_the_trimmed_run(tmp_path: Path) -> None:
    wish = Wish(steps=(2, 2))
    small = []
    for path in both(tmp_path, document()):
        output = tmp_path / f"small-{path.suffix[1:]}.json"
        outcome = trim(path, output, wish)
        assert (outcome.before, outcome.unplaced) == (38, 0)
        small.append((outcome.after, api.report(output)))
    (count, expected), (other_count, report) = small
    assert count == other_count
    assert report.counts.kernels == 5
    assert report.run is not None
    trimmed = [shown(item) for item in (report, expected)]
    for item in trimmed:
        del item["trace"]["trimmed"]  # names the file
    assert trimmed[0] == trimmed[1]
