"""What molprof needs on another machine, from its own metadata, and which of these packages are there."""

from __future__ import annotations

import functools
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PathDistribution
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from molprof.common.errors import UsageError
from molprof.common.files import read_text
from molprof.profiler.models.tokenizers import VOCABULARIES

NAME, TORCH, TRANSFORMERS = "molprof", "torch", "transformers"
RECORDING = ("presets",)
# Extras that others include and recording does without.
LEFT_OUT = frozenset({"analysis", "rdkit"})
# A build of torch fits the driver and brings these along: gigabytes, which no wheel from here may replace.
_WITH_TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
# molprof reads a file of these and imports nothing, so that what they require is not needed.
_FILES_ONLY = frozenset(canonicalize_name(item.distribution) for item in VOCABULARIES.values())
_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
MACHINES = tuple(_OLDEST_GLIBC)


@dataclass(frozen=True)
class Target:
    """The other machine."""

    python: str  # `3.12`
    glibc: str  # `2.35`
    machine: str  # one of `MACHINES`
    there: Mapping[str, Version] = field(default_factory=dict)  # installed packages by canonical name
    implied: frozenset[str] = frozenset()  # names of more packages that are there, in unknown versions

    @property
    def platforms(self) -> list[str]:
        """Tags of the wheels that run there, newest first: pip takes no older ones by itself."""
        newest = int(self.glibc.partition(".")[2])
        tags = []
        for minor in range(newest, _OLDEST_GLIBC[self.machine] - 1, -1):
            tags.append(f"manylinux_2_{minor}_{self.machine}")
            tags += [f"{_LEGACY[2, minor]}_{self.machine}"] if (2, minor) in _LEGACY else []
        return tags

    def applies(self, requirement: Requirement, extra: str = "") -> bool:
        """Whether the marker of a requirement holds there."""
        environment = {
            **default_environment(),
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_version": f"{self.python}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "platform_machine": self.machine,
            "platform_system": "Linux",
            "sys_platform": "linux",
            "os_name": "posix",
            "extra": extra,
        }
        return requirement.marker is None or requirement.marker.evaluate(environment)  # type: ignore[arg-type]

    def has(self, name: str) -> bool:
        """Whether a package is there, or comes with torch."""
        return name in self.there or name in self.implied or with_torch(name)


@dataclass(frozen=True)
class Wheel:
    path: Path

    @functools.cached_property
    def _metadata(self) -> PathDistribution:
        with zipfile.ZipFile(self.path) as archive:
            folder = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return PathDistribution(zipfile.Path(self.path, folder.removesuffix("METADATA")))  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        return canonicalize_name(self._metadata.metadata["Name"])

    @property
    def version(self) -> str:
        return self._metadata.version

    @property
    def requires_python(self) -> SpecifierSet:
        return SpecifierSet(self._metadata.metadata["Requires-Python"] or "")

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size

    def requires(self, target: Target, extras: Iterable[str] = ()) -> list[Requirement]:
        """What it requires on the other machine, with these extras."""
        found = map(Requirement, self._metadata.requires or ())
        return [item for item in found if any(target.applies(item, extra) for extra in ("", *extras))]


def with_torch(name: str) -> bool:
    """Whether a package is torch, or comes with it."""
    return _WITH_TORCH.fullmatch(name) is not None


def read_there(given: Sequence[str], listed: Path | None) -> dict[str, Version]:
    """Packages by name, from `NAME==VERSION` texts and a file of such lines, as `pip list --format freeze` prints.

    Raises UsageError where one is of another form, or the file cannot be read.
    """
    lines = [(f"--have {text}", text) for text in given]
    if listed is not None:
        texts = enumerate(read_text(listed).splitlines(), start=1)
        lines = [(f"{listed}, line {number}", text) for number, text in texts if text.strip()] + lines
    found: dict[str, Version] = {}
    for where, text in lines:
        name, equals, version = text.strip().partition("==")
        try:
            found[canonicalize_name(name, validate=True)] = Version(version if equals else "")
        except (InvalidVersion, ValueError):
            hint = "as pip list --format freeze prints, such as torch==2.11.0"
            raise UsageError(f"{where}: {text.strip()!r} is not NAME==VERSION", hint) from None
    return found


def own_requirements(wheel: Wheel, target: Target, extras: Sequence[str]) -> list[Requirement]:
    """What molprof requires on the other machine for `extras`, without those of `LEFT_OUT` that are not named."""
    asked, found = set(extras), []
    while True:
        required = wheel.requires(target, asked)
        found = [item for item in required if canonicalize_name(item.name) != NAME]
        more = {extra for item in required if canonicalize_name(item.name) == NAME for extra in item.extras}
        if more <= asked | LEFT_OUT:
            return found
        asked |= more - LEFT_OUT


def closure(
    roots: Iterable[Requirement], wheels: Mapping[str, Wheel], target: Target
) -> tuple[dict[str, Wheel], list[Requirement]]:
    """The wheels that `roots` need on the other machine, and the requirements that no wheel and no package there meets.

    pip chooses by the markers of the Python that runs it, so what it chose may hold too much and too little.
    """
    needed: dict[str, Wheel] = {}
    unmet: list[Requirement] = []
    seen: set[str] = set()
    todo = list(roots)
    while todo:
        item = todo.pop()
        name = canonicalize_name(item.name)
        if target.has(name) or str(item) in seen:
            continue
        seen.add(str(item))
        if name not in wheels:
            unmet.append(item)
            continue
        needed[name] = wheels[name]
        if name not in _FILES_ONLY:
            todo += wheels[name].requires(target, item.extras)
    return needed, unmet
