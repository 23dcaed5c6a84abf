"""A folder for an assistant: a page of workflow for each question, from findings, SQL package and commands."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from molprof import queries
from molprof.analysis.documents.questions import GUIDANCE, QUESTIONS, Question
from molprof.analysis.findings import RULES
from molprof.queries.catalog import Module, catalog, standalone_sql
from molprof.queries.pages import example_command

_WIDTH = 100
_HEAD = """\
---
name: molprof
description: Finds out from traces of torch.profiler why a program, constrained text generation above all, is slow.
---

# molprof

Begin with `molprof report TRACE --format json`: `certificate` says which figures are exact, bounded or not to be had.
"""
_SQL = """\
`molprof --help` lists all commands; `commands/` has those of each page. `queries/` has its SQL, each file whole:
`molprof query queries/NAME.sql TRACE` runs it. So does Perfetto's trace processor without molprof, on a trace that
`molprof export` wrote, after `queries/facts.sql`.
"""


def skill_files() -> dict[str, str]:
    """Return the files of the folder by name."""
    modules = catalog()
    rows = (f"| {item.text} | [{item.id}](questions/{item.id}.md) |" for item in QUESTIONS)
    index = "\n".join(("| question | page |", "| --- | --- |", *rows))
    files = {"SKILL.md": _joined(map(str.rstrip, (_HEAD, GUIDANCE, index, _SQL)))}
    files["queries/facts.sql"] = Path(queries.__file__).with_name("facts.sql").read_text(encoding="utf-8")
    for item in QUESTIONS:
        files[f"questions/{item.id}.md"] = _joined(_page(item, modules))
        files[f"commands/{item.id}.sh"] = "\n".join((f"# {item.text}", *item.commands)) + "\n"
        for name in item.modules:
            files[f"queries/{name}.sql"] = f"{standalone_sql(name, modules).rstrip()}\n\n{_example(modules[name])}\n"
    return files


def _example(module: Module) -> str:
    """Return the query of the example, with its values."""
    text = module.example.rstrip().rstrip(";")
    for name, value in module.defaults:
        text = text.replace(f"${name}", value)
    return f"{text};"


def _page(item: Question, modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield the page: commands; findings, their triggers and fixes; SQL with its columns; related questions."""
    yield f"# {item.text}"
    yield "```sh\n" + "\n".join(item.commands) + "\n```"
    rules = [rule for rule in RULES if rule.find.__module__.rpartition(".")[2] in item.subjects]
    yield from ["## Findings, and what to do"] if rules else []
    for rule in rules:
        yield f"### {rule.id}: {rule.title}"
        remarks = (("Why", rule.explanation), ("Fix", rule.fix))
        texts = (inspect.getdoc(rule.find), *(f"{head}: {text}" for head, text in remarks if text))
        yield from (_prose(text) for text in texts if text)
        yield f"Evidence: `molprof query {rule.query} TRACE`"
    yield from ["## SQL"] if item.modules else []
    for name in item.modules:
        module = modules[name]
        yield f"### {name}"
        yield from map(_prose, module.comment)
        yield f"`{example_command(module)}`, or [queries/{name}.sql](../queries/{name}.sql)"
        for entry in module.entries:
            yield _prose(f"`{entry.name}`: {entry.comment}")
            yield "\n".join(f"- `{it.name}`{it.unit and f', {it.unit}'}: {it.comment}" for it in entry.columns)
    if item.then:
        texts_by_id = {other.id: other.text for other in QUESTIONS}
        yield "## Then ask"
        yield "\n".join(f"- [{texts_by_id[name]}]({name}.md)" for name in item.then)


def _joined(blocks: Iterable[str]) -> str:
    return "\n\n".join(filter(None, blocks)) + "\n"


def _prose(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)
