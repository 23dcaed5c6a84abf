"""Documents as GitHub-flavoured Markdown."""

from __future__ import annotations

import html
import re

from molprof.common.document import Column, Document, Section
from molprof.common.text import escaped

# All that could start markup inside a line; `<` and `&` would be read as HTML, `$` as a formula.
_SPECIAL = re.compile(r"([\\`*_\[\]<>&|~#$])")

# Of a kernel's name no more is read, and a table of whole names is wider than a page.
_LONGEST_CELL = 80


def to_markdown(document: Document) -> str:
    """The document, ending with a newline; headings as they fit into a pull request or a comment."""
    blocks = [f"## {cell_text(document.title)}"]
    for section in document.sections:
        blocks.extend(_folded(section) if section.detail else _section(section))
    return "\n\n".join(blocks) + "\n"


def cell_text(value: str) -> str:
    """`value` so that Markdown shows it as it is, in a table cell too."""
    return _SPECIAL.sub(r"\\\1", escaped(value))


def _section(section: Section) -> list[str]:
    blocks = [f"### {cell_text(section.title)}"] if section.title else []
    return [*blocks, *_content(section)]


def _folded(section: Section) -> list[str]:
    # Inside the summary HTML counts, not Markdown; what is between empty lines is Markdown again.
    title = html.escape(escaped(section.title))
    return [f"<details><summary>{title}</summary>", *_content(section), "</details>"]


def _content(section: Section) -> list[str]:
    blocks = []
    if section.notes:
        blocks.append("\n".join(f"- {cell_text(note)}" for note in section.notes))
    if section.rows:
        header = _row([column.title for column in section.columns], section.columns)
        rule = "| " + " | ".join("---" if column.align == "left" else "---:" for column in section.columns) + " |"
        blocks.append("\n".join([header, rule, *(_row(list(row), section.columns) for row in section.rows)]))
    return blocks


def _row(cells: list[str], columns: tuple[Column, ...]) -> str:
    return "| " + " | ".join(_cell(cell, column) for cell, column in zip(cells, columns, strict=True)) + " |"


def _cell(cell: str, column: Column) -> str:
    """Spaces before a name say that it belongs to the one above; before a number they only align it."""
    text = cell.strip()
    indent = "&nbsp;" * (len(cell) - len(cell.lstrip(" "))) if column.align == "left" and text else ""
    return indent + cell_text(text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…")
