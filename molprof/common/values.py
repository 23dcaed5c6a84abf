"""Numbers and names as text: units, thousands separators, short kernel names."""

from __future__ import annotations

import datetime
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

NOT_RECORDED = "not recorded"
_N = TypeVar("_N", int, float)

# A value of a table; None: not recorded.
Value = str | int | float | None
# Its lowest and highest.
Range = tuple[float, float]
# name: of a kernel or operator, which may be shortened. path: of modules, operators in each other, or a file and its
# function, whose beginning is left out where it does not fit. ratio: of a whole, so percent; factor: of two values.
# index: a number of something, not an amount. change_*: a difference, with its sign. bytes: in powers of 1000.
# raw: as SQL gave it.
Unit = Literal[
    "text", "name", "path", "ns", "change_ns", "bytes", "ratio", "change_ratio", "factor", "count", "number", "index",
    "speed", "probability", "raw",
]  # fmt: skip

# By the end of a column's name.
_UNITS: dict[str, Unit] = {"_ns": "ns", "bytes": "bytes", "_ratio": "ratio"}

# What C++ kernel names repeat without telling kernels apart.
_KERNEL_NOISE = (
    "void ",
    "at::native::",
    "(anonymous namespace)::",
    "gpu_kernel_impl_nocast<",
    "gpu_kernel_impl<",
    "binary_internal::",
    "c10::",
)
_MODULE_NUMBER = re.compile(r"_\d+(?=/|$)")
# A lambda in a lambda in a function: the last one's arguments are the type that the kernel is made for.
_LAMBDAS = re.compile(
    r"\([^()]*\)(?:::\{lambda\([^()]*\)#\d+\}::operator\(\)\([^()]*\) const)*::\{lambda\(([^()]*)\)#\d+\}"
)
_OUTER_FOLDERS = re.compile(r"^.*/(?=[^/(]+/[^/(]+\(\d+\): )")


def by_unit(unit: Unit, value: Value | Range) -> str:
    """Return a value as people read it: numbers with three significant digits, counts whole."""
    if isinstance(value, tuple):
        return " to ".join(by_unit(unit, end) for end in value)
    if value is None:
        return NOT_RECORDED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return short_name(value) if unit == "name" else short_source(value) if unit == "path" else value
    return _FORMATS[unit](value)


def unit_of(name: str) -> Unit:
    """Return the unit of the numbers in a column, by its name."""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "number")


time_text = partial(by_unit, "ns")
signed_time_text = partial(by_unit, "change_ns")
bytes_text = partial(by_unit, "bytes")
count_text = partial(by_unit, "count")
number_text = partial(by_unit, "number")
speed_text = partial(by_unit, "speed")
percent_text = partial(by_unit, "ratio")
signed_percent_text = partial(by_unit, "change_ratio")
factor_text = partial(by_unit, "factor")


def counted(value: float | None, noun: str, ending: str = "s") -> str:
    """Return a count with its noun, in the singular for one: `1 block`, `1,234 blocks`."""
    return f"{count_text(value)} {noun}{'' if value == 1 else ending}"


def numbered(value: float, noun: str, ending: str = "s") -> str:
    """Return a mean with its noun: `1 launch`, `2.5 launches`."""
    return f"{number_text(value)} {noun}{'' if value == 1 else ending}"


def class_names(path: str) -> str:
    """Return modules without their numbers: Model/Linear of Model_0/Linear_3."""
    return _MODULE_NUMBER.sub("", path)


def short_name(name: str) -> str:
    """Return a kernel's name without its arguments and the parts that all names of its kind share."""
    if not any(noise in name for noise in _KERNEL_NOISE):
        return name
    for noise in _KERNEL_NOISE:
        name = name.replace(noise, "")
    return _without_arguments(_LAMBDAS.sub(r"(\1)", name))


def short_source(name: str) -> str:
    """Return a Python function, `file(line): name`, without the outer folders of its file."""
    return _OUTER_FOLDERS.sub("", name)


