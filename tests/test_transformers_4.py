"""The oldest transformers that molprof supports writes the same text as the installed one; an older one is refused."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from captures import captured

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.environment import check_versions, outdated
from molprof.profiler.models.load import load
from molprof.profiler.molecules.prompts import read_prompts

FOLDER = os.environ.get("MOLPROF_TRANSFORMERS_4")
CAPTURES: dict[str, dict[str, Any]] = {
    "forced": {"model": "qwen", "processor": "grammar", "forced_runs": True},
    "static": {"model": "qwen", "processor": "vectorized", "kv_cache": "static", "disagreement": True},
}
SMALL: dict[str, Any] = {"count": 1, "batch_size": 1, "repeats": 1, "warmup": 0, "max_new_tokens": 16}
RUN = "import json, sys; from test_transformers_4 import run; run('old', json.loads(sys.argv[1]))"


def run(folder: str, asked: dict[str, dict[str, Any]]) -> None:
    """Writes a trace for each settings, all of one model."""
    every = {name: CaptureSettings(**settings) for name, settings in asked.items()}
    model, prompts = load(next(iter(every.values()))), read_prompts(None, 1)
    for name, settings in every.items():
        captured(Path(folder, f"{name}.json.gz"), settings, prompts, model)


def _written(path: Path) -> tuple[str, list[list[int]]]:
    """The version of transformers that a trace names, and the tokens of its molecules."""
    manifest = json.loads(gzip.decompress(path.read_bytes()))["molprof"]
    return manifest["environment"]["transformers"], [run["token_ids"] for run in manifest["molecules"]]


@pytest.mark.skipif(
    FOLDER is None or not os.path.isdir(FOLDER), reason="MOLPROF_TRANSFORMERS_4 names no folder with transformers 4.57"
)
def test_the_oldest_transformers_writes_the_same_text(tmp_path: Path) -> None:
    path = os.pathsep.join([str(FOLDER), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    asked = {name: {**settings, **SMALL} for name, settings in CAPTURES.items()}
    (tmp_path / "old").mkdir()
    (tmp_path / "now").mkdir()
    subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(asked)], env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, check=True
    )
    run(str(tmp_path / "now"), asked)
    for name in asked:
        (old, before), (_, after) = (_written(tmp_path / when / f"{name}.json.gz") for when in ("old", "now"))
        assert old.startswith("4.57.")
        assert before == after


@pytest.fixture
def old_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "transformers-4.51.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.51.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_an_older_transformers_is_refused(old_transformers: None) -> None:
    with pytest.raises(
        UsageError, match=r"transformers 4\.51\.3 is too old: molprof requires transformers>=4\.57"
    ) as told:
        check_versions()
    assert told.value.hint == "pip install --upgrade 'transformers>=4.57'"
    assert outdated("torch") is None
