"""Documents: titles, notes, tables of raw values with units, plots. Formats turn them into text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from molprof.common.values import NOT_RECORDED, Range, Unit, Value, by_unit


class Cell(Struct, frozen=True):
    """A value whose unit is not that of its column."""

    value: Value | Range
    unit: Unit
    noise: bool = False  # noise explains the value, a ratio of times: formats show ~ in its place


Row = Sequence[Value | Range | Cell]


class Column(Struct, frozen=True):
    """A heading and the unit of the cells below it."""

    title: str = ""
    unit: Unit = "text"
    joined: bool = False  # a wide table is not split between this column and the one before it

    @property
    def numeric(self) -> bool:
        """True if it holds numbers, which are aligned right."""
        return self.unit not in ("text", "name", "path")


class Table(Struct, frozen=True):
    """Rows of raw values. Texts may come from traces: formats escape them. Leading spaces indent a first cell."""

    columns: tuple[Column, ...]
    rows: Sequence[Row]
    marked: frozenset[int] = frozenset()  # numbers of the rows that stand out
    links: Mapping[int, str] = {}  # from numbers of rows to names of the sections that show more
    keys: int = 1  # first columns, which each piece of a wide table repeats
    missing: str = NOT_RECORDED  # what stands for None
    wide: bool = False  # lines may have any length: results of queries, paths to copy
    narrow: bool = False  # texts beside names wrap early, for a small window
    # Groups of rows that a screen leaves out where it has no room, the first of them first.
    spare: tuple[tuple[int, ...], ...] = ()
    # More of them, in rounds: of a round, what any section has goes before what any has of the next.
    later: tuple[tuple[tuple[int, ...], ...], ...] = ()
    # Titles of columns that a text leaves out where a table is too wide for it, the first of them first.
    spare_columns: tuple[str, ...] = ()

    @property
    def titled(self) -> bool:
        """True if it has headings; without any it holds names, each with its text."""
        return any(column.title for column in self.columns)

    @property
    def shown(self) -> bool:
        """True if formats show it: without rows only if it is a query's result."""
        return bool(self.rows) or self.wide

    def cells(self) -> Iterator[list[Cell]]:
        """Yield rows whose cells all have their unit."""
        for row in self.rows:
            yield [
                item if isinstance(item, Cell) else Cell(item, column.unit)
                for item, column in zip(row, self.columns, strict=True)
            ]

    def text(self, cell: Cell) -> str:
        """Return a cell as people read it."""
        if cell.value is None:
            return self.missing
        return "~" if cell.noise else by_unit(cell.unit, cell.value)


class Plot(Struct, frozen=True):
    """A plot for formats that show pictures."""

    caption: str
    # Draws an element without background. Raises TraceError where its data is not recorded.
    svg: Callable[[], str]
    across: bool = False  # a column is narrow for it


class Section(Struct, frozen=True):
    """A heading, then notes, a table, a plot and further sections; any of them may be empty."""

    title: str
    notes: tuple[str, ...] = ()
    table: Table | None = None
    plot: Plot | None = None
    parts: tuple[Section, ...] = ()
    detail: bool = False  # not every reader needs it: formats fold it, or show its first rows alone
    page_only: bool = False  # too long for a terminal
    text_only: bool = False  # a page has a plot of it
    name: str = ""  # by which another section links to it: of a table of a report, the name of its query
    link: str = ""  # the name of the section that shows more


class Document(Struct, frozen=True):
    """A subject as every format renders it."""

    title: str
    sections: tuple[Section, ...]
    data: Callable[[], Any]  # the subject by its documented names, as what `to_builtins` takes
    records: Callable[[], Table] | None = None  # rows for CSV; None: a row for each path and leaf of `data`
    warnings: tuple[str, ...] = ()  # what a reader must know before any figure
    summary: tuple[str, ...] = ()  # the answer in a few sentences
    # What most readers need, on one screen: text formats show it in place of `sections` unless all is asked for, a page
    # shows it open above the others, which it folds. None: all sections are needed.
    screen: tuple[Section, ...] = ()
    lead: Section | None = None  # the table that the summary is about: texts begin with it

    def json(self) -> Any:
        """Return the documented JSON of the subject."""
        return to_builtins(self.data(), enc_hook=_plain)


