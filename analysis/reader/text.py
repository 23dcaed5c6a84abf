r"""Text and numbers that the engine's JSON reader would change, in a form that it keeps.

The reader of Perfetto v52 decodes only `\"`. It leaves other escapes as they are, a backslash before the closing quote
breaks the file, and integers beyond int64 change. So control characters become their pictures (U+2400...), a backslash
becomes U+29F5, and such a number becomes text.

A name or category of more than MOST_CHARACTERS becomes its beginning, its length and its hash, so that equal ones stay
equal, and different ones different: `void k<int, ... (4000000 characters, sha256 0123456789abcdef)`.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

import msgspec
import numpy as np

_PICTURES = {code: 0x2400 + code for code in range(32)} | {ord("\\"): 0x29F5}
# Of a name. Each is matched with hundreds of patterns, and stands in many tables.
MOST_CHARACTERS = 64 * 1024
_ENDING_CHARACTERS = 64
_INT64 = range(-(2**63), 2**63)
# An integer outside int64 has at least this many digits.
_WIDE_DIGITS = 19
_PADDING = 2 * _WIDE_DIGITS
_ZERO, _NEWLINE, _BACKSLASH, _QUOTE = b'0\n\\"'
_LOWER_CASE = 0x20
_NO_DEVICE = b'"device":null'
# The engine would read true as 1.
_NO_NUMBER = re.compile(rb'("(?:correlation|device|stream|bytes)":\s*)(true|false)\b')
_STRIDE = 9  # so that each run of 19 digits covers two neighbours p, p + 9


def plain_text(text: str) -> str:
    """Replace control characters by their pictures."""
    return text.translate(_PICTURES)


def bounded(text: str) -> str:
    """Return the text; of a long one beginning, length and hash, no longer than MOST_CHARACTERS."""
    if len(text) <= MOST_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{text[: MOST_CHARACTERS - _ENDING_CHARACTERS]}... ({len(text)} characters, sha256 {digest})"


def exact_float(text: str) -> float | str:
    """Return a number of the file; as text beyond float64, such as 1e400, which the engine would drop."""
    value = float(text)
    return text if math.isinf(value) else value


_decode = msgspec.json.Decoder(Any, float_hook=exact_float).decode
_encode = msgspec.json.Encoder().encode


def plain_lines(text: bytes) -> bytes:
    """Return JSON lines in the form that the engine keeps."""
    if _NO_DEVICE in text:
        # A device, unlike a missing one; the engine has no null. Quotes inside a text are escaped.
        text = text.replace(_NO_DEVICE, b'"device":"None"')
    if b"true" in text or b"false" in text:
        text = _NO_NUMBER.sub(rb'\1"\2"', text)
    is_changed = _changed(text)
    if not is_changed.any():
        return text
    lines = text.split(b"\n")
    ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _NEWLINE)
    for number in np.flatnonzero(np.logical_or.reduceat(is_changed, np.append(0, ends[:-1] + 1))).tolist():
        lines[number] = _encode(_plain_value(_decode(lines[number])))
    return b"\n".join(lines)


def _plain_value(value: Any) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, dict):
        return {plain_text(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    if isinstance(value, int) and value not in _INT64:
        return str(value)
    return value


def _changed(text: bytes) -> np.ndarray:
    """Return True for bytes of JSON lines that the engine may change, and for bytes of other long numbers."""
    padding = np.zeros(_PADDING, dtype=np.uint8)
    data = np.concatenate([padding, np.frombuffer(text, dtype=np.uint8), padding])
    is_digit = (data - _ZERO) < 10  # uint8: smaller characters wrap around
    is_changed = np.zeros(len(data), dtype=bool)
    if b"\\" in text:
        np.logical_and(data[:-1] == _BACKSLASH, data[1:] != _QUOTE, out=is_changed[:-1])
    is_changed[_wide_integers(is_digit)] = is_changed[_huge_floats(data, is_digit)] = True
    return is_changed[_PADDING:-_PADDING]


def _huge_floats(data: np.ndarray, is_digit: np.ndarray) -> np.ndarray:
    """Return the exponents of three digits or more; numbers that pass 1e308 with fewer show it by their digits."""
    exponents = np.flatnonzero((data | _LOWER_CASE) == ord("e"))
    exponents = exponents[is_digit[exponents - 1]]
    first = exponents + 1 + (data[exponents + 1] == ord("+"))
    huge: np.ndarray = exponents[is_digit[first] & is_digit[first + 1] & is_digit[first + 2]]
    return huge


def _wide_integers(is_digit: np.ndarray) -> np.ndarray:
    """Return runs of 19 digits or more; quicker than a search by a pattern."""
    stops = is_digit[::_STRIDE]
    starts = np.flatnonzero(stops[:-1] & stops[1:]) * _STRIDE
    for offset in (4, 2, 6, 1, 3, 5, 7, 8):
        starts = starts[is_digit[starts + offset]]
    length = np.full(len(starts), _STRIDE + 1)
    for begin, step in ((starts, -1), (starts + _STRIDE, 1)):
        inside = np.ones(len(starts), dtype=bool)
        for distance in range(1, _STRIDE + 1):
            inside &= is_digit[begin + step * distance]
            length += inside
    return starts[length >= _WIDE_DIGITS]
