"""Tools of `molprof mcp` return the data of --format json, and say what they leave out."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import bench_data
import pytest
from click.testing import CliRunner
from tiny_trace import document, write

from molprof.cli import cli

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="the package mcp is not installed")
CORPUS = os.environ.get("MOLPROF_CORPUS", "")
needs_traces = pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to read")


def answered(tool: str, **arguments: Any) -> Any:
    from molprof.commands.mcp_tools import answer

    return json.loads(answer(tool, arguments))


def shown(*words: str | Path) -> Any:
    done = CliRunner().invoke(cli, [*map(str, words), "--format", "json"])
    return json.loads(done.stdout)


def restored(value: Any, whole: Any, name: str, left_out: dict[str, int]) -> bool:
    """Whether the value is the beginning of the whole, and `left_out` names each list that is cut."""
    if isinstance(whole, dict):
        return value.keys() == whole.keys() and all(
            restored(value[key], whole[key], f"{name}.{key}".strip("."), left_out) for key in whole
        )
    if isinstance(whole, list):
        cut = len(value) < len(whole)
        return (not cut or name in left_out) and all(
            restored(one, other, name, left_out) for one, other in zip(value, whole, strict=False)
        )
    return isinstance(whole, str) or value == whole


@needs_traces
@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("path", {"trace": "traces/h100_qwen1.5_0.5b.json.gz", "changes": ["gpu=0.5x"]},
         ("report", "by", "path", "traces/h100_qwen1.5_0.5b.json.gz", "--what-if", "gpu=0.5x")),
        ("shape", {"trace": "pairs/h100_bert_small.json.gz", "peaks": ["memory=3"]},
         ("report", "by", "shape", "pairs/h100_bert_small.json.gz", "--peak", "memory=3")),
        ("memory", {"trace": "traces/h100_qwen1.5_0.5b.json.gz"},
         ("report", "by", "memory", "traces/h100_qwen1.5_0.5b.json.gz")),
    ],
)  # fmt: skip
def test_answers_are_the_json_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tool: str, arguments: dict[str, Any], words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(CORPUS)
    whole, found = shown(*words), answered(tool, **arguments, limit=3)
    notes, left_out = found.pop("notes"), found.pop("left_out")
    assert isinstance(notes, list)
    assert left_out
    assert restored(found, whole, "", left_out)
    assert len(json.dumps(found)) < 30_000


@needs_traces
def test_ranks_are_those_of_all_traces() -> None:
    traces = sorted(map(str, Path(CORPUS, "ranks").glob("*.json.gz")))
    found = answered("ranks", traces=traces, limit=50)
    assert len(found["ranks"]) + found["left_out"].get("ranks", 0) == len(traces)


def test_results_of_a_benchmark(tmp_path: Path) -> None:
    case = bench_data.run_of(batch_size=4)
    file = bench_data.write(tmp_path / "bench.jsonl", *bench_data.ran(case, (10, 11, 12)))
    found = answered("bench", file=str(file), limit=100)
    assert not found.pop("left_out")
    assert found.pop("notes") == []
    assert found == shown("bench", "show", file)


def test_the_server_has_the_tools_and_refuses_files_elsewhere(tmp_path: Path) -> None:
    from test_mcp import asked

    folder = tmp_path / "traces"
    folder.mkdir()
    write(folder / "a.json", document())
    bench_data.write(tmp_path / "secret.jsonl")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("path", {"trace": "a.json"}), ("ranks", {"traces": ["a.json"]}), ("bench", {"file": "../secret.jsonl"}),
        ("predict", {"trace": "a.json", "device": "nothing"}), ("memory", {"trace": "a.json"}),
        ("shape", {"trace": "none.json"}),
    ]  # fmt: skip
    path, *others = asked(folder, calls)
    assert isinstance(path, dict), path
    assert {"notes", "left_out"} <= path.keys()
    assert ["no file" in str(answer) for answer in others] == [False, True, False, False, True]
    assert "nothing" in others[2]
