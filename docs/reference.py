"""Parts of pages that are made from the code, as Markdown: SQL modules, figures, findings, settings and others."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from molprof.analysis.figures.catalog import FIGURES
from molprof.analysis.figures.certificate import CHECKS
from molprof.analysis.figures.drift import RULES
from molprof.analysis.figures.model import ALL, TITLES
from molprof.analysis.findings import RULES as FINDINGS
from molprof.analysis.findings.rule import Rule
from molprof.common.setting import rows
from molprof.common.settings import CaptureSettings
from molprof.profiler.constraints import PROCESSORS
from molprof.queries.catalog import CatalogColumn, Module, catalog
from molprof.queries.pages import example_command

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "docs" / "notebooks"


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def code(text: object) -> str:
    return f"`{text}`" if text not in (None, "") else ""


def prose(text: str) -> str:
    """Text with Markdown's own characters escaped."""
    for character in "\\*_[]<>|#$`":
        text = text.replace(character, f"\\{character}")
    return text


def modules() -> str:
    """Every module of the SQL package, from the comments of its files."""
    known = catalog()
    index = ((f"[{name}](#{name})", prose(module.line)) for name, module in known.items())
    return "\n\n".join([table(("module", "what for"), index), *map(_module, known.values())])


def _module(module: Module) -> str:
    blocks = [f"## {module.name}", *map(prose, module.comment)]
    if module.includes:
        blocks.append("Uses " + ", ".join(f"[{name}](#{name})" for name in module.includes) + ".")
    for entry in module.entries:
        blocks += [f"### {entry.name}", f"{entry.kind.capitalize()}. {prose(entry.comment)}"]
        blocks += [_columns("argument", entry.arguments)] if entry.arguments else []
        blocks.append(_columns("column", entry.columns))
    example = module.example
    for name, value in module.defaults:
        example = example.replace(f"${name}", value)
    blocks.append(f"```sh\n{example_command(module)}\n```")
    blocks.append(f"```sql\nINCLUDE PERFETTO MODULE {module.key};\n\n{example}\n```")
    return "\n\n".join(blocks)


def _columns(role: str, columns: Iterable[CatalogColumn]) -> str:
    body = ((code(column.name), column.type, column.unit, prose(column.comment)) for column in columns)
    return table((role, "type", "unit", "meaning"), body)


def figures() -> str:
    """Ids for `--fail-if`, predictions and JSON, by the heading that reports show them under."""
    body = ((code(item.id), prose(item.label), str(item.unit), item.group) for item in FIGURES if item.compared)
    return table(("id", "figure", "unit", "heading"), body)


def findings() -> str:
    """Every rule: its docstring says when it is reported and what bounds its gain."""
    blocks = []
    for rule in FINDINGS:
        blocks += [f"### {rule.id}", f"*{prose(rule.title)}.* {_fires(rule)}"]
        blocks += [f"Why: {prose(rule.explanation)}"] if rule.explanation else []
        blocks += [f"Fix: {prose(rule.fix)}"] if rule.fix else []
        blocks.append(f"Evidence: `molprof query {rule.query} TRACE`.")
    return "\n\n".join(blocks)


def _fires(rule: Rule) -> str:
    """Return the docstring of a rule as a sentence about it."""
    return (inspect.getdoc(rule.find) or "").replace("ire where", "ires where", 1)


def settings() -> str:
    """Return the settings of a capture: options, defaults, and what a difference means to a comparison."""
    body = (
        (code(item.flag), code(item.default), prose(item.help), item.decides, item.role or "")
        for item in rows(CaptureSettings).values()
    )
    return table(("option", "default", "meaning", "decides", "in comparisons"), body)


def checks() -> str:
    """Return the checks of the certificate, each with a module that shows its evidence."""
    body = (
        (
            code(check.id),
            prose(check.title),
            "all" if check.groups == ALL else ", ".join(TITLES[group] for group in check.groups),
            f"[{module}](queries.md#{module})",
        )
        for check in CHECKS
        for module in [check.query.module]
    )
    return table(("check", "passes if", "else uncertain", "SQL"), body)


def processors() -> str:
    """Return the logits processors that come with molprof."""
    return table(("name", "what it does"), ((code(name), prose(entry.summary)) for name, entry in PROCESSORS.items()))


def rooms() -> str:
    """Return the rooms of the code, with the first line of each one's docstring."""
    paths = [path for side in ("molprof", "analysis", "profiler") for path in sorted((ROOT / side).iterdir())]
    texts = {path: path / "__init__.py" if path.is_dir() else path for path in (*paths, ROOT / "queries")}
    body = (
        (code(path.relative_to(ROOT)), found.partition("\n")[0])
        for path, text in texts.items()
        if text.suffix == ".py" and text.exists() and (found := ast.get_docstring(ast.parse(text.read_bytes())))
    )
    return table(("room", "what it holds"), body)


def rules() -> str:
    """Return what counts as a block with junk, by rule."""
    return table(("rule", "counts blocks with"), ((code(name), prose(rule[0])) for name, rule in RULES.items()))


def notebooks() -> str:
    """Return the cells of the notebooks, without outputs; a heading is one of the page."""
    blocks = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            text = "".join(cell["source"])
            is_code = cell["cell_type"] == "code"
            blocks.append(f"```python\n{text}\n```" if is_code else re.sub("^#", "##", text).replace("](../", "]("))
        blocks.append(f"The notebook: {{download}}`{path.name} <notebooks/{path.name}>`")
    return "\n\n".join(blocks)


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part for part in (modules, figures, findings, settings, checks, processors, rooms, rules, notebooks)
}