def warned(document: Document, lines: Iterable[str]) -> Document:
    """Return the document with these warnings before its own."""
    return replace(document, warnings=tuple(dict.fromkeys((*lines, *document.warnings))))


# A column declared: its title, its unit, and what gives its values. That is a function of an item, or the name of an
# attribute, key or place in a sequence, several with dots between (`phase.wall_ns`, `1.count`), by default the title.
# What is looked up in None is None.
Field = tuple[str, Unit] | tuple[str, Unit, str | Callable[[Any], Any]]


def columns(*fields: Field) -> tuple[Column, ...]:
    """Return the headings of fields."""
    return tuple(Column(field[0], field[1]) for field in fields)


def table_of(items: Iterable[Any], *fields: Field, **how: Any) -> Table:
    """Return a row for each item, a column for each field. how: what else a `Table` has."""
    return Table(columns(*fields), values(items, *fields), **how)


def values(items: Iterable[Any], *fields: Field) -> list[tuple[Any, ...]]:
    """Return the values of the fields for each item."""
    getters = [_getter(field[2] if len(field) == 3 else field[0].replace(" ", "_")) for field in fields]
    return [tuple(get(item) for get in getters) for item in items]


# A name in JSON: that of an attribute or key, or with what gives its value, as in a `Field`. Third are the names in
# that value, or in each item of a list.
Name = str | tuple[str, str | Callable[[Any], Any]] | tuple[str, str | Callable[[Any], Any], Sequence["Name"]]


def objects(items: Iterable[Any], *names: Name) -> list[Any]:
    """Return the dicts of several items, for JSON; None for None."""
    each = ((name, name) if isinstance(name, str) else name for name in names)
    getters = {name: _inner(where, *inside) for name, where, *inside in each}
    return [None if item is None else {name: get(item) for name, get in getters.items()} for item in items]


def named(item: Any, *names: Name) -> dict[str, Any]:
    """Return the dict of one item, for JSON."""
    (fields,) = objects([item], *names)
    return fields  # type: ignore[no-any-return]


def records(items: Iterable[Any], **how: Any) -> Table:
    """Return a column for each JSON name that an item has, with the values as they are. how: fields of `Table`.

    What else a `Table` has.
    """
    rows: list[dict[str, Any]] = to_builtins(list(items), enc_hook=_plain)
    names = list(dict.fromkeys(name for item in rows for name in item))
    return Table(tuple(map(Column, names)), [tuple(map(item.get, names)) for item in rows], **how)


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python."""
    return value.item()


def _inner(where: str | Callable[[Any], Any], names: Sequence[Name] = ()) -> Callable[[Any], Any]:
    get = _getter(where)

    def inner(item: Any) -> Any:
        value = get(item)
        return objects(value, *names) if type(value) in (list, tuple) else named(value, *names)

    return inner if names else get


def _getter(where: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    if callable(where):
        return where
    names = [int(name) if name.isdigit() else name for name in where.split(".")]

    def get(item: Any) -> Any:
        for name in names:
            if item is not None:
                item = item[name] if isinstance(name, int) or isinstance(item, dict) else getattr(item, name)
        return item

    return get


def pairs(rows: Sequence[Row], wide: bool = False, narrow: bool = False) -> Table:
    """Return a table of names, each with its text, without headings."""
    return Table((Column(), Column()), rows, wide=wide, narrow=narrow)


def last_rows(count: int, least: int = 0) -> tuple[tuple[int, ...], ...]:
    """Return all of so many rows but the first ones as spare, the last of them first."""
    return tuple((index,) for index in range(count - 1, least - 1, -1))
