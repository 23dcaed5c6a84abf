"""A capture by vLLM says what its client would see, what vLLM ran, and where the time of masks is."""

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

from molprof import api
from molprof.common.settings import CaptureSettings
from molprof.profiler.models.load import export

FOLDER = os.environ.get("MOLPROF_VLLM")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
OPTIONS = (
    "--engine vllm --prompts ask.txt --processor none,xgrammar,table --schema person.json --batch-size 1 "
    "--max-new-tokens 40 --repeats 2 --warmup 1"
)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By processor."""
    if importlib.util.find_spec("vllm") is None and not os.path.isdir(FOLDER or ""):
        pytest.skip("vLLM is not installed, and MOLPROF_VLLM names no folder that has it")
    folder = tmp_path_factory.mktemp("vllm")
    export(CaptureSettings("qwen", device="cpu"), folder / "qwen")
    (folder / "ask.txt").write_text("".join(f"[SMILES]{'C' * count}O[/SMILES]\n" for count in range(1, 8)))
    (folder / "person.json").write_text(json.dumps(SCHEMA))
    words = [sys.executable, "-m", "molprof", "capture", "--model", "qwen", *OPTIONS.split(), "-o", "runs"]
    env = {**os.environ, **({"PYTHONPATH": FOLDER} if FOLDER else {})}
    done = subprocess.run(words, cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {name: folder / f"runs/qwen{end}.json.gz" for name, end in
            {"none": "", "xgrammar": "-xgrammar", "table": "-table"}.items()}  # fmt: skip


def manifest_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))["molprof"]
    return found


def test_the_version_of_vllm_is_recorded(traces: dict[str, Path]) -> None:
    assert manifest_of(traces["none"])["environment"]["vllm"].startswith("0.")
    run = api.report(traces["none"]).run
    assert run is not None
    assert run.setup.vllm == manifest_of(traces["none"])["environment"]["vllm"]


def test_the_tables_masks_are_in_the_processor_and_making_it_is_timed(traces: dict[str, Path]) -> None:
    def per_step(name: str, phase: str) -> float:
        manifest = manifest_of(traces[name])
        times = [repeat["phases_ns"][phase] for repeat in manifest["timings"]["repeats"]]
        return min(times) / sum(manifest["steps_per_batch"])

    for name in traces:
        assert per_step(name, "processor") > 0
        assert per_step(name, "sampling") > 0
    once = {name: manifest_of(path)["timings"]["processor_once_ns"] for name, path in traces.items()}
    assert once["none"] is None
    assert once["xgrammar"] > 0
    assert once["table"] > 0
    for path in traces.values():
        for repeat in manifest_of(path)["timings"]["repeats"]:
            assert sum(repeat["phases_ns"].values()) == pytest.approx(repeat["wall_ns"], rel=0.05)


def test_an_answer_is_judged_as_a_client_gets_it(traces: dict[str, Path]) -> None:
    """xgrammar lets special tokens into a string, and vLLM leaves them out of its texts."""
    judged = [item for name in traces for item in manifest_of(traces[name])["molecules"]]
    emptied = [item for item in judged if item["text"].startswith('{"name":"[/SMILES]')]
    for item in emptied:
        if '""' in item["text"].replace("[/SMILES]", "").replace("[CONFORMER]", ""):
            assert item["valid"] is False
            assert "vLLM leaves special tokens out of its texts" in item["problem"]
    assert {item["valid"] for item in manifest_of(traces["table"])["molecules"]} <= {True, False}


def test_what_vllm_does_in_its_own_way_is_not_claimed(traces: dict[str, Path]) -> None:
    words = [sys.executable, "-m", "molprof", "report", "--all", str(traces["none"])]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    settings = done.stdout.partition("\nSettings\n")[2].partition("\n\n")[0]
    assert "vLLM" in settings
    rows = [line.split("  ")[1] for line in settings.splitlines() if line.startswith("  ")]
    assert not {"KV cache", "attention", "prompt padding"} & set(rows)
