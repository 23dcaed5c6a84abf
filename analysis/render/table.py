"""Documents for a terminal: aligned, at most 100 columns wide. A table that is wider is split, its keys repeated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from molprof.common.document import Column, Document, Section, Table
from molprof.common.text import escaped
from molprof.common.values import width

WIDTH = 100
# Rows of a detail.
ROWS = 12
_INDENT, _MARK = "  ", "* "
_SHORTEST = 12
# So much of a key column is kept before a table is split.
_SHORTEST_KEY = 32
# Kernel names reach a thousand characters; JSON has them whole.
_LONGEST = 60

# The space between a number and its unit: lines do not break there.
_NUMBER = re.compile(r"(?<=\d) (?=(?:[nµm]?s|%|[kMG]?B)(?:\W|$))")

# Pieces of a table: the columns of each, and their sizes.
_Layout = list[tuple[list[int], list[int]]]


def render(document: Document) -> str:
    """The document as plain text, ending with a newline."""
    title = _cut(escaped(document.title), WIDTH)
    blocks = [f"{title}\n{'=' * width(title)}"] if title else []
    blocks.extend("\n".join(_words(f"WARNING: {escaped(line)}", WIDTH, _INDENT)) for line in document.warnings)
    if document.summary:
        blocks.append("\n".join(_notes(document.summary)))
    sections = list(_flat(document.sections))
    layouts = _layouts(sections)
    blocks.extend(block for section in sections if (block := _section(section, layouts)))
    return "\n\n".join(blocks) + "\n"


def shown_sections(sections: Iterable[Section]) -> Iterator[Section]:
    """Those that text formats show: no plots, nothing that only a page has."""
    return (section for section in sections if not section.page_only and section.plot is None)


def shown_rows(section: Section) -> tuple[list[list[str]], tuple[str, ...]]:
    """The texts of a section's rows, the first ones of a detail, and a note on how many more there are."""
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


def _layouts(sections: Sequence[Section]) -> dict[tuple[Column, ...], _Layout]:
    """Tables of the same columns share their sizes, so that they stand under each other."""
    tables: dict[tuple[Column, ...], list[Section]] = {}
    for section in sections:
        if section.table is not None:
            tables.setdefault(section.table.columns, []).append(section)
    return {columns: _layout(same) for columns, same in tables.items()}


def _layout(sections: Sequence[Section]) -> _Layout:
    table = sections[0].table
    assert table is not None
    rows = [row for section in sections for row in shown_rows(section)[0]]
    titles = [escaped(column.title) for column in table.columns]
    widest = [max((width(escaped(row[place])) for row in rows), default=0) for place in range(len(titles))]
    sizes = [max(size, width(title)) for size, title in zip(widest, titles, strict=True)]
    if table.wide:
        return [(list(range(len(sizes))), [min(size, _LONGEST) for size in sizes])]
    if _surplus(sizes, table.columns) > 0:
        # Titles go over several lines before cells are cut.
        words = [max((width(word) for word in title.split()), default=0) for title in titles]
        sizes = [max(size, word) for size, word in zip(widest, words, strict=True)]
    return [(places, _fitted(places, sizes, table)) for places in _pieces(sizes, table)]


def _pieces(sizes: Sequence[int], table: Table) -> list[list[int]]:
    """The columns of each piece: the keys, then as many others as fit when text is cut."""
    keys = list(range(table.keys))
    least = [
        size if column.numeric else min(size, _SHORTEST_KEY if place < table.keys else _SHORTEST)
        for place, (size, column) in enumerate(zip(sizes, table.columns, strict=True))
    ]
    pieces: list[list[int]] = []
    for group in _groups(table):
        wider = [*pieces[-1], *group] if pieces else []
        if pieces and _surplus([least[place] for place in wider], [table.columns[place] for place in wider]) <= 0:
            pieces[-1] = wider
        else:
            pieces.append([*keys, *group])
    return pieces or [keys]


def _groups(table: Table) -> list[list[int]]:
    """Columns that stand together, without the keys."""
    groups: list[list[int]] = []
    for place in range(table.keys, len(table.columns)):
        if groups and table.columns[place].joined:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _surplus(sizes: Sequence[int], columns: Sequence[Column]) -> int:
    """By how much a line of these columns is too wide."""
    return len(_INDENT) + sum(sizes) + sum(map(_gap, columns[1:])) - WIDTH


