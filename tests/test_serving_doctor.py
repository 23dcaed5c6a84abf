"""Incompatible packages are reported by the doctor, and by a capture in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRANSFORMERS = """
__version__ = "5.23.0"
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        raise RuntimeError("operator torchvision::nms does not exist")
    except RuntimeError as problem:
        raise ModuleNotFoundError(f"Could not import module '{name}'.") from problem
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a transformers whose parts cannot be imported, and a vLLM that lacks a package."""
    folder = tmp_path / "packages"
    for name, text in (("transformers", TRANSFORMERS), ("vllm", "import no_such_package")):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text)
    utils = folder / "transformers" / "utils"
    utils.mkdir()
    (utils / "__init__.py").write_text("")
    (utils / "import_utils.py").write_text("def is_optimum_quanto_available(): return False")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def test_a_transformers_that_cannot_import_its_models(tmp_path: Path, environment: dict[str, str]) -> None:
    words = [sys.executable, "-m", "molprof", "capture", "--model", "qwen", "-n", "1", "-o", "out.json.gz"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert " not work here: Could not import module " in done.stderr
    assert "operator torchvision::nms does not exist" in done.stderr
    assert "molprof doctor" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_doctor_imports_parts_and_has_a_row_for_vllm(tmp_path: Path, environment: dict[str, str]) -> None:
    words = [sys.executable, "-m", "molprof", "doctor", "--format", "json"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["transformers"]["state"] == "broken"
    assert found["can"]["capture"] is False
    vllm = checks["vllm"]
    assert (vllm["state"], vllm["value"]) == ("broken", "no_such_package is not installed")
    assert vllm["fix"] == "pip install no_such_package"
    assert checks["jsonschema_rs"]["state"] == "ok"
