"""Gathering wheels with pip: molprof's own, and those of the packages that another machine lacks."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from molprof.common.document import Column, Document, Section, Table
from molprof.common.errors import RunError, UsageError
from molprof.common.values import counted
from molprof.profiler.wheels.needs import (
    NAME,
    RECORDING,
    TORCH,
    TRANSFORMERS,
    Target,
    Wheel,
    closure,
    own_requirements,
)

# Local version of a package that is there; no index has one with this label.
_LABEL = "there"


@dataclass(frozen=True)
class Gathered:
    """The wheels in their folder, molprof's own first, and remarks."""

    wheels: tuple[Wheel, ...]
    notes: tuple[str, ...]


def check_folder(folder: Path, force: bool) -> None:
    """Raises UsageError, before any work, where the wheels cannot go."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a directory", hint="name another with -o DIR")
    if not folder.parent.is_dir():
        raise UsageError(f"the directory {folder.parent} does not exist", hint=f"mkdir -p {folder.parent}")
    if not force and next(folder.glob("*.whl"), None) is not None:
        raise UsageError(f"{folder} already has wheels", hint="name another with -o DIR, or --force to replace them")


def gather(target: Target, extras: Sequence[str], folder: Path, listed: bool) -> Gathered:
    """Fill `folder` with the wheels that recording and `extras` of molprof lack on the other machine.

    With `listed`, `target.there` is all that is there; else what its transformers requires is there too. Raises
    UsageError where torch is not there or too old, or no set of versions fits; RunError if pip failed otherwise.
    """
    folder = folder.absolute()  # pip runs elsewhere
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        scratch = Path(name)
        own = own_wheel(scratch / "own")
        if not own.requires_python.contains(f"{target.python}.0"):
            what = f"molprof requires Python {own.requires_python}, not {target.python}"
            raise UsageError(what, hint="--python 3.12")
        if not listed and TRANSFORMERS in target.there:
            target = replace(target, implied=_implied(target, scratch / TRANSFORMERS))
        roots = own_requirements(own, target, (*RECORDING, *extras))
        target, notes = _without_unfit(target, roots)
        chosen = _resolved(roots, target, scratch)
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.whl"):
            old.unlink()
        wheels = (own, *sorted(chosen, key=lambda wheel: wheel.name))
        kept = tuple(Wheel(wheel.path.replace(folder / wheel.path.name)) for wheel in wheels)
    return Gathered(kept, tuple(notes))


def _resolved(roots: Sequence[Requirement], target: Target, scratch: Path) -> list[Wheel]:
    """What pip chooses for the roots beside what is there."""
    stubs = scratch / "there"
    stubs.mkdir()
    pins = [_stub(stubs, name, version) for name, version in target.there.items()]
    constraints = scratch / "there.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in pins))
    wanted = list(roots)
    for number in range(len(wanted) + 1):
        found = scratch / f"round-{number}"
        asked = [_unmarked(item) for item in wanted if not target.has(canonicalize_name(item.name))]
        _pip(
            "download", "--dest", str(found), "--find-links", str(stubs), "--constraint", str(constraints),
            *_only(target), *asked, folder=scratch,
        )  # fmt: skip
        here = [Wheel(path) for path in found.glob("*.whl")]
        wheels = {wheel.name: wheel for wheel in here if wheel.name not in target.there}
        chosen, unmet = closure(roots, wheels, target)
        if not unmet:
            return list(chosen.values())
        wanted += unmet
    raise RunError(f"pip finds no wheel of {', '.join(map(str, unmet))}")


def _implied(target: Target, scratch: Path) -> frozenset[str]:
    """The packages that transformers requires there."""
    version = target.there[TRANSFORMERS].public
    asked = f"{TRANSFORMERS}=={version}"
    _pip("download", "--no-deps", "--dest", str(scratch), *_only(target), asked, folder=scratch.parent)
    (path,) = scratch.glob("*.whl")
    return frozenset(canonicalize_name(item.name) for item in Wheel(path).requires(target))


def _without_unfit(target: Target, roots: Sequence[Requirement]) -> tuple[Target, list[str]]:
    """The target without packages that are too old or too new for molprof, and a remark on each."""
    there, notes = dict(target.there), []
    if TORCH not in there:
        raise UsageError(
            "torch is not among the packages there: its build must fit the driver, so no wheel of it is gathered",
            hint="--have torch==VERSION, or --have-list FILE with the output of pip list --format freeze there",
        )
    for item in roots:
        name = canonicalize_name(item.name)
        if name not in there or item.specifier.contains(there[name].public, prereleases=True):
            continue
        text = f"{item.name} {there[name]} there does not fit: molprof requires {item.name}{item.specifier}"
        if name == TORCH:
            raise UsageError(text, hint="install a newer torch there")
        notes.append(f"{text}; the folder has another one")
        del there[name]
    return replace(target, there=there), notes


def own_wheel(scratch: Path) -> Wheel:
    """molprof's own wheel in a new folder: built from the checkout that is installed here, else from the index."""
    # In a checkout as working directory, the first one is what setuptools left there, which has no origin.
    known = (item.read_text("direct_url.json") for item in importlib.metadata.distributions(name=NAME))
    origin: dict[str, Any] = json.loads(next(filter(None, known), "{}"))
    url = str(origin.get("url", ""))
    checkout = Path(unquote(urlsplit(url).path)) if url.startswith("file:") and "dir_info" in origin else None
    scratch.mkdir()
    if checkout is not None and (checkout / "setup.cfg").is_file():
        # Without this, setuptools builds inside the checkout, and packs what an earlier build left there.
        settings = scratch / "build.cfg"
        settings.write_text(f"[build]\nbuild_base = {scratch}/build\n[egg_info]\negg_base = {scratch}\n")
        _pip(
            "wheel", "--no-deps", "--wheel-dir", str(scratch), str(checkout),
            folder=scratch, DIST_EXTRA_CONFIG=str(settings),
        )  # fmt: skip
    else:
        asked = f"{NAME}=={importlib.metadata.version(NAME)}"
        _pip("download", "--no-deps", "--dest", str(scratch), asked, folder=scratch)
    (path,) = scratch.glob("*.whl")
    return Wheel(path)


