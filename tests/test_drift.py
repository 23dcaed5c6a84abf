"""`molprof drift`: exact figures of literal coordinates, the published token counts, and no torch."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from test_tokenizers import COUNTS, IDS
from tokenizers import Tokenizer

from molprof.common.errors import UsageError
from molprof.common.text_format import DEFAULT
from molprof.profiler.drift.survey import PLACEHOLDERS, Distribution, distribution, survey
from molprof.profiler.models.tokenizers import load_backend
from molprof.profiler.molecules.conformers import Conformers, built_in_conformers, read_conformers

TEXTS = "[C]<-1.2345,0.5,2.0>=[O]<0.1,0.2,0.3>\n[N]<10.5,-0.25,3.1>\n"


@pytest.fixture
def texts(tmp_path: Path) -> str:
    (tmp_path / "texts.txt").write_text(TEXTS)
    return "texts.txt"


@functools.cache
def backend(name: str) -> Tokenizer:
    return load_backend(name)


def figures(found: Conformers, *names: str, placeholders: tuple[str, ...] = ()) -> dict[str, Any]:
    loaded = [(name, backend(name), DEFAULT) for name in names]
    return survey(loaded, found, (*PLACEHOLDERS, *placeholders)).to_json()


def test_distribution() -> None:
    assert distribution([3]) == Distribution(1, 3, 3, 3, 3, 3, 3.0, {3: 1})
    assert distribution([4, 1, 2, 2]) == Distribution(4, 1, 1, 2, 2, 4, 2.25, {1: 1, 2: 2, 4: 1})


def test_the_published_counts_and_ids(molprof: Cli, texts: str) -> None:
    result = molprof("drift", "--conformers", texts, "--format", "json")
    assert result.returncode == 0, result.stderr
    qwen, llama = json.loads(result.stdout)["tokenizers"]
    found = {
        example["text"]: (example["tokens"], other["tokens"])
        for example, other in zip(qwen["examples"], llama["examples"], strict=True)
    }
    assert found == COUNTS
    assert (qwen["vocabulary"], llama["vocabulary"]) == (151_643, 128_000)
    assert (qwen["digits_per_token"], llama["digits_per_token"]) == (1, 3)
    for item in (qwen, llama):
        assert {text: item["token_ids"][text] for text in IDS[item["name"]]} == IDS[item["name"]]
        assert item["examples"][-1]["free"] == {"qwen": 40, "llama": 28}[item["name"]]
        assert item["placeholders"][0]["tokens"] == {"qwen": 20, "llama": 14}[item["name"]]


def test_the_built_in_molecules() -> None:
    found = figures(built_in_conformers(5), "qwen", "llama")
    assert found["molecules"] == 5
    for item in found["tokenizers"]:
        assert item["best"]["too_short"] == 0
        for placeholder in item["placeholders"]:
            shares = [placeholder[f"{name}_ratio"] for name in ("too_short", "exact", "too_long")]
            assert sum(shares) == pytest.approx(1)
            assert sum(placeholder["drift_tokens"]["histogram"].values()) == found["blocks"]
            assert placeholder["drift_tokens"]["mean"] == pytest.approx(
                placeholder["tokens"] - item["needed_tokens"]["mean"]
            )


def test_a_tokenizer_in_a_folder_counts_as_the_preset_does(texts: str, tmp_path: Path) -> None:
    padding = load_backend("llama")
    padding.enable_padding(length=99)  # what a folder's file says of padding does not count
    padding.save(str(tmp_path / "tokenizer.json"))
    preset, folder = figures(read_conformers(tmp_path / texts), "llama", str(tmp_path))["tokenizers"]
    assert {**folder, "name": "llama"} == preset


def test_skipped_lines_are_said_and_kept(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(f"CCO\n{TEXTS}")
    result = molprof("drift", "--tokenizer", "qwen", "--conformers", "texts.txt")
    assert result.returncode == 0
    problem = "line 1: character 1: expected an atom in brackets with a coordinate block after it"
    assert result.stderr == f"{problem}; skipped\n"
    assert f"skipped    {problem}" in result.stdout


def test_xyz_has_coordinates_and_no_texts(molprof: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("2\n\nC 1.0 2.0 3.5\nO 0.0 0.0 1.2\n")
    (qwen,) = figures(read_conformers(tmp_path / "a.xyz"), "qwen")["tokenizers"]
    assert qwen["answers"] is None
    assert qwen["placeholders"][0]["tokens_per_molecule"] is None
    assert qwen["needed_tokens"]["histogram"] == {"11": 2}
    shown = molprof("drift", "--tokenizer", "qwen", "--conformers", "a.xyz").stdout
    assert "not recorded: the file holds no bonds" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tokenizer", "/no/such"), "no tokenizer '/no/such'"),
        (("--tokenizer", "empty"), "the folder empty has no tokenizer.json"),
        (("--tokenizer", "broken"), "broken/tokenizer.json is not a tokenizer"),
        (("--tokenizer", "someone/no-such-model"), "not in the model hub's cache, and HF_HUB_OFFLINE forbids"),
        (("--placeholder", "<0.0>"), "'<0.0>' is no placeholder"),
        (("--placeholder", ""), "'' is no placeholder"),
        (("--placeholder", "abc"), "'abc' is no placeholder: expected three numbers with commas between them"),
        (("--placeholder", "0.0,0.0"), "'0.0,0.0' is no placeholder"),
        (("--placeholder", "0.0,0.0,.0"), "'0.0,0.0,.0' is no placeholder"),
        (("--conformers", "absent.sdf"), "cannot read absent.sdf"),
        (("--decimals", "0"), "0 is not in the range"),
    ],
)
def test_a_mistake_is_one_message(molprof: Cli, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/tokenizer.json").write_text("{}")
    result = molprof("drift", *arguments, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unreachable_hub_is_one_message_without_retries(molprof: Cli, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    result = molprof("drift", "--tokenizer", "nope", env=environment)
    error, hint = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (2, "")
    assert error.startswith(
        "molprof: error: no tokenizer 'nope': no preset and no folder, not in the model hub's cache"
    )
    assert "http://127.0.0.1:9 cannot be reached" in error
    assert hint == "  use a preset (qwen, llama), a folder with a tokenizer.json, or a hub id"


def test_no_torch_is_needed(texts: str, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from molprof.cli import main\n"
        "main(['drift', '--conformers', 'texts.txt', '--format', 'json'])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["blocks"] == 3


def test_the_hub_is_asked_only_for_what_can_be_one() -> None:
    with pytest.raises(UsageError, match="no tokenizer ''"):
        load_backend("")
