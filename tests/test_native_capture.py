"""Captures to `.pftrace`, with an exporter that writes Perfetto's own format: the same run as in Chrome JSON."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import native_trace
import pytest
import tiny_trace
import torch
from captures import captured, settings
from test_manifest import MANIFEST
from test_native import shown
from trace_rows import rows

from molprof import api
from molprof.analysis.reader.open import open_trace
from molprof.analysis.trace_processor import open_engine
from molprof.common.errors import ProcessorError, RunError, UsageError
from molprof.common.manifest import KEY
from molprof.profiler.capture import run as run_module
from molprof.profiler.capture.capture import capture
from molprof.profiler.capture.native import json_blocks
from molprof.profiler.capture.tracefile import (
    OutputFile,
    StepSpan,
    is_incomplete,
    read_steps,
    token_events,
    write_trace,
)

CORPUS = os.environ.get("MOLPROF_CORPUS")
_ADDED = ("molprof.sequence", "molprof.token")
_json_export = torch.profiler.profile.export_chrome_trace


@contextmanager
def native_torch(kept: Path) -> Iterator[None]:
    """Lets torch export Perfetto's own format; the same events are in Chrome JSON at `kept`."""

    def export(profiler: torch.profiler.profile, path: str) -> None:
        _json_export(profiler, str(kept))
        events = [event for event in json.loads(kept.read_text())["traceEvents"] if isinstance(event["pid"], int)]
        kept.write_text(json.dumps({"traceEvents": events}))
        Path(path).write_bytes(native_trace.Native({"traceEvents": events}).data())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.profiler.profile, "export_chrome_trace", export)
        yield


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One run as Chrome JSON, and as its capture in Perfetto's own format."""
    folder, kept = tmp_path_factory.mktemp("native"), tmp_path_factory.mktemp("json") / "raw.json"
    paths = kept.with_name("run.json.gz"), folder / "run.pftrace.gz"

    def write_both(raw: Path, output: OutputFile, events: Iterable[str], key: str, value: dict[str, Any]) -> Path:
        texts = list(events)
        write_trace(kept, OutputFile(paths[0]), texts, key, value)
        assert read_steps(raw) == read_steps(kept)
        return write_trace(raw, output, texts, key, value)

    with native_torch(kept), pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "write_trace", write_both)
        captured(paths[1], settings(processor="generic", disagreement=True, repeats=1, max_new_tokens=40))
    assert sorted(path.name for path in folder.iterdir()) == ["in.smi", "run.pftrace.gz"]
    return paths


def test_the_report_is_that_of_the_run_in_json(both: tuple[Path, Path]) -> None:
    expected, report = map(api.report, both)
    assert report.run is not None
    assert report.run.generated_tokens > 0
    assert shown(report) == shown(expected)


def test_every_slice_and_arg_is_that_of_the_run_in_json(both: tuple[Path, Path]) -> None:
    sql = """SELECT s.ts, s.dur, s.category, s.name, p.pid, p.name AS process, t.tid, t.name AS thread,
        a.flat_key, a.key, a.display_value
        FROM slice AS s JOIN thread_track AS k ON k.id = s.track_id JOIN thread AS t USING (utid)
        JOIN process AS p USING (upid) LEFT JOIN args AS a USING (arg_set_id)"""
    found = []
    for path in both:
        with open_trace(path) as (engine, _):
            found.append(sorted(rows(engine.query(sql)), key=repr))
    assert {"molprof.sequence", "molprof.token", "cpu_op"} <= {row[2] for row in found[0]}
    assert found[0] == found[1]


def test_drift_is_that_of_the_run_in_json(both: tuple[Path, Path]) -> None:
    found = [rows(api.query([path], "drift").frame.columns) for path in both]
    assert found[0]
    assert found[0] == found[1]


def test_the_trace_processor_opens_the_file_as_it_is(both: tuple[Path, Path]) -> None:
    with open_engine() as engine:
        engine.feed(gzip.decompress(both[1].read_bytes()))
        engine.finish()
        tokens = engine.query("SELECT name FROM slice WHERE category = 'molprof.token'")["name"].tolist()
        labels = engine.query("SELECT name FROM process WHERE name IS NOT NULL ORDER BY name")["name"].tolist()
    assert len(tokens) > 10
    assert labels == ["molprof tokens", "python"]


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real native traces")
@pytest.mark.parametrize("name", ["eager", "monitor", "cuda_graph"])
def test_what_is_appended_changes_no_figure_of_a_real_file(tmp_path: Path, name: str) -> None:
    raw = Path(str(CORPUS), "native", f"{name}.pftrace")
    start = min(int(ts) for block in json_blocks(raw) for ts in re.findall(rb'"ts":(\d+)', block)) * 1000
    events = list(token_events(MANIFEST.molecules[:1], [["a", "b"]], {(0, 1): StepSpan(start, 5_000_001)}))
    path = write_trace(raw, OutputFile(tmp_path / raw.name), events, KEY, MANIFEST.to_json())
    before, report = api.report(raw), api.report(path)
    assert report.run is not None
    added = {category: sum(f'"cat":"{category}"' in text for text in events) for category in _ADDED}
    assert report.trace.events_by_category == {**before.trace.events_by_category, **added}
    assert (report.counts, report.devices) == (before.counts, before.devices)


def raising(profiler: torch.profiler.profile, path: str) -> None:
    Path(path).write_bytes(b"\x0a\x05ab")
    raise RuntimeError("no room")


def cutting(profiler: torch.profiler.profile, path: str) -> None:
    """As a writer that is stopped; what is left begins like a trace."""
    events = [tiny_trace.slice_("cpu_op", f"op{number}", 5 * number, 1, 99, 99) for number in range(9)]
    Path(path).write_bytes(native_trace.Native({"traceEvents": events}).data()[:-5])


def interrupted(profiler: torch.profiler.profile, path: str) -> None:
    cutting(profiler, path)
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("export", "error", "message"),
    [
        (raising, RunError, "torch could not export its trace: no room"),
        (cutting, RunError, r"the trace that torch exported is truncated inside a packet \(byte \d+ of the trace, .*"),
        (interrupted, KeyboardInterrupt, ""),
    ],
)
def test_an_export_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: Any, error: type[BaseException], message: str
) -> None:
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export)
    with pytest.raises(error) as caught:
        captured(tmp_path / "out.pftrace", settings(repeats=1, warmup=0, max_new_tokens=3))
    assert re.fullmatch(message, str(caught.value))
    assert [path.name for path in tmp_path.iterdir()] == ["in.smi"]


@pytest.mark.parametrize("ending", ["pftrace", "pftrace.gz"])
def test_the_steps_before_a_processor_failed_are_kept(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    asked = settings(processor="users:Late", window=(2, 9), repeats=1, count=2)
    with native_torch(tmp_path / "raw.json"), pytest.raises(ProcessorError, match="no more ideas"):
        captured(folder / f"out.{ending}", asked)
    kept = folder / f"out.incomplete.{ending}"
    assert sorted(path.name for path in folder.iterdir()) == ["in.smi", kept.name]
    assert is_incomplete(kept)
    report = api.report(kept)
    assert report.trace.problem is not None
    assert "its capture failed: the processor 'late' raised ValueError" in report.trace.problem
    kept.write_bytes(b"a text of another's making: molprof_incomplete")
    assert not is_incomplete(kept)


def test_modules_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--modules cannot write .*out\.pftrace"):
        capture(settings(modules=True), OutputFile(tmp_path / "out.pftrace"))
