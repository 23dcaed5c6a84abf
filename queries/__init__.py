"""The PerfettoSQL package `molprof`: one module per `.sql` file beside this one."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

PACKAGE = "molprof"
# What `molprof export` writes of facts, and the module that makes tables of that. Only other trace processors use it:
# molprof makes these tables itself.
FACT_CATEGORY = f"{PACKAGE}.fact"
FACTS = f"{PACKAGE}.facts"
# A module of the package. Those of the trace processor itself are everywhere.
INCLUDE = re.compile(rf"^INCLUDE PERFETTO MODULE {PACKAGE}\.(\w+);$", re.MULTILINE)

# Rows of molprof.step_marks: a function of an engine that runs a step.
_STEP_MARK = re.compile(r"^ +\(\d+, '\w+', '([^']+)', '([^']+)'\),?$", re.MULTILINE)
# Rows of molprof.phase_marks: a function or module that marks a phase, calls of any file, files that these are not of.
_MARK = re.compile(r"^ +\('\w+', '\w+', ('\w+'|NULL), '([^']+)', '([^']+)'\),?$", re.MULTILINE)
_UNMARKED_FILE = re.compile(r"^ +\('([^']+\.py)'\),?$", re.MULTILINE)


# Tables that molprof computes from the trace (analysis/facts), and adds when SQL that reads one is asked.
_FACT = re.compile(r"\b_molprof_fact_(\w+)")
_CREATE_WORD = re.compile(r"^CREATE PERFETTO\b", re.MULTILINE)
# As people write it; without a name, all modules: `molprof.*`, and `*` of all packages.
_ANY_INCLUDE = re.compile(rf"\bINCLUDE\s+PERFETTO\s+MODULE\s+(?:{PACKAGE}\.(\w+)|(?:{PACKAGE}\.)?\*)", re.IGNORECASE)


def facts_in(sql: str) -> frozenset[str]:
    """Return names of the fact tables that SQL reads, itself or in the modules that it includes."""
    return frozenset(_FACT.findall(sql)).union(*map(_facts_of, _ANY_INCLUDE.findall(sql)))


@functools.cache
def _facts_of(module: str) -> frozenset[str]:
    texts = modules()
    return facts_in(texts.get(f"{PACKAGE}.{module}", "") if module else "\n".join(texts.values()))


@functools.cache
def modules() -> Mapping[str, str]:
    """Return the modules by key for INCLUDE PERFETTO MODULE (`molprof.launches`): SQL texts, sorted by key."""
    paths = sorted(Path(__file__).parent.glob("*.sql"), key=lambda path: path.name)
    texts = {f"{PACKAGE}.{path.stem}": path.read_text(encoding="utf-8") for path in paths}
    texts.pop(FACTS)
    return MappingProxyType(texts)


def standing_alone(facts_sql: str) -> dict[str, str]:
    """Return the modules for an engine without molprof, with `molprof.facts`, which those of facts include.

    facts_sql: what makes the tables of facts. Modules may be included in an engine that has their tables already.
    """
    texts = {
        key: f"INCLUDE PERFETTO MODULE {FACTS};\n{text}" if _FACT.search(text) else text
        for key, text in modules().items()
    }
    return {key: replacing_tables(text) for key, text in {**texts, FACTS: facts_sql}.items()}


def replacing_tables(sql: str) -> str:
    """Return the SQL, changed so that it may run several times."""
    return _CREATE_WORD.sub("CREATE OR REPLACE PERFETTO", sql)


class _MarkTables(NamedTuple):
    """Names in the tables of molprof.phase_marks and molprof.step_marks."""

    files: Mapping[str, re.Pattern[str]]  # of functions that mark phases or steps, by name
    modules: re.Pattern[str]
    calls: frozenset[str]  # names of functions of any file
    unmarked: re.Pattern[str]  # the files that these are not in


@functools.cache
def _marks() -> _MarkTables:
    sql = modules()[f"{PACKAGE}.phase_marks"]
    files: dict[str, list[str]] = {}
    models, calls = [], []
    for phase, path, name in _MARK.findall(sql):
        if phase == "NULL":
            calls.append(name)
        elif path == "nn.Module":
            models.append(fnmatch.translate(name))
        else:
            files.setdefault(name, []).append(fnmatch.translate(f"*{path}([0-9]*)"))
    for path, name in _STEP_MARK.findall(modules()[f"{PACKAGE}.step_marks"]):
        files.setdefault(name, []).append(fnmatch.translate(f"*{path}([0-9]*)"))
    unmarked = [fnmatch.translate(f"{path}([0-9]*)") for path in _UNMARKED_FILE.findall(sql)]
    functions = {name: re.compile("|".join(paths)) for name, paths in files.items()}
    return _MarkTables(functions, re.compile("|".join(models)), frozenset(calls), re.compile("|".join(unmarked)))


def marks_phase(name: str) -> bool:
    """Return True if a function's name marks a phase or step: `vllm/core.py(12): step`, `nn.Module: A_0`."""
    file, _, function = name.rpartition(": ")
    if file == "nn.Module":
        return _marks().modules.match(function) is not None
    files = _marks().files.get(function)
    if files is not None and files.match(file):
        return True
    return function in _marks().calls and not _marks().unmarked.match(file)
