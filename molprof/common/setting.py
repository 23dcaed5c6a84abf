"""One setting: declares a field's accepted values, its option, its row of reports, and its effect on the work.

Its type says which values it accepts: `Literal` all of them, `msgspec.Meta` the least and the most. `rows` returns
what is declared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from molprof.common.errors import UsageError

# What of a run's work a setting decides:
# forward: what a forward computes for given rows, and what else runs in the phase `forward` (see
#   profiler/recording/marks.py), such as processors that `generate` makes of its own settings. Runs that differ in
#   it never do equal work.
# tokens: which tokens may be chosen, and how. Forwards of other tokens are equal work.
# input: which prompts, in which batches, for how many steps. A trace tells it by the shapes of its batches.
# nothing: how often the work is repeated, and what is recorded of it.
Decides = Literal["forward", "tokens", "input", "nothing"]
# What a difference means to a comparison of runs; see `Figure.role`.
Role = Literal["subject", "setting", "work"]
_KEY = "setting"


class Setting(NamedTuple):  # a dataclass takes longer to import
    """A setting. `rows` fills in what the field itself says: `name` and the fields after it."""

    decides: Decides
    help: str = ""  # of its option
    unset: str = ""  # for the help of an option without a default of its own: what applies where it is not given
    check: Callable[[Any], tuple[str, str] | None] | None = None  # the message and the hint of a value not accepted
    flag: str = ""  # the option; empty: the name with dashes
    metavar: str | None = None  # of the option
    # file: a path; text: a text in which `\n` is a newline, and whose default the model may replace
    kind: Literal["file", "text", None] = None
    label: str = ""  # its row of reports and comparisons; empty: it has none of its own
    role: Role | None = None  # of that row
    quiet: bool = False  # that row is left out where all runs have the default
    recorded: str = ""  # the key of a report's `setup` that tells it; empty: its name
    name: str = ""
    default: Any = None
    type: Any = None  # of a value: `bool`, `int`, `float`, `str`, or a tuple of them
    optional: bool = False  # None is a value
    required: bool = False  # it has no default
    accepted: tuple[str, ...] | None = None  # all values
    least: float | None = None
    most: float | None = None  # of a number, or of the numbers of a tuple

    @property
    def reported(self) -> bool:
        """True if a report holds it: for its row, or to decide whether work is equal."""
        return bool(self.label) or self.decides in ("forward", "tokens")

    def check_value(self, value: Any) -> None:
        """Raise UsageError if the setting does not accept `value`."""
        if value is None and self.optional:
            return
        if self.accepted is not None:
            one_of(self.name.replace("_", "-"), value, self.accepted)
        if self.least is not None:
            at_least(self.flag, min(value) if isinstance(value, tuple) else value, self.least)
        if self.most is not None and (largest := max(value) if isinstance(value, tuple) else value) > self.most:
            raise UsageError(
                f"{self.flag} {largest} is above {self.most}", hint=f"{self.flag}: a whole number up to {self.most}"
            )
        if self.check is not None and (problem := self.check(value)) is not None:
            raise UsageError(*problem)


def setting(default: Any = MISSING, *, decides: Decides, **row: Any) -> Any:
    """Return a field of a dataclass that is a setting; the arguments are those of `Setting`.

    Without `default` it is required.

    `decides` has no default, so that no setting counts as equal work because it was forgotten.
    """
    return field(default=default, metadata={_KEY: Setting(decides=decides, **row)})


@functools.cache
def rows(kind: type[Any]) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by name, in its order.

    Raises TypeError for a field that is not declared as a setting.
    """
    types = get_type_hints(kind, include_extras=True)
    return MappingProxyType({item.name: _row(kind.__name__, item, types[item.name]) for item in fields(kind)})


def _row(kind: str, declared: Field[Any], annotation: Any) -> Setting:
    row: Setting | None = declared.metadata.get(_KEY)
    name, default = declared.name, declared.default
    if row is None:
        raise TypeError(f"{kind}.{name} is not declared with setting(decides=...)")
    if bool(row.label) != (row.role is not None):
        raise TypeError(f"{kind}.{name}: a label requires a role, and a role a label")
    values = get_args(annotation) if get_origin(annotation) in (UnionType, Union) else (annotation,)
    given = next(value for value in values if value is not NoneType)
    accepted = get_args(given) if get_origin(given) is Literal else None
    number = get_args(given)[0] if get_origin(given) is tuple else given
    numbers = next((item for item in get_args(number) if isinstance(item, Meta)), None)
    completed: Setting = row._replace(
        name=name,
        flag=row.flag or f"--{name.replace('_', '-')}",
        recorded=row.recorded or name,
        default=None if default is MISSING else default,
        type=str if accepted else _plain(given),
        optional=NoneType in values,
        required=default is MISSING,
        accepted=accepted,
        least=numbers and numbers.ge,
        most=numbers and numbers.le,
    )
    return completed


def _plain(annotation: Any) -> Any:
    """Return a type without what `Meta` says of it, of a tuple too."""
    if get_origin(annotation) is tuple:
        return tuple[tuple(map(_plain, get_args(annotation)))]  # type: ignore[misc]
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def one_of(name: str, value: str, accepted: tuple[str, ...]) -> None:
    """Raise UsageError if `value` is none of `accepted`."""
    if value not in accepted:
        raise UsageError(f"no {name} {value!r}", hint=f"use one of: {', '.join(accepted)}")


def at_least(name: str, value: int, least: float) -> None:
    """Raise UsageError if `value` is below `least`."""
    if value < least:
        raise UsageError(f"{name} {value} is below {least}", hint=f"{name}: a whole number from {least} on")


def key_value(option: str, text: str, example: str) -> tuple[str, str]:
    """Return the key and the value of an option's text `KEY=VALUE`. Raises UsageError for another form."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"{option} {text!r} is not KEY=VALUE", hint=f"e.g. {option} {example}")
    return key, value


def key_values(option: str, texts: Iterable[str], example: str) -> dict[str, str]:
    """Return the values of an option's texts by key. Raises UsageError if a key is given twice."""
    values: dict[str, str] = {}
    for key, value in (key_value(option, text, example) for text in texts):
        if key in values:
            raise UsageError(f"{option} {key} is given twice", hint="a list is JSON: KEY=[1,2]")
        values[key] = value
    return values