def _without_arguments(name: str) -> str:
    """Return the text up to the first parenthesis outside angle brackets, without a type before the name.

    Brackets inside template arguments belong to these; in parentheses there, `<` and `>` may compare.
    """
    angles = parentheses = begin = 0
    for index, letter in enumerate(name):
        if letter == "(" and not angles and index > begin:
            return name[begin:index]
        if letter in "()":
            parentheses += 1 if letter == "(" else -1
        elif letter in "<>" and not parentheses:
            angles += 1 if letter == "<" else -1
        elif letter == " " and not angles and name[:index].endswith("::type"):
            begin = index + 1
    return name[begin:]


def per(part: float | None, whole: float | None) -> float | None:
    """Return `part` over `whole`; None if either is not recorded or `whole` is 0."""
    return part / whole if part is not None and whole else None


def width(value: str) -> int:
    """Return the columns of `value` on a terminal: wide East Asian characters two, combining ones none."""
    if value.isascii():
        return len(value)
    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in value
    )


def cut(value: str, size: int, unit: Unit = "text") -> str:
    """Return `value` in at most `size` columns: its end is cut off, of a path its beginning."""
    if width(value) <= size:
        return value
    is_path = unit == "path"
    kept = value[1 - size :] if is_path else value[: size - 1]
    while width(kept) > size - 1:
        kept = kept[1:] if is_path else kept[:-1]
    return "…" + kept if is_path else kept + "…"


def percentile(ascending: Sequence[_N], percent: int) -> _N | None:
    """Return a percentile by nearest rank; None of too few values: 10 for the 90th, 100 for the 99th."""
    count = len(ascending)
    enough = count >= 100 / min(percent, 100 - percent) or (percent == 50 and count > 0)
    return ascending[-(-percent * count // 100) - 1] if enough else None


def now() -> str:
    """Return the time in ISO format and UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _digits(value: float) -> str:
    """Return three significant digits, but all digits before the point."""
    size = abs(value)
    if size < 0.0995:
        return f"{value:.3g}"
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{decimals}f}"


def _scaled(units: Sequence[str], value: float) -> str:
    """Return a number in the largest of `units`, each 1000 times the one before, with a digit before the point."""
    for power in range(len(units) - 1, 0, -1):
        if abs(value) >= 0.9995 * 1000**power:
            return f"{_digits(value / 1000**power)} {units[power]}"
    return f"{value:.0f} {units[0]}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else _digits(value)


def _percent(ratio: float) -> str:
    """Return a percentage with at most two decimals."""
    percent = 100 * ratio
    if 0 < abs(percent) < 0.005:
        return "< 0.01 %" if percent > 0 else "> -0.01 %"
    decimals = 0 if abs(percent) >= 99.95 or percent == 0 else 1 if abs(percent) >= 9.995 else 2
    return f"{percent + 0.0:,.{decimals}f} %"


def _signed(text: Callable[[float], str], value: float) -> str:
    shown = text(value)
    return f"+{shown}" if value > 0 and shown[0] != "<" else shown


def _raw(value: float) -> str:
    """Return a number without separators, with three decimals if it is not whole."""
    if isinstance(value, int):
        return str(value)
    if math.isfinite(value) and abs(value) >= 1e-3:
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{value:.3g}"


_time = partial(_scaled, ("ns", "µs", "ms", "s"))
_FORMATS: dict[Unit, Callable[[float], str]] = {
    "text": _number,
    "name": _number,
    "path": _number,
    "ns": _time,
    "change_ns": partial(_signed, _time),
    "bytes": partial(_scaled, ("B", "kB", "MB", "GB")),
    "ratio": _percent,
    "change_ratio": partial(_signed, _percent),
    "factor": lambda value: f"{_digits(value)}x",
    "count": "{:,.0f}".format,
    "number": _number,
    "index": str,
    "speed": _digits,
    "probability": _digits,
    "raw": _raw,
}


def plain(value: Any) -> Any:
    """Return a value with tuples as lists, on all levels."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