def _stub(folder: Path, name: str, version: Version) -> str:
    """A wheel without content that stands for a package which is there; the requirement that selects it."""
    local = f"{version.public}+{'.'.join(filter(None, (version.local, _LABEL)))}"
    stem = f"{name.replace('-', '_')}-{local}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {local}\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return f"{name}=={local}"


def _unmarked(requirement: Requirement) -> str:
    """The requirement without its marker, which pip would read for the wrong machine."""
    plain = Requirement(str(requirement))
    plain.marker = None
    return str(plain)


def _only(target: Target) -> list[str]:
    """Options that make pip choose wheels for the other machine."""
    platforms = [option for tag in target.platforms for option in ("--platform", tag)]
    return ["--only-binary", ":all:", "--implementation", "cp", "--python-version", target.python, *platforms]


def _pip(*arguments: str, folder: Path, **environment: str) -> None:
    """Run pip of this Python in `folder`, where no file can shadow a module."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check", "--progress-bar", "off"],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return
    output = done.stdout + done.stderr
    if "No module named pip" in output:
        raise UsageError("this Python has no pip, which gathers the wheels", hint=f"{sys.executable} -m ensurepip")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    problem = errors[0] if errors else lines[-1] if lines else f"code {done.returncode}"
    if "conflicting dependencies" in problem:
        start = next((place for place, line in enumerate(lines) if line.startswith("The conflict is caused by")), 0)
        told = "; ".join(line for line in lines[start + 1 : start + 7] if not line.startswith("ERROR"))
        told = told.replace(f"+{_LABEL}", " there")
        raise UsageError(f"no set of versions fits what is there: {told}", hint="leave out what may be replaced there")
    raise RunError(f"pip {arguments[0]} failed: {problem}", hint="is the package index reachable?")


def wheels_document(wheels: tuple[Wheel, ...], folder: Path) -> Document:
    """The wheels, and how to install them there."""
    rows = [(wheel.name, wheel.version, wheel.size_bytes) for wheel in wheels]
    total = (counted(len(rows), "wheel"), "", sum(wheel.size_bytes for wheel in wheels))
    table = Table((Column("package"), Column("version"), Column("size", "bytes")), [*rows, total])
    files = f"{shlex.quote(str(folder))}/*.whl"
    lines = (
        f"python3 -m pip install --no-index --no-deps {files}",
        "if the environment must not change, add --target molprof-site, and",
        "export PYTHONPATH=$PWD/molprof-site",
        "python3 -m molprof doctor",
    )
    return Document("molprof wheels", (Section("", table=table), Section("There", lines)), dict)
