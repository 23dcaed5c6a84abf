"""Documents for a terminal: aligned, at most 100 columns wide. A wider table is split, its keys repeated.

Results of queries are as wide as they are, but where the terminal is known their lines are cut to it.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from molprof.common.document import Column, Document, Section, Table
from molprof.common.text import escaped
from molprof.common.values import Unit, cut, width

WIDTH = 100
# Of tables for a small window. On a narrower terminal lines break: numbers would be cut.
NARROW = 60
# Lines of a screen.
SCREEN = 40
# Rows of a detail.
ROWS = 12
_INDENT, _MARK = "  ", "* "
# So much of a text, and of a text in a key column, is kept before a table is split; so much of a column at all.
_SHORTEST, _SHORTEST_KEY, _LAST = 20, 32, 12
# Lines of a cell.
_LINES = 3
# Kernel names reach a thousand characters; JSON has them whole.
_LONGEST = 60

# The space between a number and its unit: lines do not break there.
_NUMBER = re.compile(r"(?<=\d) (?=(?:[nµm]?s|%|[kMG]?B)(?:\W|$))")

# One piece of a split table: its columns, and the width of each.
_Piece = dict[int, int]


def render(document: Document, terminal: int | None = None) -> str:
    """Return the document as plain text, ending with a newline.

    `terminal` is the number of columns, if it is for one.
    """
    room = WIDTH if terminal is None else max(NARROW, min(WIDTH, terminal))
    title = cut(escaped(document.title), room)
    blocks = [f"{title}\n{'=' * width(title)}"] if title else []
    warnings = [
        "\n".join(cut(words, room) for words in _words(f"WARNING: {escaped(line)}", room, _INDENT))
        for line in document.warnings
    ]
    summary = ["\n".join(_notes(document.summary, room))] if document.summary else []
    if document.lead is None:
        blocks += [*warnings, *summary]
    else:  # the table, what it says, what it does not hold for
        blocks += [*_sections([document.lead], room, terminal), *summary, *warnings]
    whole = list(_flat(document.sections))
    for sections in [whole] if document.screen else _shorter(whole):  # with a screen beside them, all are asked for
        text = "\n\n".join([*blocks, *_sections(sections, room, terminal)]) + "\n"
        if text.count("\n") <= SCREEN:
            break
    return text


def _shorter(sections: list[Section]) -> Iterator[list[Section]]:
    """Yield the sections, then again with ever fewer of their spare rows, those of the last section first."""
    yield sections
    shown: list[list[Section]] = [[section] for section in sections]
    gone: list[set[int]] = [set() for _ in sections]
    tables = [(index, table) for index, section in enumerate(sections) if (table := section.table) is not None]
    for number in range(max((1 + len(table.later) for _, table in tables), default=0)):
        for index, table in reversed(tables):
            for group in (table.spare, *table.later)[number : number + 1]:
                for rows in group:
                    gone[index].update(rows)
                    left = [row for at, row in enumerate(table.rows) if at not in gone[index]]
                    shown[index] = [replace(sections[index], table=replace(table, rows=left))] if left else []
                    yield [section for some in shown for section in some]


def shown_sections(sections: Iterable[Section]) -> Iterator[Section]:
    """Yield the sections that text formats show: no plots, nothing that only a page has."""
    return (section for section in sections if not section.page_only and section.plot is None)


def shown_rows(section: Section) -> tuple[list[list[str]], tuple[str, ...]]:
    """Return a section's rows as text, only the first ones of details, and a note on how many more there are."""
    table = section.table
    if table is None:
        return [], ()
    rows = [[table.text(cell) for cell in row] for row in table.cells()]
    more = len(rows) - ROWS if section.detail else 0
    return (rows[:ROWS], (f"first {ROWS} rows; --format json has {more} more",)) if more > 0 else (rows, ())


def _flat(sections: Iterable[Section]) -> Iterator[Section]:
    for section in shown_sections(sections):
        yield section
        yield from _flat(section.parts)


