"""`molprof wheels` finds what another machine lacks, by its Python and packages; once with the real index."""

from __future__ import annotations

import importlib.metadata
import urllib.request
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from molprof.common.errors import UsageError
from molprof.profiler.wheels import WheelTarget, gather, read_there

TORCH = {"torch": Version("2.11.0")}


def target(**changes: object) -> WheelTarget:
    return WheelTarget(**{"python": "3.12", "glibc": "2.35", "machine": "x86_64", "there": TORCH, **changes})  # type: ignore[arg-type]


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


def _index_problem() -> str | None:
    try:
        urllib.request.urlopen("https://pypi.org/simple/click/", timeout=5).close()
    except OSError as problem:
        return f"the package index cannot be reached: {problem}"
    return None


def test_the_wheel_that_another_machine_lacks_is_gathered(tmp_path: Path) -> None:
    """That machine has what is installed here, but for one package."""
    if problem := _index_problem():
        pytest.skip(problem)
    here = {canonicalize_name(item.name): Version(item.version) for item in importlib.metadata.distributions()}
    there = {name: version for name, version in here.items() if name not in ("molprof", "tiktoken")}
    found = gather(target(there=there), (), tmp_path / "wheels", listed=True)
    assert sorted((tmp_path / "wheels").iterdir()) == sorted(found)
    assert [parse_wheel_filename(path.name)[0] for path in found] == ["molprof", "tiktoken"]
    assert "molprof/profiler/molecules/conformers.txt" in zipfile.ZipFile(found[0]).namelist()
