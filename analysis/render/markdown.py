"""Documents as GitHub-flavoured Markdown."""

from __future__ import annotations

import re

from molprof.analysis.render.document import Document, Section
from molprof.text import escaped

# All that could start markup inside a line; `<` and `&` would be read as HTML, `$` as a formula.
_SPECIAL = re.compile(r"([\\`*_\[\]<>&|~#$])")


def to_markdown(document: Document) -> str:
    """The document, ending with a newline."""
    blocks = [f"# {cell_text(document.title)}"]
    for section in document.sections:
        blocks.extend(_section(section))
    return "\n\n".join(blocks) + "\n"


def cell_text(value: str) -> str:
    """`value` so that Markdown shows it as it is, in a table cell too."""
    return _SPECIAL.sub(r"\\\1", escaped(value))


def _section(section: Section) -> list[str]:
    blocks = [f"## {cell_text(section.title)}"] if section.title else []
    if section.notes:
        blocks.append("\n".join(f"- {cell_text(note)}" for note in section.notes))
    if section.rows:
        header = _row([column.title for column in section.columns])
        rule = "| " + " | ".join("---" if column.align == "left" else "---:" for column in section.columns) + " |"
        blocks.append("\n".join([header, rule, *(_row(list(row)) for row in section.rows)]))
    return blocks


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell_text(cell.strip()) for cell in cells) + " |"