def _pieces(table: Table, rows: Sequence[Sequence[str]], room: int) -> list[_Piece]:
    """Return the pieces of a table that holds `rows`: the keys, then as many other columns as fit when text is cut."""
    titles = [escaped(column.title) for column in table.columns]
    cells = [max((width(escaped(row[index])) for row in rows), default=0) for index in range(len(titles))]
    widths = {index: max(cells[index], width(title)) for index, title in enumerate(titles)}
    if table.wide:
        return [{index: min(size, _LONGEST) for index, size in widths.items()}]
    if _surplus(widths, table, room) > 0:
        # Titles go over several lines before cells are cut.
        for index, title in enumerate(titles):
            widths[index] = max(cells[index], *map(width, title.split(" ")))
    keys = list(range(table.keys))
    left_out = _left_out(widths, table, room)
    pieces: list[list[int]] = []
    for group in _groups(table):
        if left_out.issuperset(group):
            continue
        wider = [*pieces[-1], *group] if pieces else []
        least = {index: min(widths[index], _least(index, table)) for index in wider}
        if pieces and _surplus(least, table, room) <= 0:
            pieces[-1] = wider
        else:
            pieces.append([*keys, *group])
    return [_fitted({index: widths[index] for index in piece}, table, room) for piece in pieces or [keys]]


def _groups(table: Table) -> Iterator[range]:
    """Yield groups of columns that must not be separated, without the keys."""
    count = len(table.columns)
    starts = [index for index in range(table.keys, count) if index == table.keys or not table.columns[index].joined]
    return (range(*ends) for ends in itertools.pairwise([*starts, count]))


def _left_out(widths: _Piece, table: Table, room: int) -> set[int]:
    """Return the spare columns to leave out so that the table need not be split, or all of them."""
    left_out: set[int] = set()
    for title in table.spare_columns:
        least = {index: min(size, _least(index, table)) for index, size in widths.items() if index not in left_out}
        if _surplus(least, table, room) <= 0:
            break
        left_out.update(index for index, column in enumerate(table.columns) if column.title == title)
    return left_out


def _least(index: int, table: Table) -> int:
    """Return the width down to which a column is cut before a table is split; numbers are not cut."""
    column = table.columns[index]
    is_key = index < table.keys and column.unit != "path"  # the end of a path tells it from others
    return WIDTH if column.numeric else _SHORTEST_KEY if is_key else _SHORTEST


def _surplus(piece: _Piece, table: Table, room: int) -> int:
    """Return by how much a line is too wide."""
    return len(_INDENT) + sum(size + _gap(table.columns[index]) for index, size in piece.items()) - 2 - room


def _gap(column: Column) -> int:
    """Return the number of spaces before a column."""
    return 1 if column.joined else 2


def _fitted(piece: _Piece, table: Table, room: int) -> _Piece:
    """Return the piece, cut so that a line fits.

    The widest text first, then text further, numbers as the last resort.
    """
    limits = {index: _least(index, table) for index in piece}
    # A text wider than the room is the widest until it fits.
    piece |= {index: max(room, limits[index]) for index, size in piece.items() if size > max(room, limits[index])}
    texts = {index: _LAST for index in piece if not table.columns[index].numeric}
    for least in (limits, limits | texts, dict.fromkeys(piece, _LAST)):
        while _surplus(piece, table, room) > 0 and (wide := [index for index in piece if piece[index] > least[index]]):
            piece[max(wide, key=piece.__getitem__)] -= 1
    return piece


