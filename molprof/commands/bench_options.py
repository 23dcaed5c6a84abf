"""Options of the benchmarks: those of a grid, and those that every benchmark has."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from molprof.commands.run_options import Pair, Seconds, setting_option
from molprof.commands.submission import submit_options
from molprof.common.setting import Setting, rows
from molprof.common.settings import SETTINGS
from molprof.profiler.bench.cases import BACKENDS, MASKS, GenerateCase
from molprof.profiler.bench.grids import AXES, PHASES, Benchmark, read_shape, values_of
from molprof.profiler.molecules.files import split_column

_F = TypeVar("_F", bound=Callable[..., Any])
ALL = "all"
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class Values(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs only since 8.5
    """Values with commas between them; `all` stands for all `choices`."""

    def __init__(self, choices: Sequence[str] | None = None, read: Callable[[str], Any] = str) -> None:
        self._choices, self._read = choices, read
        self.name = "N,M,..." if read is int else "A,B,..."

    def convert(
        self, value: str | tuple[Any, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        items = [item.strip() for item in value.split(",") if item.strip()]
        if not items:
            self.fail("names no value", param, ctx)
        if self._choices is not None:
            items = list(self._choices) if items == [ALL] else items
            for item in items:
                if item not in self._choices:
                    self.fail(f"{item!r} is not one of {', '.join(self._choices)}, {ALL}", param, ctx)
        try:
            return tuple(dict.fromkeys(map(self._read, items)))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers", param, ctx)


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


class Molecules(click.Path):
    """FILE or FILE:COLUMN with molecules; the file, made absolute, exists."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, resolve_path=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path, column = split_column(str(value))
        found = os.fsdecode(super().convert(str(path), param, ctx))
        return found if column is None else f"{found}:{column}"


def _listed(option: str, name: str, choices: Sequence[str], default: str, text: str) -> Callable[[_F], _F]:
    return click.option(option, name, type=Values(choices), default=default, show_default=True, help=text)


_AT_LEAST_1 = click.IntRange(1)
SDPA_OPTIONS = (
    click.option("--shape", "shapes", type=Values(read=read_shape), metavar="BxHxKxSxD,...",
                 help="Batch, heads, KV heads, sequence, head size, e.g. 4x16x16x2048x64.  [default: by device]"),
    _listed("--backend", "backends", BACKENDS, ",".join(BACKENDS), "Kernels; auto leaves the choice to torch."),
    _listed("--phase", "phases", PHASES, ",".join(PHASES), "prefill: as many queries as keys, decode: one query."),
    _listed("--mask", "masks", MASKS, "none,padding",
            "none (a prefill is causal then), causal, or padding: a tensor as of a padded batch."),
    setting_option(SETTINGS["dtype"]),
)  # fmt: skip
# Of every benchmark; the fields of `bench_run.Running`.
RUNNING_OPTIONS = (
    click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path),
                 help="Add results to FILE, one JSON line each (.jsonl)."),
    click.option("--resume", is_flag=True, help="Leave out cases that FILE has of this machine."),
    click.option("--retry", is_flag=True, help="With --resume: run cases again that were not ok."),
    click.option("--dry-run", "--list", "dry_run", is_flag=True, help="List the cases and run none."),
    click.option("--repeats", type=_AT_LEAST_1, default=3, show_default=True, metavar="N",
                 help="Processes per case, interleaved with those of the other cases."),
    click.option("--seed", default=0, show_default=True, help="Seed for the random order of cases."),
    click.option("--limit", type=Seconds(), default=600.0, show_default=True, metavar="SECONDS",
                 help="Kill a case that takes longer; it has timed out."),
    click.option("--memory-limit", type=Bytes(), metavar="SIZE",
                 help="Kill a case that has more resident memory, such as 12G.  [default: 80 % of what is free]"),
    click.option("--no-bisect", "bisect", flag_value=False, default=True,
                 help="Do not search for the largest batch that fits if a case is out of memory."),
    setting_option(SETTINGS["device"]),
    click.option("--threads", type=_AT_LEAST_1, metavar="N", help="CPU threads for torch.  [default: one per core]"),
    click.option("--share", type=Pair("K/N", "1/4", least=1), help="Run every N-th case, from the K-th on."),
    submit_options,
    click.option("--tasks", type=_AT_LEAST_1, metavar="N",
                 help="With --submit: split the cases into N tasks of a job array.  [default: 1]"),
)  # fmt: skip


def generation_options(benchmark: Benchmark) -> tuple[Callable[[_F], _F], ...]:
    """Return the options of a benchmark of whole generation: its grid, and what all its cases share."""
    values = values_of(benchmark)
    shared = (row for row in rows(GenerateCase).values() if row.bench)
    return *(_axis_option(row, values[name]) for name, row in AXES.items()), *map(_shared_option, shared)


def _axis_option(row: Setting, values: Sequence[object]) -> Callable[[_F], _F]:
    choices = ("off", "on") if row.type is bool else row.accepted
    texts = list(map(_text, values))
    default = ALL if choices is not None and texts == list(choices) else ",".join(texts)
    kind = Values(choices, int if row.type is int and not row.optional else functools.partial(_value, row))
    return click.option(row.flag, row.name, type=kind, help=row.axis or row.help, default=default, show_default=True)


def _shared_option(row: Setting) -> Callable[[_F], _F]:
    changes = {"smiles": Molecules(), "prompts": click.Path(exists=True, dir_okay=False, resolve_path=True)}
    kind = changes.get(row.name, None if row.least is None else click.IntRange(row.least))
    return setting_option(row, **({} if kind is None else {"type": kind}))


def _value(row: Setting, text: str) -> Any:
    """A value by its text on the command line, as `_text` writes it."""
    if row.optional and text == "none":
        return None
    return text == "on" if row.type is bool else row.type(text)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)
