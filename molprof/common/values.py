"""Numbers and names as text: units, thousands separators, short kernel names."""

from __future__ import annotations

import datetime
import math
import unicodedata
from collections.abc import Callable
from typing import Literal

NOT_RECORDED = "not recorded"

# A value of a table; None: not recorded.
Value = str | int | float | None
# Its lowest and highest.
Range = tuple[float, float]
# name: of a kernel or operator, which may be shortened. ratio: of a whole, so percent; factor: of two values.
# index: a number of something, not an amount. change_ns: a difference of times. raw: as SQL gave it.
Unit = Literal[
    "text", "name", "ns", "change_ns", "bytes", "ratio", "factor", "count", "number", "index", "speed", "probability",
    "raw",
]  # fmt: skip

_NS_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_BYTE_UNITS = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"))
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


def time_text(value_ns: float | None) -> str:
    """Nanoseconds with three significant digits, in the largest unit that leaves one before the point."""
    if value_ns is None:
        return NOT_RECORDED
    for size, unit in _NS_UNITS:
        if abs(value_ns) >= 0.9995 * size:
            return f"{_digits(value_ns / size)} {unit}"
    return f"{value_ns:.0f} ns"


def signed_time_text(value_ns: float | None) -> str:
    """A difference in time, with its sign."""
    return f"+{time_text(value_ns)}" if value_ns is not None and value_ns > 0 else time_text(value_ns)


def signed_percent_text(value_ratio: float | None) -> str:
    """A part of a difference, in percent of it, with its sign."""
    text = percent_text(value_ratio)
    return f"+{text}" if value_ratio is not None and value_ratio > 0 else text


def bytes_text(value_bytes: float | None) -> str:
    """Bytes in powers of 1000."""
    if value_bytes is None:
        return NOT_RECORDED
    for size, unit in _BYTE_UNITS:
        if abs(value_bytes) >= 0.9995 * size:
            return f"{_digits(value_bytes / size)} {unit}"
    return f"{value_bytes:.0f} B"


def count_text(value: float | None) -> str:
    """An integer with thousands separators."""
    return NOT_RECORDED if value is None else f"{value:,.0f}"


def counted(value: float | None, noun: str) -> str:
    """A count with its noun, in the singular for one: `1 block`, `1,234 blocks`."""
    return f"{count_text(value)} {noun}{'' if value == 1 else 's'}"


def number_text(value: float | None) -> str:
    """A number with three significant digits; whole where it is whole."""
    if value is None:
        return NOT_RECORDED
    return f"{value:,.0f}" if float(value).is_integer() else _digits(value)


def speed_text(value: float | None) -> str:
    """A measured speed with three significant digits."""
    return NOT_RECORDED if value is None else _digits(value)


def percent_text(value_ratio: float | None) -> str:
    """A ratio as a percentage with three significant digits, at most two decimals."""
    if value_ratio is None:
        return NOT_RECORDED
    percent = 100 * value_ratio
    if 0 < percent < 0.005:
        return "< 0.01 %"
    decimals = 0 if abs(percent) >= 99.95 or abs(percent) < 0.005 else 1 if abs(percent) >= 9.995 else 2
    return f"{percent + 0.0:,.{decimals}f} %".replace("-0 %", "0 %")


def factor_text(value: float | None) -> str:
    """A ratio of two values as a factor."""
    return NOT_RECORDED if value is None else f"{_digits(value)}x"


def by_unit(unit: Unit, value: Value | Range) -> str:
    """A value as people read it."""
    if isinstance(value, tuple):
        return " to ".join(by_unit(unit, end) for end in value)
    if value is None:
        return NOT_RECORDED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return short_name(value) if unit == "name" else value
    return _FORMATS[unit](value)


def column_unit(column: str) -> Unit:
    """The unit of a table's numbers, by the suffix of their column."""
    if column == "bytes":
        return "bytes"
    suffixes: dict[str, Unit] = {"_ns": "ns", "_bytes": "bytes", "_ratio": "ratio"}
    return next((unit for suffix, unit in suffixes.items() if column.endswith(suffix)), "number")


def column_title(column: str) -> str:
    """`mean_delay_ns` as `mean delay`: units stand in the cells."""
    if column == "gpu_ns":
        return "GPU time"
    for suffix in ("_ns", "_bytes"):
        column = column.removesuffix(suffix)
    return column.replace("_ratio", " share").replace("_", " ")


def short_name(name: str) -> str:
    """A kernel's name without what all of its kind have in common, arguments left out."""
    if not any(noise in name for noise in _KERNEL_NOISE):
        return name
    for noise in _KERNEL_NOISE:
        name = name.replace(noise, "")
    return _without_arguments(name)


def _without_arguments(name: str) -> str:
    """Cut at the first parenthesis outside angle brackets: those inside belong to template arguments."""
    depth = 0
    for place, letter in enumerate(name):
        if letter in "<>":
            depth += 1 if letter == "<" else -1
        elif letter == "(" and depth == 0 and place > 0:
            return name[:place]
    return name


def per(part: float | None, whole: float | None) -> float | None:
    """`part` over `whole`; None where either is not recorded or `whole` is 0."""
    return part / whole if part is not None and whole else None


def width(value: str) -> int:
    """Columns that `value` takes on a terminal: wide East Asian characters two, combining ones none."""
    if value.isascii():
        return len(value)
    return sum(_character_width(character) for character in value)


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _digits(value: float) -> str:
    """Three significant digits; more before the point where a number has them."""
    size = abs(value)
    if size < 0.0995:
        return f"{value:.3g}"
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{decimals}f}"


def now() -> str:
    """The time in ISO format and UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _raw(value: float) -> str:
    """Three decimals where a number is not whole, and no separators."""
    if isinstance(value, int):
        return str(value)
    if math.isfinite(value) and abs(value) >= 1e-3:
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{value:.3g}"


_FORMATS: dict[Unit, Callable[[float], str]] = {
    "text": number_text,
    "name": number_text,
    "ns": time_text,
    "change_ns": signed_time_text,
    "bytes": bytes_text,
    "ratio": percent_text,
    "factor": factor_text,
    "count": count_text,
    "number": number_text,
    "index": str,
    "speed": speed_text,
    "probability": "{:.3f}".format,
    "raw": _raw,
}
