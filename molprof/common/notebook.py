"""What a notebook shows of a result: the page that commands write, in a frame of its own."""

from __future__ import annotations

import html
from collections.abc import Callable

_HEIGHT_PX = 640
_makers: list[Callable[[object], str]] = []


def pages_by(make: Callable[[object], str]) -> None:
    """Sets what makes the page of a result, as HTML. The results stand below what renders them, and know it by this."""
    _makers[:] = [make]


def in_frame(result: object) -> str | None:
    """The page of a result as HTML for a notebook; None where nothing makes pages."""
    if not _makers:
        return None
    page = html.escape(_makers[0](result))
    return f'<iframe srcdoc="{page}" style="width: 100%; height: {_HEIGHT_PX}px; border: 0"></iframe>'
