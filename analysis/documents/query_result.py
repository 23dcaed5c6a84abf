"""Results of a query as a document: values as SQL gave them, in the unit of their column."""

from __future__ import annotations

from molprof.analysis.frame import Frame
from molprof.analysis.query import QueryResult
from molprof.common.document import Document, Section, Table
from molprof.common.values import counted


def query_document(result: QueryResult) -> Document:
    """Return one table for each result. Formats that hold one table raise UsageError for several."""
    sections = tuple(Section("", (counted(len(frame), "row"),), _table(frame)) for frame in result.frames)
    return Document("", sections, lambda: result.frame.to_json(), lambda: _table(result.frame))


def _table(frame: Frame) -> Table:
    return frame.table(raw=True, missing="", wide=True)
