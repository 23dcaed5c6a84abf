"""Documents for a terminal: aligned, at most 100 columns wide."""

from __future__ import annotations

from molprof.common.document import Column, Document, Section
from molprof.common.text import escaped
from molprof.common.values import width

WIDTH = 100
_INDENT = "  "
_GAP = "  "
_SHORTEST = 12


def to_table(document: Document) -> str:
    """The document as plain text, ending with a newline."""
    title = _cut(escaped(document.title), WIDTH)
    blocks = [f"{title}\n{'=' * width(title)}"]
    sizes = _sizes(document)
    blocks.extend(_section(section, sizes.get(section.columns, [])) for section in document.sections)
    return "\n\n".join(blocks) + "\n"


def _sizes(document: Document) -> dict[tuple[Column, ...], list[int]]:
    """Column widths; sections of the same columns share theirs, so that they stand under each other."""
    cells: dict[tuple[Column, ...], list[tuple[str, ...]]] = {}
    for section in document.sections:
        cells.setdefault(section.columns, []).extend(section.rows)
    sizes = {}
    for columns, rows in cells.items():
        titles = [escaped(column.title) for column in columns]
        widest = [max((width(escaped(row[index])) for row in rows), default=0) for index in range(len(columns))]
        full = [max(size, width(title)) for size, title in zip(widest, titles, strict=True)]
        if _surplus(full) > 0:
            # Titles go over several lines before cells are cut.
            words = [max((width(word) for word in title.split()), default=0) for title in titles]
            full = [max(size, word) for size, word in zip(widest, words, strict=True)]
        sizes[columns] = _fitted(full, columns)
    return sizes


def _surplus(sizes: list[int]) -> int:
    """By how much a line of these columns is too wide."""
    return len(_INDENT) + sum(sizes) + len(_GAP) * (len(sizes) - 1) - WIDTH


def _fitted(sizes: list[int], columns: tuple[Column, ...]) -> list[int]:
    """`sizes`, cut so that a line fits: text first, the widest column first; numbers as the last resort."""
    sizes = list(sizes)
    surplus = _surplus(sizes)
    for may_cut in ("left", "right"):
        candidates = [index for index, column in enumerate(columns) if column.align == may_cut]
        while surplus > 0 and candidates:
            widest = max(candidates, key=lambda index: sizes[index])
            if sizes[widest] <= _SHORTEST:
                break
            sizes[widest] -= 1
            surplus -= 1
    return sizes


def _section(section: Section, sizes: list[int]) -> str:
    lines = [_cut(escaped(section.title), WIDTH)] if section.title else []
    for note in section.notes:
        lines.extend(_INDENT + line for line in _words(escaped(note), WIDTH - len(_INDENT), _INDENT))
    if section.rows:
        if any(column.title for column in section.columns):
            lines.extend(_titles(sizes, section.columns))
            lines.append(_INDENT + _GAP.join("-" * size for size in sizes))
        lines.extend(_line(row, sizes, section.columns) for row in section.rows)
    return "\n".join(lines)


def _titles(sizes: list[int], columns: tuple[Column, ...]) -> list[str]:
    """The titles, word by word over as many lines as they need, the last words next to the cells."""
    wrapped = [_words(escaped(column.title), size) for column, size in zip(columns, sizes, strict=True)]
    height = max(len(lines) for lines in wrapped)
    return [
        _line(tuple(line), sizes, columns)
        for line in zip(*([""] * (height - len(lines)) + lines for lines in wrapped), strict=True)
    ]


def _words(value: str, size: int, indent: str = "") -> list[str]:
    """`value` in lines of whole words of at most `size` columns, all but the first indented."""
    lines, line = [], ""
    for word in value.split(" "):
        if line and width(line) + 1 + width(word) > size:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return [_cut(item, size) for item in [*lines, line]]


def _line(cells: tuple[str, ...], sizes: list[int], columns: tuple[Column, ...]) -> str:
    parts = [
        _padded(_cut(escaped(cell), size), size, column.align)
        for cell, size, column in zip(cells, sizes, columns, strict=True)
    ]
    return (_INDENT + _GAP.join(parts)).rstrip()


def _padded(cell: str, size: int, align: str) -> str:
    space = " " * (size - width(cell))
    return cell + space if align == "left" else space + cell


def _cut(cell: str, size: int) -> str:
    """`cell` in at most `size` columns, the end left out where it does not fit."""
    if width(cell) <= size:
        return cell
    kept = cell[: size - 1]
    while width(kept) > size - 1:
        kept = kept[:-1]
    return kept + "…"
