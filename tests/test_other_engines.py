"""outlines-core and lm-format-enforcer work as processors, from the folder with vLLM, which has them as backends."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from molprof import api

FOLDER = os.environ.get("MOLPROF_VLLM")
COMMAND = (
    "capture --model qwen --processor outlines,lm-format-enforcer,table --prompts ask.txt --batch-size 2 -n 2"
    " --max-new-tokens 8 --repeats 1 --warmup 0 -o runs"
)


@pytest.mark.parametrize("constraint", [("--regex", "[0-9]{3}|no"), ("--choices", "yes,no,per.haps")])
def test_texts_are_those_of_the_table(tmp_path: Path, constraint: tuple[str, str]) -> None:
    if importlib.util.find_spec("outlines_core") is None and not os.path.isdir(FOLDER or ""):
        pytest.skip("outlines-core is not installed, and MOLPROF_VLLM names no folder that has it")
    (tmp_path / "ask.txt").write_text("[SMILES]CO[/SMILES]\nHow many?\n")
    words = [sys.executable, "-m", "molprof", *COMMAND.split(), *constraint]
    env = {**os.environ, **({"PYTHONPATH": FOLDER} if FOLDER else {})}
    done = subprocess.run(words, cwd=tmp_path, env=env, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    texts = {}
    for name in ("outlines", "lm-format-enforcer", "table"):
        run = api.report(tmp_path / f"runs/qwen-{name}.json.gz").run
        assert run is not None
        assert run.setup.processor == name
        assert [item.valid for item in run.sequences] == [True, True]
        texts[name] = [item.text for item in run.sequences]
    assert texts["outlines"] == texts["lm-format-enforcer"] == texts["table"]
