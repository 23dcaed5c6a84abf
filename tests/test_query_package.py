"""The SQL package as a whole: every module stands on its own, and is what the catalog says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.trace_processor import open_engine
from molprof.queries import PACKAGE, modules
from molprof.queries.catalog import catalog

MODULES = modules()
CATALOG = catalog()
ARGUMENTS = {"molprof_small_operations": "(100000, 1000)", "molprof_long_operations": "(1000000)"}


@pytest.mark.parametrize("name", CATALOG)
def test_module_includes_cleanly_and_its_columns_are_as_documented(name: str) -> None:
    """Each on its own engine without a trace's events, so that it must include all that it uses."""
    module = CATALOG[name]
    with open_engine() as fresh:
        fresh.feed(b'{"traceEvents":[]}')
        fresh.finish()
        fresh.register_package(PACKAGE, MODULES)
        fresh.query(f"INCLUDE PERFETTO MODULE {module.key}; SELECT 1")
        assert module.entries, f"{name} has no public table, view or function"
        for entry in module.entries:
            shown = fresh.query(f"SELECT * FROM {entry.name}{ARGUMENTS.get(entry.name, '')} LIMIT 1")
            assert list(shown) == [column.name for column in entry.columns], entry.name


@pytest.mark.parametrize("name", CATALOG)
def test_every_public_name_is_in_the_catalog(name: str) -> None:
    declared = re.findall(r"^CREATE PERFETTO \w+ (\w+)", CATALOG[name].sql, re.MULTILINE)
    assert all(item.startswith(("molprof_", "_molprof_")) for item in declared)
    assert [entry.name for entry in CATALOG[name].entries] == [item for item in declared if not item.startswith("_")]


@pytest.mark.parametrize("module", MODULES)
def test_every_include_is_used(module: str) -> None:
    sql = MODULES[module]
    for included in re.findall(r"^INCLUDE PERFETTO MODULE (molprof\.[\w.]+);", sql, re.MULTILINE):
        names = re.findall(r"^CREATE PERFETTO \w+ (\w+)", MODULES[included], re.MULTILINE)
        assert any(re.search(rf"\b{name}\b", sql) for name in names), f"{module} does not use {included}"


def test_package_is_found_beside_its_code() -> None:
    folder = Path(__file__).parent.parent / "queries"
    assert sorted(MODULES) == [f"{PACKAGE}.{path.stem}" for path in sorted(folder.glob("*.sql"))]


def test_causes_of_idle_time_are_explained_as_reports_name_them() -> None:
    explained = re.findall(r'^-- (\w+) \("(.*?)"\): ', MODULES["molprof.idle_causes"], re.MULTILINE)
    assert dict(explained) == IDLE_CAUSES
