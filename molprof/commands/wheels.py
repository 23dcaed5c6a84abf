"""`molprof wheels`: collect the packages that an offline machine lacks for recording, as wheels in a folder."""

from __future__ import annotations

import platform
import re
from functools import partial
from pathlib import Path

import click

from molprof.commands.command import Command
from molprof.commands.options import Read, ResultOptions, folder_option, path_option
from molprof.profiler.wheels import MACHINES, WheelTarget, check_folder, gather, read_there, wheels_document

_ENGINES = ("xgrammar", "llguidance")


def _version(example: str, value: str) -> str:
    if re.fullmatch(r"[0-9]+\.[0-9]+", value) is None:
        raise ValueError(f"{value!r} is not a version such as {example}")
    return value


def _engines(value: str) -> tuple[str, ...]:
    names = tuple(value.split(",")) if value else ()
    for name in names:
        if name not in _ENGINES:
            raise ValueError(f"{name!r} needs no package of its own; {' and '.join(_ENGINES)} do")
    return names


@click.command("wheels", cls=Command)
@click.option(
    "--python", default="3.12", show_default=True, metavar="VERSION", type=Read(partial(_version, "3.12")),
    help="Python there.",
)  # fmt: skip
@click.option(
    "--glibc", default="2.35", show_default=True, metavar="VERSION", type=Read(partial(_version, "2.35")),
    help="C library there: ldd --version.",
)  # fmt: skip
@click.option("--machine", type=click.Choice(MACHINES), default=platform.machine, help="CPU there.  [default: as here]")
@click.option("--have", "packages", multiple=True, metavar="NAME==VERSION", help="A package that is there. Repeatable.")
@path_option("--have-list", "listed", text="All packages that are there: the output of pip list --format freeze.")
@click.option(
    "--processors", metavar="LIST", type=Read(_engines), default=(),
    help="Processors that are packages: xgrammar,llguidance.",
)  # fmt: skip
@click.option("--rdkit", is_flag=True, help="RDKit too, for --smiles and to check every molecule there.")
@click.option("--analysis", is_flag=True, help="What reads traces too.")
@folder_option("Folder for the wheels.", required=True)
@click.option("--force", is_flag=True, help="Replace the wheels in DIR.")
def command(
    python: str,
    glibc: str,
    machine: str,
    packages: tuple[str, ...],
    listed: Path | None,
    processors: tuple[str, ...],
    rdkit: bool,
    analysis: bool,
    folder: Path,
    force: bool,
) -> None:
    """Gather wheels for a machine without a network, with uv and pip.

    DIR gets molprof's own wheel and what recording with the presets requires there, one version of each package.
    torch and what comes with it (triton, NVIDIA's libraries) must be there. Without --have-list, what transformers
    requires counts as there too.

    \b
    Examples:
      molprof wheels --have torch==2.11.0 --have transformers==5.17.0 -o wheels
      molprof wheels --python 3.11 --have-list there.txt --processors xgrammar,llguidance -o wheels
      molprof wheels --have-list there.txt --rdkit --analysis -o wheels
    """
    check_folder(folder, force)
    target = WheelTarget(python, glibc, machine, read_there(packages, listed))
    extras = [name for name, wanted in (("rdkit", rdkit), ("analysis", analysis)) if wanted]
    wheels = gather(target, (*processors, *extras), folder, listed is not None)
    ResultOptions().deliver(wheels_document(wheels, folder))
