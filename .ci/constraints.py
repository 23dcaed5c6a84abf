"""Resolves what the README tells people to install, as their machines would; `--write` makes constraints.txt anew.

Needs `uv` and the package index, and installs nothing. uv reads no pip configuration: this machine's has no effect.

    python .ci/constraints.py              # check
    python .ci/constraints.py --write      # without a line, a package gets its newest version that fits everywhere
"""

from __future__ import annotations

import argparse
import configparser
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from uv import find_uv_bin

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# glibc 2.31 (Debian 11, Ubuntu 20.04, RHEL 9) is the oldest with a wheel of each package. torch requires macOS 14.
PLATFORMS = ("x86_64-manylinux_2_31", "aarch64-manylinux_2_31", "aarch64-apple-darwin")
MACOS = {"MACOSX_DEPLOYMENT_TARGET": "14.0"}
# The version of torch that the others are chosen for. Where an index offers its CPU build, nothing else comes with it.
TORCH = "torch==2.13.0"
# A build of torch names the exact versions of these, so a constraint on them would exclude its other builds.
# setuptools comes with Python's environments.
FROM_TORCH = re.compile(r"(triton|cuda-|nvidia-(?!ml-py)|setuptools)")
HEADER = """\
# A tested set of versions for every supported Python: pip install -c constraints.txt ...
# Written by `python .ci/constraints.py --write`. What comes with a build of torch (triton, CUDA) is left to it.
"""
MOST_AT_ONCE = 8
# Extras that bring many packages, and have no pins: tests of them are skipped where they are not installed.
APART = {"dask", "remote"}


class Case(NamedTuple):
    """What one machine installs."""

    python: str
    platform: str
    lowest: bool = False  # with the lowest versions that setup.cfg promises, in place of the constraints

    @property
    def text(self) -> str:
        how = " with the lowest versions" if self.lowest else " -c constraints.txt"
        return f"molprof[test]{how}, Python {self.python}, {self.platform}"


def cases() -> Iterator[Case]:
    """Yield the extra `test` everywhere; its lowest versions on the oldest Python.

    It includes all other extras but those `APART`, so what fits it fits each of them; what fits with constraints fits
    without.
    """
    for python, platform in itertools.product(PYTHONS, PLATFORMS):
        yield Case(python, platform)
    yield Case(PYTHONS[0], PLATFORMS[0], lowest=True)


def left_out() -> set[str]:
    """Extras that `test` does not include."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    extras = parser["options.extras_require"]
    included, waiting = set(), ["test"]
    while waiting:
        name = waiting.pop()
        included.add(name)
        waiting += re.findall(r"molprof\[(\w+)\]", extras[name])
    required = set(re.findall(r"molprof\[(\w+)\]", parser["options"]["install_requires"]))
    return set(extras) - included - required - APART


def run(arguments: Sequence[str], given: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    for name in ("UV_CACHE_DIR", "UV_NATIVE_TLS"):  # where uv keeps files and finds certificates, not what it chooses
        if name in os.environ:
            environment[name] = os.environ[name]
    line = [find_uv_bin(), *arguments, "--quiet", "--no-config", "--no-python-downloads"]
    return subprocess.run(line, input=given, env=environment | MACOS, capture_output=True, text=True, check=False)


def problem(case: Case, wheel: Path) -> str | None:
    """Why nothing can be installed in this case; None if it can."""
    line = ["pip", "compile", "-", "--python-version", case.python, "--python-platform", case.platform]
    line += ["--only-binary", ":all:", "--python", sys.executable]  # so uv looks for no other
    line += ["--resolution", "lowest-direct"] if case.lowest else ["--constraints", str(CONSTRAINTS)]
    done = run(line, f"molprof[test] @ {wheel.as_uri()}")
    return None if done.returncode == 0 else done.stderr.strip()


def write(folder: Path) -> None:
    """Write versions that fit every environment: those of now where they fit, else the newest."""
    requirement, found = folder / "torch.txt", folder / "found.txt"
    requirement.write_text(TORCH)
    found.write_text(CONSTRAINTS.read_text())  # uv keeps what stands in the output file
    line = ["pip", "compile", str(ROOT / "setup.cfg"), "--extra", "test", "--universal", "--no-annotate", "--no-header"]
    done = run([*line, "--python-version", PYTHONS[0], "--constraints", str(requirement), "--output-file", str(found)])
    if done.returncode:
        sys.exit(done.stderr)
    pins = [pin for pin in found.read_text().splitlines() if not FROM_TORCH.match(pin)]
    CONSTRAINTS.write_text(HEADER + "".join(f"{pin}\n" for pin in pins))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make constraints.txt anew first")
    arguments = parser.parse_args()
    if others := left_out():
        sys.exit(f"the extra `test` does not include {', '.join(sorted(others))}")
    reached = run(["pip", "compile", "-"], "click")
    if reached.returncode:
        print(f"no package index can be reached, so what people install is not checked: {reached.stderr.strip()}")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.write:
            write(folder)
        built = run(["build", "--wheel", "--out-dir", name, str(ROOT)])
        if built.returncode:
            sys.exit(built.stderr)
        (wheel,) = folder.glob("*.whl")
        asked = list(cases())
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            found = list(pool.map(lambda case: problem(case, wheel), asked))
    bad = [(case, text) for case, text in zip(asked, found, strict=True) if text is not None]
    for case, text in bad:
        print(f"cannot be installed: {case.text}\n{text}\n")
    print(f"{len(asked) - len(bad)} of {len(asked)} installations resolve")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
