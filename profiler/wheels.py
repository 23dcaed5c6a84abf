"""`molprof wheels`: packages that an offline machine lacks for recording, chosen by uv, downloaded by pip."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from molprof.common.document import Column, Document, Section, Table
from molprof.common.errors import RunError, UsageError
from molprof.common.files import read_text
from molprof.common.process import output_of
from molprof.common.values import counted
from molprof.profiler.models.tokenizers import VOCABULARIES

_NAME, _TORCH, _TRANSFORMERS = "molprof", "torch", "transformers"
# Extras that others include and recording does without.
_LEFT_OUT = ("analysis", "rdkit")
# A build of torch fits the driver and brings these along: gigabytes, which no wheel from here may replace.
_WITH_TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
# molprof reads a file of these and imports nothing, so that what they require is not needed.
_FILES_ONLY = frozenset(canonicalize_name(item.distribution) for item in VOCABULARIES.values())
_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
MACHINES = tuple(_OLDEST_GLIBC)


@dataclass(frozen=True)
class WheelTarget:
    """The other machine."""

    python: str  # `3.12`
    glibc: str  # `2.35`
    machine: str  # one of `MACHINES`
    there: Mapping[str, Version] = field(default_factory=dict)  # installed packages by canonical name

    @property
    def platforms(self) -> list[str]:
        """Tags of the wheels that run there, newest first: pip takes no older ones by itself."""
        newest = int(self.glibc.partition(".")[2])
        tags = []
        for minor in range(newest, _OLDEST_GLIBC[self.machine] - 1, -1):
            tags.append(f"manylinux_2_{minor}_{self.machine}")
            tags += [f"{_LEGACY[2, minor]}_{self.machine}"] if (2, minor) in _LEGACY else []
        return tags


def check_folder(folder: Path, force: bool) -> None:
    """Raise UsageError, before any work, if the wheels cannot go there."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a directory", hint="name another with -o DIR")
    if not folder.parent.is_dir():
        raise UsageError(f"the directory {folder.parent} does not exist", hint=f"mkdir -p {folder.parent}")
    if not force and next(folder.glob("*.whl"), None) is not None:
        raise UsageError(f"{folder} already has wheels", hint="name another with -o DIR, or --force to replace them")


def read_there(packages: Sequence[str], listed: Path | None) -> dict[str, Version]:
    """Return packages by name, from `NAME==VERSION` texts and a file of such lines.

    `pip list --format freeze` prints them.

    Raises UsageError where one is of another form, or the file cannot be read.
    """
    lines = [(f"--have {text}", text) for text in packages]
    if listed is not None:
        texts = enumerate(read_text(listed).splitlines(), start=1)
        lines = [(f"{listed}, line {number}", text) for number, text in texts if text.strip()] + lines
    versions: dict[str, Version] = {}
    for where, text in lines:
        name, equals, version = text.strip().partition("==")
        try:
            versions[canonicalize_name(name, validate=True)] = Version(version if equals else "")
        except (InvalidVersion, ValueError):
            hint = "as pip list --format freeze prints, such as torch==2.11.0"
            raise UsageError(f"{where}: {text.strip()!r} is not NAME==VERSION", hint) from None
    return versions


def gather(target: WheelTarget, extras: Sequence[str], folder: Path, listed: bool) -> list[Path]:
    """Replace the wheels in `folder` by those that recording and `extras` lack on the other machine.

    With `listed`, `target.there` is all that is there; else what its transformers requires, in old and new versions, is
    there too. Raises UsageError where torch is not there or too old, or no set of versions fits; RunError if uv or pip
    failed otherwise.
    """
    folder = folder.absolute()  # uv and pip run elsewhere
    requires = [Requirement(text) for text in importlib.metadata.requires(_NAME) or ()]
    _check_torch(target, requires)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        scratch = Path(name)
        wheel = own_wheel(scratch / "own")
        wanted = ",".join(("presets", *extras))
        chosen = _compiled(target, scratch, [f"{_NAME}[{wanted}] @ {wheel.as_uri()}"], _excluded(requires, extras))
        files = [str(item) for item in requires if canonicalize_name(item.name) in _FILES_ONLY]
        chosen |= _compiled(target, scratch, [text.partition(";")[0] for text in files], (), "--no-deps")
        there = {_NAME, *target.there}
        if not listed and _TRANSFORMERS in target.there:
            # The newest versions require what the ones there may not: pydantic, say, which typer once did without.
            newest, oldest = (
                set(_compiled(target, scratch, [_TRANSFORMERS], (_TORCH,), f"--resolution={which}"))
                for which in ("highest", "lowest")
            )
            there |= newest & oldest
        lacking = [line for name, line in chosen.items() if name not in there and not _WITH_TORCH.fullmatch(name)]
        platforms = [option for tag in target.platforms for option in ("--platform", tag)]
        _run(
            scratch, "pip", "download", "--no-deps", "--only-binary", ":all:", "--implementation", "cp", *platforms,
            "--python-version", target.python, "--dest", str(scratch / "found"), *lacking,
        )  # fmt: skip
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.whl"):
            old.unlink()
        wheels = [wheel, *sorted((scratch / "found").glob("*.whl"))]
        return [path.replace(folder / path.name) for path in wheels]


