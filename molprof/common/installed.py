"""Install commands for missing packages, whether molprof comes from an index, a wheel or a checkout."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from collections.abc import Iterator, Sequence

_OWN = "molprof"


def install_command(package: str, extra: str | None = None, of: Sequence[str] = (_OWN,)) -> str:
    """Return the pip command for a package that is missing, together with all others that are.

    It names the packages themselves: molprof[extra] would ask an index for molprof, which may be a checkout.

    Args:
        extra: all of it that is missing; None: of `of` what it always requires.
        of: distributions of which one is installed. Of molprof, what it always requires is not looked at.
    """
    wanted = [] if extra is None and _OWN in of else [*dict.fromkeys(_requirements(of, extra))]
    wanted = [line for line in wanted if _name(line) == _name(package) or not _is_installed(_name(line))]
    if not any(_name(line) == _name(package) for line in wanted):
        wanted.insert(0, package)
    return f"pip install {' '.join(map(shlex.quote, wanted))}"


def _requirements(of: Sequence[str], extra: str | None) -> Iterator[str]:
    """Yield the requirements of an extra, without markers, with those of the extras that it names."""
    from packaging.requirements import Requirement

    for distribution in filter(_is_installed, of):
        for line in importlib.metadata.requires(distribution) or ():
            requirement = Requirement(line)
            always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if always if extra is not None else not always:
                continue
            if extra is not None and not (requirement.marker and requirement.marker.evaluate({"extra": extra})):
                continue
            if requirement.name == distribution:
                for other in sorted(requirement.extras):
                    yield from _requirements([distribution], other)
            else:
                yield f"{requirement.name}{requirement.specifier}"


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _name(line: str) -> str:
    return re.split(r"[<>=!~\[; ]", line)[0].lower().replace("_", "-")
