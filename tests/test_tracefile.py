"""The trace writer streams torch's file, and adds token tracks and manifest."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from molprof.common.errors import RunError, UsageError
from molprof.common.files import next_free
from molprof.common.manifest import KEY, Disagreement, SequenceRun, TemplateCounts, from_json
from molprof.profiler.recording.tracefile import (
    OutputFile,
    StepSpan,
    default_name,
    read_exported,
    token_events,
    write_trace,
)

RAW = """{
  "schemaVersion": 1,
  "traceEvents": [
  {
    "ph": "X", "cat": "user_annotation", "name": "molprof.step batch=0 step=20", "pid": 7, "tid": 7,
    "ts": 4315045366998.445, "dur": 590.285,
    "args": {}
  },
  {
    "ph": "X", "cat": "gpu_user_annotation", "name": "molprof.step batch=0 step=20", "pid": 0, "tid": 7,
    "ts": 4315045367998.445, "dur": 1.000
  },
  {
    "ph": "X",
    "cat": "user_annotation",
    "name": "molprof.step batch=0 step=21",
    "pid": 7,
    "tid": 7,
    "ts": 4315045367600.7,
    "dur": 70
    ,
    "args": {}
  }
  ],"traceName": "/tmp/a ]} \\" name", "with_flops": 1 }"""
TRACE = Path(__file__).parent.parent / "traces/cpu-qwen.json.gz"
MANIFEST = from_json(json.loads(gzip.decompress(TRACE.read_bytes()))["molprof"])
STEPS = {(0, 20): StepSpan(4315045366998445, 590285), (0, 21): StepSpan(4315045367600700, 70000)}


def molecule(sequence: int, batch: int, tokens: list[int], kinds: str, blocks: list[int]) -> SequenceRun:
    counts = TemplateCounts(3, 1, 1, [1])
    where = (sequence, batch, sequence)
    return SequenceRun(*where, "C", "[SMILES]C[/SMILES]", 3, tokens, kinds, blocks, "x", False, "cut", 0, 7, counts)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw.json"
    path.write_text(RAW)
    return path


def test_steps_are_read_in_ns_from_any_spacing_and_broken_files_are_refused(raw: Path) -> None:
    raw.write_text(RAW.replace('"schemaVersion": 1', '"x": "' + "y" * 5000 + '"'))
    assert read_exported(raw, OutputFile(raw)).steps == STEPS
    for text, message in (
        (RAW.replace("step=21", "step=20"), "step 20 of batch 0 twice"),
        (RAW[:-40], "that torch exported is not whole"),
        ("", r"is not whole \(0 bytes\)"),
    ):
        raw.write_text(text)
        with pytest.raises(RunError, match=message):
            read_exported(raw, OutputFile(raw))
    assert [path.name for path in raw.parent.iterdir()] == ["raw.json"]


def test_of_python_functions_those_of_modules_may_be_kept_alone(raw: Path) -> None:
    names = ("nn.Module: Linear_0", "torch/nn.py(3): f")
    more = "".join(f'{{"ph": "X", "cat": "python_function", "name": "{name}", "ts": 1, "dur": 1}},' for name in names)
    raw.write_text(RAW.replace('"traceEvents": [', f'"traceEvents": [{more}'))
    assert [len(read_exported(raw, OutputFile(raw), kept).events) for kept in (True, False)] == [5, 4]


def test_token_tracks() -> None:
    steps = {(1, 1): StepSpan(5_000, 1_500), (1, 2): StepSpan(7_001, 999)}
    runs = [molecule(0, 0, [4], "c", [-1]), molecule(1, 1, [7, 8], "fe", [0, -1])]
    assert list(token_events(runs, [["a"], ['"<', "</s>"]], steps)) == [
        '{"ph":"M","name":"process_name","pid":1073741824,"tid":0,"ts":5.000,"args":{"name":"molprof tokens"}}',
        '{"ph":"M","name":"process_sort_index","pid":1073741824,"tid":0,"ts":5.000,"args":{"sort_index":-1}}',
        '{"ph":"M","name":"thread_name","pid":1073741824,"tid":1,"ts":5.000,"args":{"name":"sequence 0: C"}}',
        '{"ph":"M","name":"thread_sort_index","pid":1073741824,"tid":1,"ts":5.000,"args":{"sort_index":0}}',
        '{"ph":"X","cat":"molprof.sequence","name":"sequence 0: C","pid":1073741824,"tid":1,'
        '"ts":5.000,"dur":0.000,'
        '"args":{"sequence":0,"batch":0,"row":0,"smiles":"C","tokens":1,"token_id":[4],"text":["a"],'
        '"kind":["copy"],"block":[-1],"block_free":[1]}}',
        '{"ph":"M","name":"thread_name","pid":1073741824,"tid":2,"ts":5.000,"args":{"name":"sequence 1: C"}}',
        '{"ph":"M","name":"thread_sort_index","pid":1073741824,"tid":2,"ts":5.000,"args":{"sort_index":1}}',
        '{"ph":"X","cat":"molprof.sequence","name":"sequence 1: C","pid":1073741824,"tid":2,'
        '"ts":5.000,"dur":3.000,'
        '"args":{"sequence":1,"batch":1,"row":1,"smiles":"C","tokens":2,"token_id":[7,8],'
        '"text":["\\"<","</s>"],"kind":["free","eos"],"block":[0,-1],"block_free":[1]}}',
        '{"ph":"X","cat":"molprof.token","name":"</s>","pid":1073741824,"tid":2,"ts":5.000,"dur":1.500,'
        '"args":{"sequence":1,"batch":1,"step":1,"position":1,"token_id":8,"kind":"eos","block":-1}}',
    ]


def test_arrays_that_only_some_runs_have() -> None:
    examined = Disagreement([1.0, 2.5e-09], [0, 3], "co", "01")
    run = replace(
        molecule(0, 0, [7, 8], "fe", [0, -1]), template=None, needed_per_block=[11, None], disagreement=examined
    )
    (event,) = (
        json.loads(text)
        for text in token_events([run], [["a", "b"]], {(0, 9): StepSpan(0, 1)})
        if '"args":{"seq' in text
    )
    assert {key: value for key, value in event["args"].items() if key not in ("token_id", "text", "kind", "block")} == {
        "sequence": 0,
        "batch": 0,
        "row": 0,
        "smiles": "C",
        "tokens": 2,
        "block_needed": [11, -1],
        "probability": [1.0, 2.5e-09],
        "rank": [0, 3],
        "choice": ["copy", "open"],
        "forbidden": [0, 1],
    }


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_the_whole_file(raw: Path, tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    manifest = replace(MANIFEST, molecules=[molecule(0, 0, [5] * 21, "f" * 21, [0] * 21)])
    events = token_events(manifest.molecules, [["x"] * 21], STEPS)
    write_trace(read_exported(raw, OutputFile(output)), OutputFile(output), events, {KEY: manifest.to_json()})
    packed = output.read_bytes()
    text = gzip.decompress(packed).decode() if name.endswith(".gz") else packed.decode()
    events_as_they_are = RAW[RAW.index('{\n    "ph"') : RAW.index('  ],"traceName"')].rstrip()
    assert f'"traceEvents": [\n  {events_as_they_are},\n  {{"ph":"M"' in text
    trace = json.loads(text)
    assert list(trace) == ["schemaVersion", "traceEvents", "traceName", "with_flops", "molprof"]
    assert trace["traceName"] == name
    assert from_json(trace["molprof"]).molecules == manifest.molecules
    added = trace["traceEvents"][3:]
    assert [event["name"] for event in added] == [
        *("process_name", "process_sort_index", "thread_name", "thread_sort_index"),
        *("sequence 0: C", "x"),
    ]
    assert '"ts":4315045366998.445,"dur":590.285,"args":{"sequence":0,"batch":0,"step":20' in text
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["raw.json", name])


def test_a_full_disk_leaves_nothing(raw: Path, tmp_path: Path) -> None:
    def full() -> Iterator[str]:
        yield "{}"
        raise OSError(28, "No space left on device")

    output = OutputFile(tmp_path / "out.json.gz")
    recorded = read_exported(raw, output)
    with pytest.raises(RunError, match=r"cannot write .*/out\.json\.gz: No space left on device"):
        write_trace(recorded, output, full(), {KEY: MANIFEST.to_json()})
    assert [path.name for path in tmp_path.iterdir()] == ["raw.json"]


@pytest.mark.parametrize(
    ("model", "processor", "name"),
    [
        ("qwen", None, "qwen.json.gz"),
        ("qwen", "generic", "qwen-generic.json.gz"),
        ("./checkpoints/my model/", "my_rules:make", "my-model-my_rules-make.json.gz"),
        ("publisher/Model-0.5B", "package.rules:make", "Model-0.5B-package.rules-make.json.gz"),
    ],
)
def test_the_default_name_tells_what_is_run(model: str, processor: str | None, name: str) -> None:
    assert default_name(model, processor) == name


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    asked = tmp_path / "qwen.json.gz"
    assert next_free(asked) == asked
    for name in ("qwen.json.gz", "qwen-2.json.gz"):
        (tmp_path / name).touch()
    assert next_free(asked) == tmp_path / "qwen-3.json.gz"


def test_a_trace_has_a_known_ending(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.txt ends in none of \.json, \.json\.gz"):
        OutputFile(tmp_path / "x.txt").check()
