"""Text that came from outside, made safe to print."""

from __future__ import annotations


def escaped(value: str) -> str:
    """`value` on one line: control, format and other invisible characters as `\\x1b`, `\\u202e` and so on.

    A trace is untrusted, and a terminal obeys what it is sent: no escape sequence and no direction
    mark of a name may reach it.
    """
    if value.isascii() and value.isprintable():
        return value
    return "".join(_escaped(character) for character in value)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    # Python's own escapes: \n, \x1b, \u202e. A lone surrogate could not even be written.
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