def _check_torch(target: WheelTarget, requires: Sequence[Requirement]) -> None:
    if _TORCH not in target.there:
        raise UsageError(
            "torch is not among the packages there: its build must fit the driver, so no wheel of it is gathered",
            hint="--have torch==VERSION, or --have-list FILE with the output of pip list --format freeze there",
        )
    for item in requires:
        version = target.there[_TORCH]
        if item.name == _TORCH and not item.specifier.contains(version.public, prereleases=True):
            raise UsageError(f"torch {version} there does not fit: molprof requires {item.name}{item.specifier}")


def _excluded(requires: Sequence[Requirement], extras: Sequence[str]) -> list[str]:
    """Return the packages to exclude: torch, those chosen separately, and those that left-out extras require."""
    names = [_TORCH, *_FILES_ONLY]
    for extra in set(_LEFT_OUT).difference(extras):
        names += [item.name for item in requires if f'extra == "{extra}"' in str(item.marker) and item.name != _NAME]
    return names


def _compiled(
    target: WheelTarget, scratch: Path, texts: Sequence[str], excluded: Sequence[str], *options: str
) -> dict[str, str]:
    """Return by name the `NAME==VERSION` of packages that `texts` require there, without those already there."""
    pins = (f"{name}=={version.public}" for name, version in target.there.items())
    for name, lines in (("asked", texts), ("there", pins), ("excluded", excluded)):
        (scratch / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    text = _run(
        scratch, "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", target.python,
        "--python-platform", f"{target.machine}-manylinux_{target.glibc.replace('.', '_')}", "--only-binary", ":all:",
        "--constraint", "there.txt", "--excludes", "excluded.txt", *options, "asked.txt",
    )  # fmt: skip
    requirements = (Requirement(line) for line in text.splitlines())
    return {canonicalize_name(item.name): str(item) for item in requirements}


def own_wheel(scratch: Path) -> Path:
    """Return molprof's own wheel in a new folder: built from the installed checkout, else from the index."""
    # In a checkout as working directory, the first one is what setuptools left there, which has no origin.
    origins = (item.read_text("direct_url.json") for item in importlib.metadata.distributions(name=_NAME))
    origin: dict[str, Any] = json.loads(next(filter(None, origins), "{}"))
    source = origin["url"] if "dir_info" in origin else f"{_NAME}=={importlib.metadata.version(_NAME)}"
    scratch.mkdir()
    # Without this, setuptools builds inside the checkout, and packs what an earlier build left there.
    settings = scratch / "build.cfg"
    settings.write_text(f"[build]\nbuild_base = {scratch}/build\n[egg_info]\negg_base = {scratch}\n")
    _run(scratch, "pip", "wheel", "--no-deps", "--wheel-dir", str(scratch), source, DIST_EXTRA_CONFIG=str(settings))
    (path,) = scratch.glob("*.whl")
    return path


def _run(folder: Path, module: str, *arguments: str, **environment: str) -> str:
    """Return the output of `python -m MODULE` in `folder`, where no file can shadow a module."""
    settings = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off", **environment}
    done = output_of([sys.executable, "-m", module, *arguments], cwd=folder, env=settings)
    if done.returncode == 0:
        return done.stdout
    output = done.stdout + done.stderr
    if f"No module named {module}" in output:
        install = "-m ensurepip" if module == "pip" else "-m pip install uv"
        raise UsageError(f"this Python has no {module}, which gathers the wheels", f"{sys.executable} {install}")
    if "No solution found" in output:
        reason = " ".join(output.partition("resolving dependencies")[2].split()).lstrip(":╰─▶ ").removeprefix("cause: ")
        raise UsageError(f"no set of versions fits what is there: {reason}", "leave out what may be replaced there")
    errors = [line for line in output.splitlines() if line.lower().startswith("error")] or output.split("\n")[-2:-1]
    problem = errors[0] if errors else f"code {done.returncode}"
    raise RunError(f"{module} {arguments[0]} failed: {problem}", hint="is the package index reachable?")


def wheels_document(wheels: Sequence[Path], folder: Path) -> Document:
    """Return the wheels, and how to install them there."""
    names = [parse_wheel_filename(path.name) for path in wheels]
    sizes = [path.stat().st_size for path in wheels]
    rows = [(name, str(version), size) for (name, version, *_), size in zip(names, sizes, strict=True)]
    total = (counted(len(rows), "wheel"), "", sum(sizes))
    table = Table((Column("package"), Column("version"), Column("size", "bytes")), [*rows, total])
    files = f"{shlex.quote(str(folder))}/*.whl"
    lines = (
        f"python3 -m pip install --no-index --no-deps {files}",
        "if the environment must not change, add --target molprof-site, and",
        "export PYTHONPATH=$PWD/molprof-site",
        "python3 -m molprof doctor",
    )
    return Document("molprof wheels", (Section("", table=table), Section("There", lines)), dict)
