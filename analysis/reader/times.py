"""Exact nanoseconds from the decimal microseconds of a trace."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

_COMMA, _DOT, _ZERO, _NINE = b",.09"
# A float64 of 1.7e15 us resolves 250 ns only, so digits are added up as integers.
_MAX_DIGITS = 15  # before the point, or one more: sums of 10**15 us in ns still fit an int64
_MAX_DECIMALS = 3


def nanoseconds(texts: Sequence[bytes]) -> np.ndarray:
    """Return the int64 nanoseconds of numbers of microseconds, each as its JSON text (`1.5`, `"1.5"`, `15e-1`).

    Rounds half to even beyond three decimals. Raises ValueError(reason, position in `texts`).
    """
    if not texts:
        return np.empty(0, dtype=np.int64)
    if (alike := _of_one_layout(texts)) is not None:
        return alike
    text = np.frombuffer(b",".join(texts) + b",", dtype=np.uint8)
    commas = np.flatnonzero(text == _COMMA)
    dots = np.flatnonzero(text == _DOT)
    is_digit = (text >= _ZERO) & (text <= _NINE)
    starts = np.empty_like(commas)
    starts[0] = 0
    starts[1:] = commas[:-1] + 1
    # Where the point is, or the end of a number without one.
    points = commas.copy()
    owners = np.searchsorted(commas, dots)
    points[owners] = dots
    before, behind = points - starts, commas - points
    plain = (
        len(commas) == len(texts)
        and np.count_nonzero(is_digit) + len(commas) + len(dots) == len(text)
        and np.all(owners[1:] != owners[:-1])  # sorted, as the dots are
        and np.all((before > 0) & (before <= _MAX_DIGITS + 1) & (behind <= _MAX_DECIMALS + 1) & (behind != 1))
    )
    if not plain:
        return _one_by_one(texts)
    numbers = np.repeat(np.arange(len(commas)), commas - starts + 1)
    exponents = points[numbers] - np.arange(len(text))  # 1 at the unit digit, 0 at the point
    exponents = np.where(exponents > 0, exponents - 1, exponents) + _MAX_DECIMALS
    powers = 10 ** np.arange(_MAX_DIGITS + 1 + _MAX_DECIMALS, dtype=np.int64)
    parts = np.where(is_digit, text.astype(np.int64) - _ZERO, 0) * powers[exponents * is_digit]
    result = np.add.reduceat(parts, starts)
    return result if result.min() >= 0 else _one_by_one(texts)  # it passed int64


def _of_one_layout(texts: Sequence[bytes]) -> np.ndarray | None:
    """Return the same if all numbers have their point at the same position, as times of a trace do; else None."""
    joined = b",".join(texts) + b","
    width = len(joined) // len(texts)
    point = joined.find(b".", 0, width)
    decimals = width - point - 2
    if width * len(texts) != len(joined) or not (0 < point <= _MAX_DIGITS + 1 and 0 < decimals <= _MAX_DECIMALS):
        return None
    table = np.frombuffer(joined, dtype=np.uint8).reshape(len(texts), width)
    digits = table - _ZERO  # uint8: smaller characters wrap around
    digits[:, point] = digits[:, -1] = 0
    if digits.max() > 9 or np.any(table[:, point] != _DOT) or np.any(table[:, -1] != _COMMA):
        return None
    result = np.asarray(digits @ _powers(width, point))
    return result if result.min() >= 0 else None  # it passed int64


@functools.lru_cache(maxsize=256)
def _powers(width: int, point: int) -> np.ndarray:
    """Return the value in ns of each digit of a number, int64; 0 for the point and after the last digit."""
    exponents = [*range(_MAX_DECIMALS + point - 1, _MAX_DECIMALS - 1, -1), *range(_MAX_DECIMALS - 1, -1, -1)]
    powers = [10**exponent for exponent in exponents]
    return np.array([*powers[:point], 0, *powers[point : width - 2], 0], dtype=np.int64)


def _one_by_one(texts: Sequence[bytes]) -> np.ndarray:
    result = np.empty(len(texts), dtype=np.int64)
    for position, raw in enumerate(texts):
        text = bytes(raw).decode("utf-8", "replace").strip().strip('"')
        try:
            value = Decimal(text)
            # Checked before the digits are written out, as of 1e999999999.
            if value and value.adjusted() > _MAX_DIGITS:
                raise ValueError
            result[position] = int((value * 1000).to_integral_value())
        except (ArithmeticError, ValueError):  # from Decimal, from numpy beyond int64
            raise ValueError(f"{text[:40]!r} is not a time in microseconds", position) from None
    return result
