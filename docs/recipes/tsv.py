"""Documents as tab-separated text: every table, for tools that split at tabs; other texts are comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from molprof.analysis.render.table import shown_sections
from molprof.common.document import Document, Section
from molprof.common.text import escaped


def render(document: Document) -> str:
    """Return the document, ending with a newline."""
    texts = _comments((document.title, *document.warnings, *document.summary))
    return "".join(f"{line}\n" for line in [*texts, *_lines(document.sections)])


def _lines(sections: Iterable[Section]) -> Iterator[str]:
    for section in shown_sections(sections):
        yield from _comments((section.title, *section.notes))
        if (table := section.table) is not None and table.shown:
            titles = [[column.title for column in table.columns]] if table.titled else []
            for row in [*titles, *(map(table.text, cells) for cells in table.cells())]:
                yield "\t".join(map(escaped, row))
        yield from _lines(section.parts)


def _comments(texts: Iterable[str]) -> Iterator[str]:
    return (f"# {escaped(text)}" for text in texts if text)
