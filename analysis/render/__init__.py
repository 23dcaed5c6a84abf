"""Formats: each renders a document to one string, by one module with `render(document)` and one line here."""

from __future__ import annotations

from importlib import import_module

from msgspec.structs import replace

from molprof.common.document import Document
from molprof.common.errors import UsageError

# Module, and ending of its files. Modules are imported when used: only pages need a template engine.
FORMATS = {
    "table": ("molprof.analysis.render.table", ".txt"),
    "markdown": ("molprof.analysis.render.markdown", ".md"),
    "csv": ("molprof.analysis.render.csv", ".csv"),
    "json": ("molprof.analysis.render.json", ".json"),
    "html": ("molprof.analysis.render.html", ".html"),
}


def render(document: Document, form: str = "table", terminal: int | None = None, whole: bool = True) -> str:
    """Return the document in the format `form`, ending with a newline.

    A table for a terminal of so many columns, if given.

    Not `whole`: of the text formats its screen alone, if it has one.

    Raises UsageError for an unknown format, or one that cannot hold the document.
    """
    if form not in FORMATS:
        raise UsageError(f"unknown format {form!r}; known: {', '.join(sorted(FORMATS))}")
    if document.screen and not whole and form in ("table", "markdown"):
        document = replace(document, sections=document.screen, screen=())
    module = import_module(FORMATS[form][0])
    text: str = module.render(document, terminal) if form == "table" else module.render(document)
    return text
