"""Options of commands that run models, and types of their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from molprof.commands.options import Read, with_options
from molprof.common.errors import UsageError
from molprof.common.setting import Setting
from molprof.common.settings import SETTINGS
from molprof.profiler.models.architecture import NAMED

_F = TypeVar("_F", bound=Callable[..., Any])
_SIZES = " or ".join(f"{size} ({preset})" for preset, sizes in NAMED.items() for size in sizes)
# A text in which `\n` and `\t` are a newline and a tab, as shells do not make them.
_PATTERN = Read(lambda text: text.replace("\\n", "\n").replace("\\t", "\t"), "PATTERN")


def check_arguments(arguments: Sequence[str], used: bool) -> None:
    """Check that a processor of the user takes the values of `--processor-arg`."""
    if arguments and not used:
        raise UsageError("--processor-arg is for a processor of your own", hint="--processor package.module:Class")


class Seconds(click.FloatRange):
    """A time limit: a finite number above 0."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the seconds; not a finite number is an error."""
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


def pair(name: str, example: str, least: int | None = None) -> Read:
    """Return a type for two whole numbers around a sign; with `least`, at least that and in ascending order."""

    def numbers(text: str) -> tuple[int, int]:
        match = re.fullmatch(rf"([0-9]+){name.strip(ascii_letters)}([0-9]+)", text)
        first, last = map(int, match.groups()) if match else (0, 0)
        if match is None or (least is not None and not least <= first <= last):
            raise ValueError(f"{text!r} is not {name}, such as {example}")
        return first, last

    return Read(numbers, name)


def setting_option(row: Setting, **changes: Any) -> Callable[[_F], _F]:
    """Return the option of a setting; `changes` override the table."""
    details: dict[str, Any] = {"help": row.help, "metavar": row.metavar, "required": row.required}
    flag, default, unset = row.flag, row.default, row.unset
    if row.kind == "text":
        default, unset = None, row.default
    if row.type is bool and row.optional:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    elif row.type is bool:
        details["is_flag"] = True
    elif get_origin(row.type) is tuple and Ellipsis in get_args(row.type):
        details["multiple"] = True
    elif row.accepted is not None:
        details["type"] = click.Choice(row.accepted)
    else:
        kinds = {"file": click.Path(), "text": _PATTERN, None: row.type}
        details["type"] = kinds[row.kind] if row.type in (str, int, float) else pair(str(row.metavar), "20:39")
    if unset:
        details |= {"default": None, "help": f"{row.help}  [default: {unset}]"}
    elif default is not None and row.type in (str, int, float):
        details |= {"default": default, "show_default": True}
    details |= changes
    details["help"] = details["help"].replace("{sizes}", _SIZES) or None
    return click.option(flag, row.name, **details)


def format_options(function: _F) -> _F:
    """Add `--prompt-format` and `--answer-format`, None unless given."""
    return with_options(function, *(setting_option(SETTINGS[name]) for name in ("prompt_format", "answer_format")))


def whole_options(function: _F) -> _F:
    """Add `--schema`, `--regex` and `--choices`, None unless given."""
    text = "Show the freedom that this JSON schema leaves, in place of coordinates."
    more = (setting_option(SETTINGS[name]) for name in ("regex", "choices"))
    return with_options(function, setting_option(SETTINGS["schema"], help=text), *more)


def sampling_asked(context: click.Context) -> str | None:
    """Return the kind of sampling: that of --sampling, else `sample` if the command line has a sampling option."""
    of_sampling = (name for name, row in SETTINGS.items() if row.recorded == "sampling_parameters")
    names = [name for name in of_sampling if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    sampling: str | None = context.params["sampling"]
    if not names or sampling not in (None, "greedy"):
        return sampling
    if context.get_parameter_source("sampling") is ParameterSource.COMMANDLINE:
        raise UsageError(f"{SETTINGS[names[0]].flag} does nothing with --sampling greedy", hint="--sampling sample")
    return "sample"
