"""What commands show: titles, notes, tables of raw values with their units, plots. Formats turn it into text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from molprof.common.values import NOT_RECORDED, Range, Unit, Value, by_unit

_LEFT: tuple[Unit, ...] = ("text", "name")


@dataclass(frozen=True)
class Cell:
    """A value whose unit is not that of its column.

    Attributes:
        noise: noise explains the value, a ratio of times. Formats show ~ in its place.
    """

    value: Value | Range
    unit: Unit
    noise: bool = False


@dataclass(frozen=True)
class Column:
    """A heading and the unit of the cells below it.

    Attributes:
        joined: a wide table is not split between this column and the one before it.
    """

    title: str = ""
    unit: Unit = "text"
    joined: bool = False

    @property
    def numeric(self) -> bool:
        """Whether it holds numbers, which stand right."""
        return self.unit not in _LEFT


@dataclass(frozen=True)
class Table:
    """Rows of raw values. Text may come from traces: each format escapes it. Leading spaces indent a row's first cell.

    Attributes:
        marked: numbers of the rows that stand out.
        keys: how many columns each piece of a wide table repeats.
        missing: what stands for None.
        wide: the result of a query: lines may have any length.
    """

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Value | Range | Cell]]
    marked: frozenset[int] = frozenset()
    keys: int = 1
    missing: str = NOT_RECORDED
    wide: bool = False

    @property
    def titled(self) -> bool:
        """Whether it has headings; without any it holds names and what there is to say about each."""
        return any(column.title for column in self.columns)

    @property
    def shown(self) -> bool:
        """Whether formats show it: without rows only where a query gave none."""
        return bool(self.rows) or self.wide

    def cells(self) -> Iterator[list[Cell]]:
        """Rows whose cells all have their unit."""
        for row in self.rows:
            yield [
                item if isinstance(item, Cell) else Cell(item, column.unit)
                for item, column in zip(row, self.columns, strict=True)
            ]

    def text(self, cell: Cell) -> str:
        """A cell as people read it."""
        if cell.value is None:
            return self.missing
        return "~" if cell.noise else by_unit(cell.unit, cell.value)


@dataclass(frozen=True)
class Plot:
    """A plot for formats that show pictures.

    Attributes:
        svg: draws it as an element without background. Raises TraceError where its data is not recorded.
    """

    caption: str
    svg: Callable[[], str]


@dataclass(frozen=True)
class Section:
    """A heading, then notes, a table, a plot and further sections; any of them may be empty.

    Attributes:
        detail: not every reader needs it: formats fold it, or show its first rows alone.
        page_only: too long for a terminal: only a page shows it.
    """

    title: str
    notes: tuple[str, ...] = ()
    table: Table | None = None
    plot: Plot | None = None
    parts: tuple[Section, ...] = ()
    detail: bool = False
    page_only: bool = False


@dataclass(frozen=True)
class Document:
    """A subject as every format renders it.

    Attributes:
        data: the documented JSON of the subject.
        records: rows for CSV; None: one row for each path and leaf of `data`.
        warnings: what a reader must know before any figure.
        summary: the answer in a few sentences.
    """

    title: str
    sections: tuple[Section, ...]
    data: Callable[[], Any]
    records: Callable[[], Table] | None = None
    warnings: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()


def pairs(rows: Sequence[Sequence[Value | Range | Cell]]) -> Table:
    """Names and what there is to say about each, without headings."""
    return Table((Column(), Column()), rows)
