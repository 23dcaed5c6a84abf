"""The reader on real traces: whole and exact."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pytest
from trace_rows import rows

from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor


def corpus() -> Path:
    folder = os.environ.get("MOLPROF_CORPUS")
    if not folder:
        pytest.skip("MOLPROF_CORPUS is not set: no real traces to read")
    return Path(folder)


def corpus_names() -> list[str]:
    folder = os.environ.get("MOLPROF_CORPUS")
    return sorted(path.name for path in Path(folder, "traces").glob("*.json.gz")) if folder else ["(corpus)"]


def oracle(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("oracle", folder / "oracle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", corpus_names())
def test_real_traces_are_whole_and_exact(name: str, engine: TraceProcessor) -> None:
    folder = corpus()
    path = folder / "traces" / name
    ns = oracle(folder).ns
    info = load_trace(path, engine)
    expected = json.loads((folder / "expected.json").read_text())[name]
    assert info.events_by_category == expected["trace"]["events_by_category"]
    assert (info.lost_events, info.complete, info.problem, info.not_read) == (0, True, None, {})
    assert info.bytes == path.stat().st_size

    # Every slice: name, category, exact start and duration, place, and where its launch is found.
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X"]
    wanted = Counter(
        (
            event["name"],
            event.get("cat"),
            ns(event["ts"]) - info.origin_ns,
            ns(event.get("dur", 0)),
            event["tid"] if isinstance(event["tid"], int) and event["tid"] > 0 else None,
            (event.get("args") or {}).get("correlation"),
        )
        for event in complete
    )
    seen = engine.query(
        """
        SELECT s.name, s.category, s.ts, s.dur,
            COALESCE(EXTRACT_ARG(s.arg_set_id, 'args.molprof_tid'), t.tid) AS tid,
            EXTRACT_ARG(s.arg_set_id, 'args.correlation') AS correlation
        FROM slice AS s JOIN thread_track AS tt ON tt.id = s.track_id JOIN thread AS t USING (utid)
        WHERE IFNULL(s.category, '') != 'cpu_instant_event'
        """
    )
    shown = Counter(
        (name, category, ts, dur, tid if 0 < tid < 2**31 else None, correlation)
        for name, category, ts, dur, tid, correlation in rows(seen)
    )
    assert shown == wanted
    kernels = engine.query("SELECT SUM(dur) AS ns, COUNT(*) AS n FROM slice WHERE category = 'kernel'")
    assert rows(kernels) == [(expected["counts"]["kernel_time_ns"], expected["counts"]["kernels"])]


@pytest.mark.parametrize("name", corpus_names())
def test_without_stacks_the_counts_stay_and_the_rest_is_the_same(name: str, engine: TraceProcessor) -> None:
    folder = corpus()
    info = load_trace(folder / "traces" / name, engine, stacks=False)
    expected = json.loads((folder / "expected.json").read_text())[name]["trace"]["events_by_category"]
    assert info.events_by_category == expected
    assert info.lost_events == 0
    assert info.stacks == ("python_function" not in expected)
    by_category = dict(
        rows(engine.query("SELECT category, COUNT(*) AS n FROM slice WHERE category IS NOT NULL GROUP BY 1"))
    )
    by_category.pop("cpu_instant_event", None)
    assert by_category == {category: n for category, n in expected.items() if category != "python_function"}


def test_lanes_of_real_traces_are_those_that_overlap(engine: TraceProcessor) -> None:
    info = load_trace(corpus() / "traces" / "b200_vllm_eager.json.gz", engine)
    lanes = engine.query(
        """
        SELECT s.category, COUNT(*) AS n, MIN(EXTRACT_ARG(s.arg_set_id, 'args.molprof_tid')) AS home
        FROM slice AS s JOIN thread_track AS tt ON tt.id = s.track_id JOIN thread AS t USING (utid)
        WHERE t.name GLOB '*(lane [0-9])' GROUP BY s.category ORDER BY s.category
        """
    )
    assert rows(lanes) == [
        ("cpu_op", 2, 6583), ("kernel", 38, 7), ("python_function", 1, 6583), ("user_annotation", 1, 6583),
    ]  # fmt: skip
    assert info.lanes == 42
