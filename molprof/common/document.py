"""What every text format renders: sections of aligned columns, cells already formatted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """A column's heading; numbers stand right, text left. Only text may be cut to fit a width."""

    title: str
    align: Literal["left", "right"] = "right"


# A name and what there is to say about it, without headings.
PAIR = (Column("", "left"), Column("", "left"))


@dataclass(frozen=True)
class Section:
    """A heading, then notes, then a table; any of the three may be empty.

    Cells hold text from traces as it is: the renderer of each format escapes it. `detail` says that not every reader
    wants it: formats that can fold a section do.
    """

    title: str
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    detail: bool = False


@dataclass(frozen=True)
class Document:
    """A title and sections, in order."""

    title: str
    sections: tuple[Section, ...]
