"""The SQL package as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from molprof.queries.catalog import CatalogColumn, CatalogEntry, Module

_WIDTH = 100
_INDENT = "  "


def module_list(modules: Mapping[str, Module], terminal: int | None) -> str:
    """Return one line per module, wrapped on a terminal of `terminal` columns."""
    size = max(len(name) for name in modules)
    lines = [f"{name:{size}}  {module.line}" for name, module in modules.items()]
    lines += ["", "molprof query list NAME shows one module; molprof query NAME TRACE runs its example."]
    if terminal is not None and terminal > 2 * size:
        indent = " " * (size + 2)
        lines = [textwrap.fill(line, terminal, subsequent_indent=indent, break_on_hyphens=False) for line in lines]
    return "\n".join(lines) + "\n"


def module_page(module: Module) -> str:
    """Return purpose, objects, example and SQL of a module."""
    blocks = [f"{module.key}\n{'=' * len(module.key)}"]
    blocks.extend(textwrap.fill(paragraph, _WIDTH) for paragraph in module.comment)
    for entry in module.entries:
        blocks.append(_entry_text(entry))
    blocks.append(f"Example: {example_command(module)}\n\n{textwrap.indent(module.example, _INDENT)}")
    blocks.append(f"SQL:\n\n{textwrap.indent(module.sql.rstrip(), _INDENT)}")
    return "\n\n".join(blocks) + "\n"


def example_command(module: Module) -> str:
    """Return the command line that runs a module's example."""
    values = "".join(f" -p {name}={value}" for name, value in module.defaults)
    return f"molprof query {module.name} trace.json.gz{values}"


def _entry_text(entry: CatalogEntry) -> str:
    arguments = f"({', '.join(argument.name for argument in entry.arguments)})" if entry.arguments else ""
    lines = [f"{entry.kind} {entry.name}{arguments}"]
    lines.extend(textwrap.wrap(entry.comment, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT))
    rows = [("argument", column) for column in entry.arguments] + [("", column) for column in entry.columns]
    names = [f"{role} {column.name}".strip() for role, column in rows]
    size = max(map(len, names))
    kinds = [_kind(column) for _, column in rows]
    kind_size = max(map(len, kinds))
    for name, kind, (_, column) in zip(names, kinds, rows, strict=True):
        head = f"{_INDENT}{name:{size}}  {kind:{kind_size}}  "
        lines.extend(textwrap.wrap(column.comment, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head)))
    return "\n".join(lines)


def _kind(column: CatalogColumn) -> str:
    return f"{column.type} [{column.unit}]" if column.unit else column.type
