"""Options of commands that run models, and values that they take."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from molprof.common.errors import UsageError
from molprof.common.text_format import ANSWER, PROMPT

_F = TypeVar("_F", bound=Callable[..., Any])


class Pattern(click.ParamType):  # type: ignore[type-arg]
    """A text in which `\\n` and `\\t` are a newline and a tab, as shells do not make them."""

    name = "PATTERN"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value.replace("\\n", "\n").replace("\\t", "\t")


def format_options(function: _F) -> _F:
    """`--prompt-format` and `--answer-format`, None where they are not given."""
    prompt = click.option(
        "--prompt-format",
        type=Pattern(),
        metavar="PATTERN",
        help=f"Text of a prompt, with {{smiles}}.  [default: {PROMPT}]",
    )
    answer = click.option(
        "--answer-format",
        type=Pattern(),
        metavar="PATTERN",
        help=f"Text of an answer: tags, and how a coordinate block opens, separates and closes.  [default: {ANSWER}]",
    )
    return prompt(answer(function))


def argument_option(function: _F) -> _F:
    """`--processor-arg`, repeatable."""
    return click.option(
        "--processor-arg",
        "processor_args",
        multiple=True,
        metavar="KEY=VALUE",
        help="Parameter of a processor of your own; VALUE is JSON, or else text. Repeatable.",
    )(function)


def check_arguments(given: Sequence[str], used: bool) -> None:
    """Check that values of `--processor-arg` have a processor of the user's own that takes them."""
    if given and not used:
        raise UsageError("--processor-arg is for a processor of your own", hint="--processor package.module:Class")


class Seconds(click.FloatRange):
    """A time limit: a finite number above 0."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return found


class Pair(click.ParamType):  # type: ignore[type-arg]  # generic in click's stubs only since 8.5
    """Two whole numbers with a sign between them; with `least`, the first is at least that and at most the second."""

    def __init__(self, name: str, example: str, least: int | None = None) -> None:
        self.name, self._example, self._least = name, example, least

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(rf"([0-9]+){self.name.strip(ascii_letters)}([0-9]+)", value)
        first, last = map(int, found.groups()) if found else (0, 0)
        if found is None or (self._least is not None and not self._least <= first <= last):
            self.fail(f"{value!r} is not {self.name}, such as {self._example}", param, ctx)
        return first, last


def sampling_asked(context: click.Context) -> str:
    """The way to sample: as --sampling says, else `sample` where the command line has an option of sampling."""
    of_sampling = ("temperature", "top_p", "top_k", "min_p")
    given = [name for name in of_sampling if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    asked: str = context.params["sampling"]
    if not given or asked != "greedy":
        return asked
    if context.get_parameter_source("sampling") is ParameterSource.COMMANDLINE:
        option = f"--{given[0].replace('_', '-')}"
        raise UsageError(f"{option} does nothing with --sampling greedy", hint="--sampling sample")
    return "sample"
