"""Documents as GitHub-flavoured Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from molprof.analysis.render.table import shown_rows, shown_sections
from molprof.common.document import Column, Document, Section, Table
from molprof.common.text import escaped
from molprof.common.values import cut

# All that could start markup inside a line; `<` and `&` would be read as HTML, `$` as a formula.
_SPECIAL = re.compile(r"([\\`*_\[\]<>&|~#$])")
# Nobody reads more of a kernel's name, and a table of whole names is wider than a page. Results of queries are whole.
_LONGEST_CELL = 80


def render(document: Document) -> str:
    """Return the document, ending with a newline; its headings suit a pull request or a comment."""
    blocks = [f"## {literal(document.title)}"] if document.title else []
    warnings = [f"> **Warning:** {literal(line)}" for line in document.warnings]
    summary = [_list(document.summary)] if document.summary else []
    if document.lead is None:
        blocks += [*warnings, *summary]
    else:  # as a text has them
        blocks += [*_section(document.lead, 3), *summary, *warnings]
    blocks.extend(block for section in shown_sections(document.sections) for block in _section(section, 3))
    return "\n\n".join(blocks) + "\n"


def literal(value: str) -> str:
    """Return `value` escaped so that Markdown shows it as it is, also in a table cell."""
    return _SPECIAL.sub(r"\\\1", escaped(value))


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {literal(line)}" for line in lines)


def _section(section: Section, level: int) -> list[str]:
    notes, blocks = section.notes, []
    if section.table is not None and section.table.shown:
        rows, more = shown_rows(section)
        notes = (*notes, *more)
        if section.table.titled:
            blocks.append(_table(section.table, rows))
        else:
            notes = (*notes, *(f"{row[0]}: {row[-1]}" if row[0] else row[-1] for row in rows))
    if notes:
        blocks.insert(0, _list(notes))
    blocks += [block for part in shown_sections(section.parts) for block in _section(part, level + 1)]
    if section.detail:
        # Inside the summary HTML counts, not Markdown; what is between empty lines is Markdown again.
        return [f"<details><summary>{html.escape(escaped(section.title))}</summary>", *blocks, "</details>"]
    return [f"{'#' * level} {literal(section.title)}", *blocks] if section.title else blocks


def _table(table: Table, rows: Sequence[Sequence[str]]) -> str:
    header = [column.title for column in table.columns]
    rule = " | ".join("---:" if column.numeric else "---" for column in table.columns)
    lines = [_row(header, table), f"| {rule} |"]
    lines += [_row(row, table, number in table.marked) for number, row in enumerate(rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str], table: Table, marked: bool = False) -> str:
    texts = [_cell(cell, column, table.wide) for cell, column in zip(cells, table.columns, strict=True)]
    if marked:
        texts[0] = f"**{texts[0]}**"
    return f"| {' | '.join(texts)} |"


def _cell(cell: str, column: Column, whole: bool) -> str:
    """Return a cell; leading spaces of a name say that it belongs to the one above."""
    text = cell.strip()
    indent = "" if column.numeric or not text else "&nbsp;" * (len(cell) - len(cell.lstrip(" ")))
    return indent + literal(text if whole else cut(text, _LONGEST_CELL, column.unit))
