"""Pieces of a trace read by two processes: the same figures and the same errors as by one."""

from __future__ import annotations

import gzip
import json
import logging
import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_fuzz import FIRST, RUNS, mutated
from trace_rows import x

from molprof.analysis.reader import document, load, pieces, source
from molprof.analysis.reader.events import Wanted
from molprof.analysis.reader.load import survey_source
from molprof.analysis.reader.pieces import Pieces, SecondReader
from molprof.analysis.reader.source import open_source
from molprof.analysis.reader.survey import Survey
from molprof.common.errors import TraceError

CORPUS = os.environ.get("MOLPROF_CORPUS")
PIECE_BYTES = 4096
# Between events, inside texts, and deeper inside.
TRICKY = ('},{"ph"', '}, {"ph"', "]}", '\\"', "{[", '},\n  {\n    "ph"')


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Small pieces and a copy from the first event on; the sizes of the pieces that it took."""
    sizes: list[int] = []
    give = SecondReader.give

    def counted(self: SecondReader, text: memoryview, result: list[Any]) -> bool:
        taken = give(self, text, result)
        if taken:
            sizes.append(len(text))
        return taken

    monkeypatch.setattr(document, "DECODE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(source, "BLOCK_BYTES", 16 * PIECE_BYTES)
    monkeypatch.setattr(source, "LONG_BYTES", 0)
    monkeypatch.setattr(load, "can_copy", lambda: True)  # though the test runner has threads
    monkeypatch.setattr(SecondReader, "give", counted)
    return sizes


def read(path: Path, processes: int, wanted: Wanted | None = None, partial: bool = False) -> tuple[Any, ...]:
    """All that the pass gives, in a form that can be compared."""
    with open_source(path) as source:
        found_document, found = survey_source(
            source, wanted or Wanted(stacks=False, all_args=False), partial, processes
        )
    return (*comparable(found), found_document.keys, str(found_document.problem))


def comparable(found: Survey) -> tuple[Any, ...]:
    """Labels and tracks by what they are: their numbers depend on which process read what first."""
    labels, tracks = by_value(found.labels, found.label_of), by_value(found.track_ids, found.tracks)
    arrays = [found.starts_ns, found.durations_ns, found.lanes, found.correlations]
    names = {found.track_ids[track]: name for track, name in found.thread_names.items()}
    facts = (found.events_by_category, found.expected_slices, found.not_read, found.origin_ns, found.process_names)
    assert {label.category for label in labels[0]} == {label.category for label in found.labels}
    return (
        labels,
        tracks,
        [np.asarray(array, dtype=np.int64).tobytes() for array in arrays],
        names,
        facts,
        sorted(found.texts()),
    )


def by_value(values: Sequence[Any], chosen: np.ndarray) -> tuple[list[Any], bytes]:
    """The values that the events have, in an order of their own, and which of them each event has."""
    used = sorted({values[index] for index in np.unique(chosen).tolist()}, key=repr)
    numbers = {value: number for number, value in enumerate(used)}
    return used, np.array([numbers.get(value, -1) for value in values], dtype=np.int64)[chosen].tobytes()


def written(path: Path, events: list[dict[str, Any]], indent: int | None = None) -> Path:
    path.write_text(json.dumps({"traceEvents": events, "end": [TRICKY]}, indent=indent))
    return path


def ordinary(count: int) -> list[dict[str, Any]]:
    """Operators, calls with numbers, kernels and Python stacks."""
    kinds = ("cpu_op", "python_function", "cuda_runtime", "kernel")
    return [
        x(f"{kinds[i % 4]} {i % 7}", i, 0.5, cat=kinds[i % 4], tid=1 + i % 4, args={"correlation": i // 4, "stream": 7})
        for i in range(count)
    ]


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces")
@pytest.mark.parametrize(
    ("name", "all_args"),
    [("h100_qwen1.5_0.5b", True), ("mi300x_vllm_piecewise_graph", True), ("v100_resnet_ddp", False)],
)
def test_real_traces(name: str, all_args: bool, given: list[int]) -> None:
    path = Path(str(CORPUS), "traces", f"{name}.json.gz")
    wanted = Wanted(stacks=all_args, all_args=all_args)
    assert read(path, 2, wanted)[:-1] == read(path, 1, wanted)[:-1]
    assert len(given) > 50


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_texts_that_look_like_the_end_of_an_event(tmp_path: Path, given: list[int], indent: int | None) -> None:
    events = [
        x(f"{TRICKY[i % 6]}{i}", i, 1, args={"list": [{"ph": 1}, {"ph": [2, {}]}], "text": TRICKY[i % 6] * (i % 50)})
        for i in range(3000)
    ]
    path = written(tmp_path / "trace.json", events, indent)
    assert read(path, 2) == read(path, 1)
    assert given


def test_a_process_whose_pieces_are_none_too_often_is_given_up(
    tmp_path: Path, given: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []  # by the copy, each time that a piece is wrong
    forget = Pieces.forget
    monkeypatch.setattr(Pieces, "forget", lambda self: (taken.append(len(given)), forget(self))[1])
    # Nearly every place that looks like one between two events is deeper inside.
    events = [x(f"a{i}", i, 1, args={"list": [{"ph": 1}] * 400}) for i in range(200)]
    path = written(tmp_path / "trace.json", [x("first", 0, 1), x("second", 1, 1), *events])
    assert read(path, 2) == read(path, 1)
    assert len(taken) > pieces._PATIENCE
    assert taken[pieces._PATIENCE - 1] == len(given)


@pytest.mark.parametrize("wrong", ['{"ph": "X", "dur": 1}', '{"ph": "X", "ts": 1, "dur": -4}', "{]", '"event"', "\x00"])
def test_the_same_error_at_the_same_place(tmp_path: Path, given: list[int], wrong: str) -> None:
    path = tmp_path / "trace.json"
    texts = [json.dumps(event) for event in ordinary(4000)]
    texts[3000] = wrong
    path.write_text('{"traceEvents": [' + ", ".join(texts) + "]}")
    messages = []
    for processes in (1, 2):
        with pytest.raises(TraceError) as caught:
            read(path, processes)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert given


def outcome(path: Path, processes: int) -> Any:
    """What the pass gives, or that it is refused: of several faults either may be told."""
    try:
        return read(path, processes)
    except TraceError:
        return TraceError


@pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to damage")
def test_damaged_traces_read_alike(tmp_path: Path, given: list[int]) -> None:
    name = "mi300x_vllm_decode_graph.json.gz"
    whole = gzip.decompress(Path(str(CORPUS), "traces", name).read_bytes())
    path = tmp_path / "damaged.json"
    for run in range(FIRST, FIRST + RUNS):
        path.write_bytes(mutated(whole, random.Random(f"pieces {run}")))
        assert outcome(path, 2) == outcome(path, 1), run
    assert given


@pytest.mark.parametrize("partial", [False, True])
def test_a_file_that_ends_early(tmp_path: Path, given: list[int], partial: bool) -> None:
    path = written(tmp_path / "trace.json", ordinary(4000))
    path.write_bytes(path.read_bytes()[:-60_000])
    if partial:
        assert read(path, 2, partial=True) == read(path, 1, partial=True)
    else:
        with pytest.raises(TraceError, match="is truncated inside event"):
            read(path, 2)
    assert given


def test_a_second_process_that_dies_is_done_without(
    tmp_path: Path, given: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    give = SecondReader.give

    def killed(self: SecondReader, text: memoryview, result: list[Any]) -> bool:
        if len(given) == 5:
            os.kill(self._copy._pid, signal.SIGKILL)
        return give(self, text, result)

    monkeypatch.setattr(SecondReader, "give", killed)
    path = written(tmp_path / "trace.json", ordinary(4000))
    with caplog.at_level(logging.WARNING, "molprof"):
        assert read(path, 2) == read(path, 1)
    assert "the second reading process ended" in caplog.text
    assert 5 <= len(given) < 10


def test_one_processor_one_process(tmp_path: Path, given: list[int]) -> None:
    read(written(tmp_path / "trace.json", ordinary(4000)), 1)
    assert not given


def test_a_short_trace_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SecondReader", None)
    monkeypatch.setattr(load, "can_copy", lambda: True)
    read(written(tmp_path / "trace.json", ordinary(4000)), 2)
