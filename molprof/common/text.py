"""Text from outside, made safe to print."""

from __future__ import annotations

import re

_SHOWN_CHARACTERS = 80
# An escape in JSON: a character of two halves, a half alone, or another.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)


def escaped(value: str) -> str:
    r"""`value` on one line: control, format and other invisible characters as `\x1b`, `\u202e` and so on.

    A trace is untrusted, and a terminal obeys what it is sent: no escape sequence and no direction
    mark of a name may reach it.
    """
    if value.isascii() and value.isprintable():
        return value
    # Python's own escapes: \n, \x1b, \u202e. A lone surrogate could not even be written.
    return "".join(
        item if item.isprintable() else item.encode("unicode_escape", "surrogatepass").decode("ascii") for item in value
    )


def shortened(value: str, most: int = _SHOWN_CHARACTERS) -> str:
    """Return `value` short enough for a message: the first characters of a long one, and its length."""
    if len(value) <= most:
        return value
    return f"{value[:most]}... ({len(value):,} characters)"


def is_utf8(text: str) -> bool:
    """Return True if it has no surrogate characters, as names that are not UTF-8 have."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def whole_json(text: str) -> str:
    r"""JSON in which half of a character, as names that are not UTF-8 hold, is text: `"\ud800"` becomes `"\\ud800"`.

    Readers of JSON refuse it otherwise.
    """
    return _ESCAPE.sub(lambda match: f"\\{match[0]}" if match["half"] else match[0], text)
