"""Documents as one HTML page that fetches nothing: a template over sections.

The template engine escapes everything on output, after invisible characters were made visible. Only the SVG of plots
(analysis/documents/plots/style.py), the style sheet and the script go in as they are. The page's own policy forbids
every other style, script and request: it names the hash of each style of the plots.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import unescape
from importlib.resources import files
from itertools import islice
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from molprof import __version__
from molprof.common.document import Cell, Document, Section, Table
from molprof.common.errors import TraceError
from molprof.common.text import escaped

# A page of more rows is slow to open, and nobody reads them; JSON and SQL have all.
ROWS = 500
# Where a long name may go on in the next line: behind punctuation, and before a capital.
_BREAKS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[/_,:.<>(=])(?=[^\W\d])")


def render(document: Document) -> str:
    """Return the document as one HTML page."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: escaped(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    used: set[str] = set()
    style, script = _file("page.css"), _file("page.js")
    # The last one is on commands.
    lead = [] if document.lead is None else [document.lead]
    screen = list(_views([*lead, *(item for item in document.screen[:-1] if not item.text_only)], used))
    views = list(_views([section for section in document.sections if section not in document.screen], used))
    styles = {style, *_styles(screen), *_styles(views)}
    return environment.from_string(_file("page.html")).render(
        page=document,
        screen=screen,
        views=views,
        names={item.name: item.title for top in document.sections for item in (top, *top.parts) if item.name},
        rows=_rows,
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        policy=(
            f"default-src 'none'; style-src 'unsafe-hashes' {' '.join(sorted(map(_digest, styles)))}; "
            f"script-src {_digest(script)}; img-src data:; base-uri 'none'; form-action 'none'"
        ),
    )


def _views(sections: Sequence[Section], used: set[str]) -> Iterator[dict[str, Any]]:
    """Yield sections as the template shows them, with an id, a drawn plot if its data is recorded, and their parts."""
    for section in sections:
        name = section.name or re.sub(r"\W+", "-", section.title.lower(), flags=re.ASCII).strip("-") or "section"
        while name in used:
            name += "-more"
        used.add(name)
        view: dict[str, Any] = {"id": name, "section": section, "notes": section.notes, "svg": None}
        if section.table is not None and (more := len(section.table.rows) - ROWS) > 0:
            view["notes"] += (f"first {ROWS} rows; --format json has {more:,} more",)
        if section.plot is not None:
            with suppress(TraceError):
                view["svg"] = Markup(section.plot.svg())
        yield {**view, "parts": list(_views(section.parts, used))}


def _styles(views: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield style elements and attributes of plots."""
    for view in views:
        yield from map(unescape, re.findall(r'(?: style="|<style[^>]*>)([^"<]*)', view["svg"] or ""))
        yield from _styles(view["parts"])


def _rows(table: Table) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows; each cell has text, level in a tree, sort value, and the whole text if shortened."""
    for row in islice(table.cells(), ROWS):
        yield [_cell(table, cell) for cell in row]


def _cell(table: Table, cell: Cell) -> dict[str, Any]:
    text = table.text(cell)
    spaces = len(text) - len(text.lstrip(" "))
    shown = Markup("<wbr>").join(map(escaped, _BREAKS.split(text.strip())))
    level = max(1, spaces // 2) if spaces else 0
    return {"text": text, "shown": shown, "level": level, "sort": _sort_value(cell), "full": _full(table, cell)}


def _sort_value(cell: Cell) -> Any:
    """Return the value to sort a cell by; empty, which goes last, where nothing is recorded."""
    value = cell.value[0] if isinstance(cell.value, tuple) else cell.value
    return "" if value is None or value == "-" else value


def _full(table: Table, cell: Cell) -> str | None:
    if cell.noise:
        return table.text(Cell(cell.value, cell.unit))
    return cell.value if cell.unit in ("name", "path") and table.text(cell) != cell.value else None  # type: ignore[return-value]


def _file(name: str) -> str:
    return files(__package__).joinpath(f"page/{name}").read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the name of an inline style or script in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
