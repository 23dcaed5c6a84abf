"""Options of the benchmarks: lists of values, and what all of them take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from molprof.commands.options import Seconds
from molprof.commands.submission import submit_options
from molprof.common.settings import AUTO, DTYPES
from molprof.profiler.bench.grids import ALL, NO_PROCESSOR

_F = TypeVar("_F", bound=Callable[..., Any])
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class Values(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs only since 8.5
    """Values with commas between them; `all` for every one where they are of a fixed choice."""

    def __init__(self, accepted: Sequence[str] | None = None, read: Callable[[str], Any] = str, name: str = "") -> None:
        self._accepted, self._read = accepted, read
        self.name = name or "A,B,..."

    def convert(
        self, value: str | tuple[Any, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        items = [item.strip() for item in value.split(",") if item.strip()]
        if not items:
            self.fail("names no value", param, ctx)
        if self._accepted is not None:
            if items == [ALL]:
                return tuple(map(self._read, self._accepted))
            for item in items:
                if item not in self._accepted:
                    self.fail(f"{item!r} is not one of {', '.join(self._accepted)}, {ALL}", param, ctx)
        try:
            return tuple(dict.fromkeys(map(self._read, items)))
        except ValueError:
            self.fail(f"{value!r} is not {self.name}", param, ctx)


class Bytes(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, with K, M, G or T for powers of 1000."""

    name = "SIZE"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = value.strip().upper().removesuffix("B").removesuffix("I")
        unit = text[-1:] if text[-1:] in _SIZES else ""
        try:
            size = round(float(text.removesuffix(unit)) * _SIZES[unit])
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a size such as 12G", param, ctx)
        if size <= 0:
            self.fail(f"{value!r} is not above 0", param, ctx)
        return size


class Share(click.ParamType):  # type: ignore[type-arg]
    """`K/N`: the K-th of N shares, from 1."""

    name = "K/N"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        first, slash, last = value.partition("/")
        if not (slash and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
            self.fail(f"{value!r} is not a share such as 1/4", param, ctx)
        return int(first), int(last)


def on_off(text: str) -> bool:
    """`on` or `off`."""
    return {"on": True, "off": False}[text]


def processor(text: str) -> str | None:
    """A processor's name; `none` as None."""
    return None if text == NO_PROCESSOR else text


def running_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every benchmark takes: where results go, repeats, limits, what to do with earlier results."""
    for option in reversed(
        [
            click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path),
                         help="Results are added to FILE, one JSON line each (.jsonl)."),
            click.option("--resume", is_flag=True, help="Leave out what FILE has of this machine already."),
            click.option("--retry", is_flag=True, help="With --resume: run again what was not ok."),
            click.option("--dry-run", "--list", "dry_run", is_flag=True, help="Show the cases and run none."),
            click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, metavar="N",
                         help="Processes per case, interleaved with those of the other cases."),
            click.option("--seed", default=0, show_default=True, help="Of the order in which cases run."),
            click.option("--limit", type=Seconds(), default=600.0, show_default=True,
                         metavar="SECONDS", help="A case that takes longer is killed, and counts as hung."),
            click.option("--memory-limit", type=Bytes(), metavar="SIZE",
                         help="Resident memory of a case, such as 12G.  [default: 80 % of what is free]"),
            click.option("--no-bisect", "bisect", flag_value=False, default=True,
                         help="Do not look for the largest batch where a case is out of memory."),
            click.option("--device", default=AUTO, show_default=True, metavar="NAME",
                         help="auto, cpu, cuda or cuda:N."),
            click.option("--threads", type=click.IntRange(1), metavar="N",
                         help="CPU threads for torch.  [default: one per core]"),
            click.option("--share", type=Share(), metavar="K/N", help="Every N-th case, from the K-th."),
            click.option("--tasks", type=click.IntRange(1), metavar="N",
                         help="With --submit: as a job array of so many shares.  [default: 1]"),
        ]
    ):  # fmt: skip
        command = option(command)
    return submit_options(command)


def dtype_option(command: _F) -> _F:
    """`--dtype`."""
    return click.option("--dtype", type=click.Choice(DTYPES), default=AUTO, show_default=True)(command)
