"""vLLM as an engine: what it wrote and when, in the same trace as any other engine's."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from captures import of

from molprof import api
from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.capture.capture import capture
from molprof.profiler.models.load import export
from molprof.profiler.recording.tracefile import OutputFile

FOLDER = os.environ.get("MOLPROF_VLLM")
LINES = [
    {"prompt": "[SMILES]CO[/SMILES]", "choices": ["no", "yes"]},
    {"prompt": "[SMILES]CCO[/SMILES]"},
    {"prompt": "[SMILES]CCCO[/SMILES]", "regex": "[0-9]{3}"},
]
ENDS = {"none": "", "xgrammar": "-xgrammar", "table": "-table"}
OPTIONS = (
    "--engine vllm --prompts ask.jsonl --processor none,xgrammar,table --batch-size 2 --max-new-tokens 6 --repeats 2"
)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A capture of two runs that take turns in one engine, by processor."""
    if importlib.util.find_spec("vllm") is None and not os.path.isdir(FOLDER or ""):
        pytest.skip("vLLM is not installed, and MOLPROF_VLLM names no folder that has it")
    folder = tmp_path_factory.mktemp("vllm")
    export(CaptureSettings("qwen", device="cpu"), folder / "qwen")
    (folder / "ask.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    words = [sys.executable, "-m", "molprof", "capture", "--model", "qwen", *OPTIONS.split(), "-o", "runs"]
    env = {**os.environ, **({"PYTHONPATH": FOLDER} if FOLDER else {})}
    done = subprocess.run(words, cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "runs in this process alone: all of it is recorded" in done.stderr
    return {name: folder / f"runs/qwen{end}.json.gz" for name, end in ENDS.items()}


def test_requests_join_as_others_end(traces: dict[str, Path]) -> None:
    for name, path in traces.items():
        trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        manifest, runs = trace["molprof"], trace["molprof"]["molecules"]
        assert manifest["resolved"]["processor"] == (None if name == "none" else name)
        assert manifest["problems"] == []
        first = runs[2]["step_tokens"].index(1)
        assert first == min(len(run["token_ids"]) for run in runs[:2])  # one of the others had ended
        (widths,) = manifest["rows_per_step"]
        ends = [len(run["step_tokens"] or run["token_ids"]) for run in runs]
        begins = [0, 0, first]
        assert widths == [
            sum(begin <= step < end for begin, end in zip(begins, ends, strict=True)) for step in range(max(ends))
        ]
        window = manifest["window"]
        kept = range(window["first_step"], window["last_step"] + 1)
        assert {event["args"]["step"] for event in of(trace["traceEvents"], "molprof.token")} == set(kept)
        for repeat in manifest["timings"]["repeats"]:
            assert sum(repeat["phases_ns"].values()) == pytest.approx(repeat["wall_ns"], rel=0.05)
        assert api.report(path).trace.lost_events == 0


def test_each_line_has_its_constraint(traces: dict[str, Path]) -> None:
    run = api.report(traces["xgrammar"]).run
    free = api.report(traces["none"]).run
    assert run is not None
    assert free is not None
    assert [item.valid for item in run.sequences] == [True, None, True]
    assert [item.valid for item in free.sequences] == [False, None, False]
    assert run.sequences[0].text in ("no", "yes")
    table = api.report(traces["table"]).run
    assert table is not None
    assert [item.text for item in table.sequences] == [item.text for item in run.sequences]
    assert run.sequences[1].text == free.sequences[1].text
    assert free.setup.engine == "vllm"
    assert api.compare(traces["none"], traces["xgrammar"]).differences[0].paired


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_cache": "static"}, "vLLM takes no --kv-cache static"),
        ({"processor": "xgrammar"}, "nothing says what xgrammar is to constrain to"),
        ({"processor": "table", "grammar_file": "g"}, "a grammar is for a processor that takes one"),
        ({"processor": "generic"}, "vLLM calls no logits processor 'generic'"),
        ({"drop_finished": True}, "engine 'vllm' neither feeds forced runs nor drops rows"),
    ],
)
def test_what_vllm_does_not_do(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "in.txt").write_text("a")
    given: dict[str, Any] = {"prompts": str(tmp_path / "in.txt"), "max_new_tokens": 3, "engine": "vllm", **changes}
    with pytest.raises(UsageError, match=message):
        capture(CaptureSettings("llama", **given), OutputFile(tmp_path / "out.json"))


def test_a_constraint_of_a_line_that_nothing_would_enforce(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a", "regex": "b"}')
    asked = CaptureSettings("llama", processor="xgrammar", prompts=str(tmp_path / "in.jsonl"), max_new_tokens=3)
    with pytest.raises(UsageError, match=r"line 1 of .*in.jsonl has regex of its own, which only vLLM enforces"):
        capture(asked, OutputFile(tmp_path / "out.json"))
