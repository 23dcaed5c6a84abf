"""Results in a prompt or notebook: as text that commands print, or as the page that they write, in a frame."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Mapping

from molprof.common.text import escaped

_HEIGHT_PX = 640
_ROOM = 100  # columns at a prompt
_makers: list[Callable[[object, str], str]] = []


def shown_by(make: Callable[[object, str], str]) -> None:
    """Set the functions that make the text (`table`) or page (`html`) of a result.

    Results stand below what renders them, and know it by this.
    """
    _makers[:] = [make]


def in_frame(result: object) -> str | None:
    """Return the page of a result as HTML for a notebook; None if no function makes pages."""
    if not _makers:
        return None
    page = html.escape(_makers[0](result, "html"))
    return f'<iframe srcdoc="{page}" style="width: 100%; height: {_HEIGHT_PX}px; border: 0"></iframe>'


def as_text(result: object, otherwise: str) -> str:
    """Return the text of a result for a prompt; `otherwise` if no function makes texts."""
    return _makers[0](result, "table").rstrip("\n") if _makers else otherwise


def named_lines(head: str, texts: Mapping[str, str | None]) -> str:
    """Return a line, followed by texts with their names for a prompt; without None and empty ones."""
    size = 2 + max(map(len, texts))
    rows = [
        textwrap.fill(escaped(text), _ROOM, initial_indent=f"  {name:{size}}", subsequent_indent=" " * (size + 2))
        for name, text in texts.items()
        if text
    ]
    return "\n".join([head, *rows])


def named_rows(head: str, texts: Mapping[str, str | None]) -> str:
    """Return the same as HTML for a notebook."""
    rows = [f"<tr><th>{name}</th><td>{html.escape(escaped(text))}</td></tr>" for name, text in texts.items() if text]
    return f"<p>{html.escape(head)}</p><table>{''.join(rows)}</table>"
