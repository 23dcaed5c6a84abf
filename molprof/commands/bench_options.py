"""Options of the benchmarks: those of a grid, and those that every benchmark has."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from molprof.commands.run_options import Pair, Seconds, argument_option, format_options
from molprof.commands.submission import submit_options
from molprof.common.settings import AUTO, DTYPES, SAMPLING
from molprof.profiler.bench.cases import BACKENDS, MASKS
from molprof.profiler.bench.grids import DIMENSIONS, PHASES, Benchmark, read_shape, values_of
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
_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)
_DTYPE = click.option("--dtype", type=click.Choice(DTYPES), default=AUTO, show_default=True)
SDPA_OPTIONS = (
    click.option("--shape", "shapes", type=Values(read=read_shape), metavar="BxHxKxSxD,...",
                 help="Batch, heads, KV heads, sequence, head size, e.g. 4x16x16x2048x64.  [default: by device]"),
    _listed("--backend", "backends", BACKENDS, ",".join(BACKENDS), "Kernels; auto leaves the choice to torch."),
    _listed("--phase", "phases", PHASES, ",".join(PHASES), "prefill: as many queries as keys, decode: one query."),
    _listed("--mask", "masks", MASKS, "none,padding",
            "none (a prefill is causal then), causal, or padding: a tensor as of a padded batch."),
    _DTYPE,
)  # fmt: skip
_GENERATION_OPTIONS = (
    click.option("--tokenizer", metavar="NAME", help="Tokenizer of all models.  [default: the model's own]"),
    click.option("--size", metavar="SIZE", help="Size of the presets, as of molprof capture."),
    click.option("-n", "count", type=_AT_LEAST_1, metavar="N",
                 help="Generate at least N molecules, rounded up to full batches.  [default: the largest batch]"),
    click.option("--smiles", type=Molecules(), metavar="FILE[:COLUMN]",
                 help="SMILES, one per line, or CSV, TSV, JSON or pickle, as of molprof capture."),
    click.option("--prompts", type=_FILE, metavar="FILE", help="One plain-text prompt per line: no molecules."),
    argument_option,
    format_options,
    click.option("--max-new-tokens", type=_AT_LEAST_1, metavar="N", help="Generate at most N tokens per sequence."),
    click.option("--warmup", type=_AT_LEAST_1, default=1, show_default=True, metavar="N",
                 help="Warm-up passes of a process."),
    click.option("--passes", type=_AT_LEAST_1, default=1, show_default=True, metavar="N",
                 help="Timed passes of a process."),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model from the hub."),
    click.option("--sampling", type=click.Choice(SAMPLING), default="greedy", show_default=True),
    click.option("--temperature", type=float, default=1.0, show_default=True, help="As in capture."),
    click.option("--top-p", type=float, help="As in capture."),
    click.option("--top-k", type=int, help="As in capture."),
    click.option("--min-p", type=float, help="As in capture."),
    _DTYPE,
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
    click.option("--device", default=AUTO, show_default=True, metavar="NAME", help="auto, cpu, cuda or cuda:N."),
    click.option("--threads", type=_AT_LEAST_1, metavar="N", help="CPU threads for torch.  [default: one per core]"),
    click.option("--share", type=Pair("K/N", "1/4", least=1), help="Run every N-th case, from the K-th on."),
    submit_options,
    click.option("--tasks", type=_AT_LEAST_1, metavar="N",
                 help="With --submit: split the cases into N tasks of a job array.  [default: 1]"),
)  # fmt: skip


def generation_options(benchmark: Benchmark) -> tuple[Callable[[_F], _F], ...]:
    """Return the options of a benchmark of whole generation: its grid, and what all its cases share."""
    values = values_of(benchmark)
    grid = (
        click.option(
            item.option, item.setting, type=Values(item.choices, item.read), help=item.help, show_default=True,
            default=_list(values[item.setting], item.choices),
        )
        for item in DIMENSIONS
    )  # fmt: skip
    return *grid, *_GENERATION_OPTIONS


def _list(values: Sequence[object], choices: Sequence[str] | None) -> str:
    """As it is given on the command line."""
    texts = [_text(value) for value in values]
    return ALL if choices is not None and texts == list(choices) else ",".join(texts)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)
