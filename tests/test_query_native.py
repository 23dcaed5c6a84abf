"""The package in Perfetto's own shell, where there is one: `trace_processor_shell --add-sql-package`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny_trace
from sql_rows import rows

import molprof.queries
from molprof.analysis.query import find_statement
from molprof.analysis.trace_processor import open_engine
from molprof.queries import PACKAGE, modules
from molprof.queries.catalog import catalog

SHELL = shutil.which("trace_processor_shell")
pytestmark = pytest.mark.skipif(SHELL is None, reason="no trace_processor_shell on PATH")


def test_examples_give_the_same_rows_as_embedded(tmp_path: Path) -> None:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    path = tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())
    (folder,) = molprof.queries.__path__
    config = TraceProcessorConfig(bin_path=SHELL, add_sql_packages=[f"{folder}@{PACKAGE}"])
    with open_engine() as engine, TraceProcessor(trace=str(path), config=config) as shell:
        engine.feed(path.read_bytes())  # as it is, times too
        engine.finish()
        engine.register_package(PACKAGE, modules())
        for name, module in catalog().items():
            sql = find_statement(name, {}).sql
            found = [tuple(vars(row).values()) for row in shell.query(f"INCLUDE PERFETTO MODULE {module.key}; {sql}")]
            assert found == rows(engine, name, sql), name