def _sections(sections: Sequence[Section], room: int, terminal: int | None) -> Iterator[str]:
    # Tables of the same columns share their widths, so that they stand under each other.
    all_rows: defaultdict[tuple[Column, ...], list[list[str]]] = defaultdict(list)
    for section in sections:
        if section.table is not None:
            all_rows[section.table.columns] += shown_rows(section)[0]
    for section in sections:
        rows, more = shown_rows(section)
        lines = [cut(line, room) for line in _words(escaped(section.title), room, _INDENT)] if section.title else []
        tables: list[str] = []
        if (table := section.table) is not None and table.shown:
            pieces = _pieces(table, all_rows[table.columns], room)
            # Nothing that is shown without a terminal is cut: another program may read it.
            limit = terminal if table.wide and table.titled else None
            if limit is not None and _surplus(pieces[0], table, limit) > 0:
                more += (f"lines are cut to {limit} columns; --format csv has them whole",)
            shown = set().union(*pieces)
            if gone := [column.title for index, column in enumerate(table.columns) if index not in shown]:
                more += (f"No room for: {', '.join(gone)}. --format csv has them.",)
            tables = [_text(table, rows, piece, room, limit) for piece in pieces]
        lines += _notes((*section.notes, *more), room)
        if text := "\n".join([*lines, "\n\n".join(tables)] if tables else lines):
            yield text


def _text(table: Table, rows: Sequence[Sequence[str]], piece: _Piece, room: int, limit: int | None) -> str:
    if not table.titled:
        return "\n".join(line for row in rows for line in _pair(row, table, piece, room))
    # Titles word by word, the last words next to the cells.
    wrapped = {index: _words(escaped(table.columns[index].title), size) for index, size in piece.items()}
    height = max(map(len, wrapped.values()))
    titles = [[""] * (height - len(words)) + words for words in wrapped.values()]
    lines = [_line(cells, table, piece) for cells in zip(*titles, strict=True)]
    lines.append(_line(["-" * size for size in piece.values()], table, piece))
    for number, (row, cells) in enumerate(zip(rows, table.cells(), strict=False)):
        indent = _MARK if number in table.marked else _INDENT
        parts = [_lines_of(row[index], size, cells[index].unit, table) for index, size in piece.items()]
        for texts in itertools.zip_longest(*parts, fillvalue=""):
            lines.append(_line(texts, table, piece, indent))
            indent = _INDENT
    return "\n".join(lines if limit is None else (cut(line, limit) for line in lines))


def _lines_of(text: str, size: int, unit: Unit, table: Table) -> list[str]:
    """Return a cell in lines of at most `size` columns: text is wrapped; names, paths and numbers are cut."""
    text = escaped(text)
    if unit != "text" or table.wide or width(text) <= size:
        return [cut(text, size, unit)]
    begin = text[: len(text) - len(text.lstrip())]
    lines = _words(text.strip(), size - len(begin), _INDENT)
    if len(lines) > _LINES:  # the last one holds all that is left, to be cut
        lines[_LINES - 1 :] = [" ".join(lines[_LINES - 1 :])]
    return [cut(begin + line, size) for line in lines]


def _pair(row: Sequence[str], table: Table, piece: _Piece, columns: int) -> Iterator[str]:
    """Yield a name and its text, in as many lines as that needs."""
    head = _line(row[:1], table, {0: piece[0]})
    indent = len(_INDENT) + piece[0] + _gap(table.columns[1])
    room = (NARROW if table.narrow else columns) - indent
    for line in _words(escaped(row[1]), room):
        yield f"{head:{indent}}{line if table.wide else cut(line, room)}".rstrip()
        head = ""


def _notes(notes: Iterable[str], room: int) -> list[str]:
    room -= len(_INDENT)
    return [_INDENT + cut(line, room) for note in notes for line in _words(escaped(note), room, _INDENT)]


def _words(value: str, size: int, indent: str = "") -> list[str]:
    """Return `value` in lines of at most `size` columns, all but the first indented; longer words alone."""
    lines, line = [], ""
    for word in _NUMBER.sub("\xa0", value).split(" "):
        if line and width(line) + 1 + width(word) > size:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return [item.replace("\xa0", " ") for item in [*lines, line]]


def _line(cells: Sequence[str], table: Table, piece: _Piece, indent: str = _INDENT) -> str:
    line = ""
    for cell, (index, size) in zip(cells, piece.items(), strict=True):
        column = table.columns[index]
        text = cut(escaped(cell), size)
        space = " " * (size - width(text))
        line += " " * _gap(column) if line else indent
        line += space + text if column.numeric else text + space
    return line.rstrip()