def _gap(column: Column) -> int:
    """Spaces before a column."""
    return 1 if column.joined else 2


def _fitted(places: Sequence[int], sizes: Sequence[int], table: Table) -> list[int]:
    """Sizes, cut so that a line fits: the widest text first, then keys further, numbers as the last resort."""
    fitted = [sizes[place] for place in places]
    columns = [table.columns[place] for place in places]
    surplus = _surplus(fitted, columns)
    for keys, numeric in ((_SHORTEST_KEY, False), (_SHORTEST, False), (_SHORTEST, True)):
        least = [keys if place < table.keys else _SHORTEST for place in places]
        candidates = [index for index, column in enumerate(columns) if column.numeric == numeric]
        while surplus > 0 and (wide := [index for index in candidates if fitted[index] > least[index]]):
            fitted[max(wide, key=lambda index: fitted[index])] -= 1
            surplus -= 1
    return fitted


def _section(section: Section, layouts: dict[tuple[Column, ...], _Layout]) -> str:
    rows, more = shown_rows(section)
    lines = [_cut(escaped(section.title), WIDTH)] if section.title else []
    lines += _notes((*section.notes, *more))
    if section.table is not None and section.table.shown:
        pieces = [_piece(section.table, rows, *piece) for piece in layouts[section.table.columns]]
        lines.append("\n\n".join(pieces))
    return "\n".join(lines)


def _piece(table: Table, rows: Sequence[Sequence[str]], places: Sequence[int], sizes: Sequence[int]) -> str:
    columns = [table.columns[place] for place in places]
    if not table.titled:
        return "\n".join(line for row in rows for line in _pair(row, columns, sizes))
    lines = [*_titles(columns, sizes), _line(["-" * size for size in sizes], columns, sizes)]
    for number, row in enumerate(rows):
        indent = _MARK if number in table.marked else _INDENT
        lines.append(_line([row[place] for place in places], columns, sizes, indent))
    return "\n".join(lines)


def _pair(row: Sequence[str], columns: Sequence[Column], sizes: Sequence[int]) -> Iterator[str]:
    """A name and what there is to say about it, over as many lines as that needs."""
    head = _line(row[:-1], columns[:-1], sizes[:-1])
    indent = len(_INDENT) + sum(sizes[:-1]) + sum(map(_gap, columns[1:]))
    for line in _words(escaped(row[-1]), WIDTH - indent):
        yield f"{head:{indent}}{line}".rstrip()
        head = ""


def _titles(columns: Sequence[Column], sizes: Sequence[int]) -> list[str]:
    """The titles, word by word over as many lines as they need, the last words next to the cells."""
    wrapped = [_words(escaped(column.title), size) for column, size in zip(columns, sizes, strict=True)]
    height = max(map(len, wrapped))
    full = [[""] * (height - len(lines)) + lines for lines in wrapped]
    return [_line(line, columns, sizes) for line in zip(*full, strict=True)]


def _notes(notes: Iterable[str]) -> list[str]:
    room = WIDTH - len(_INDENT)
    return [_INDENT + line for note in notes for line in _words(escaped(note), room, _INDENT)]


def _words(value: str, size: int, indent: str = "") -> list[str]:
    """`value` in lines of whole words of at most `size` columns, all but the first indented."""
    lines, line = [], ""
    for word in _NUMBER.sub("\xa0", value).split(" "):
        if line and width(line) + 1 + width(word) > size:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return [_cut(item.replace("\xa0", " "), size) for item in [*lines, line]]


def _line(cells: Sequence[str], columns: Sequence[Column], sizes: Sequence[int], indent: str = _INDENT) -> str:
    line = ""
    for cell, column, size in zip(cells, columns, sizes, strict=True):
        text = _cut(escaped(cell), size)
        space = " " * (size - width(text))
        line += " " * _gap(column) if line else indent
        line += space + text if column.numeric else text + space
    return line.rstrip()


def _cut(cell: str, size: int) -> str:
    """`cell` in at most `size` columns, the end left out where it does not fit."""
    if width(cell) <= size:
        return cell
    kept = cell[: size - 1]
    while width(kept) > size - 1:
        kept = kept[:-1]
    return kept + "…"
