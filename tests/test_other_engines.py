"""outlines-core and lm-format-enforcer work as processors, from the folder with vLLM, which has them as backends."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from conftest import lines_in, with_path

from molprof import api

FOLDER = os.environ.get("MOLPROF_VLLM")
ASKED = {"regex": "[0-9]{3}|no", "choices": "yes,no,per.haps"}
COMMAND = (
    "capture --model qwen --processor outlines,lm-format-enforcer,table --prompts ask.txt --batch-size 2 -n 2"
    " --max-new-tokens 8 --repeats 1 --warmup 0"
)


def test_texts_are_those_of_the_table(tmp_path: Path) -> None:
    if importlib.util.find_spec("outlines_core") is None and not os.path.isdir(FOLDER or ""):
        pytest.skip("outlines-core is not installed, and MOLPROF_VLLM names no folder that has it")
    (tmp_path / "ask.txt").write_text("[SMILES]CO[/SMILES]\nHow many?\n")
    lines = [[*COMMAND.split(), f"--{name}", value, "-o", name] for name, value in ASKED.items()]
    environment = with_path(*filter(None, (FOLDER, Path(__file__).parent)))
    for name, (code, _, said) in zip(ASKED, lines_in(tmp_path, environment, *lines), strict=True):
        assert code == 0, said
        texts = {}
        for processor in ("outlines", "lm-format-enforcer", "table"):
            run = api.report(tmp_path / name / f"qwen-{processor}.json.gz").run
            assert run is not None
            assert run.setup.processor == processor
            assert [item.valid for item in run.sequences] == [True, True]
            texts[processor] = [item.text for item in run.sequences]
        assert texts["outlines"] == texts["lm-format-enforcer"] == texts["table"]
