"""The shape of the code: imports follow the floors, no circles, no long files, few parameters.

What breaks a rule today is listed here. The lists may only shrink.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from architecture import label, picture
from shape import (
    ANALYSIS,
    COMMANDS,
    GROUND,
    MOST_LINES,
    MOST_PARAMETERS,
    MOST_TEST_LINES,
    PROFILER,
    Checkout,
    reachable,
    room,
)

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
CODE = Checkout(ROOT) if (ROOT / ".git").exists() else None
HEAVY = {"torch", "transformers", "rdkit", "safetensors", "tokenizers", "huggingface_hub"}

# path imports module
BREAKS = {
    "analysis/bench/render.py imports molprof.analysis.documents.benchmark",
    "analysis/plots/benchmark.py imports molprof.analysis.documents.benchmark",
    "analysis/render/__init__.py imports molprof.analysis.compare",
    "analysis/render/__init__.py imports molprof.analysis.documents.comparison",
    "analysis/render/__init__.py imports molprof.analysis.documents.report",
    "analysis/render/__init__.py imports molprof.analysis.figures",
    "analysis/render/data.py imports molprof.analysis.compare",
    "analysis/render/data.py imports molprof.analysis.figures",
    "analysis/render/html/figures.py imports molprof.analysis.plots",
    "analysis/render/html/figures.py imports molprof.analysis.plots.latency",
    "analysis/render/html/page.py imports molprof.analysis.compare",
    "analysis/render/html/page.py imports molprof.analysis.compare.model",
    "analysis/render/html/page.py imports molprof.analysis.documents.verdict",
    "analysis/render/html/page.py imports molprof.analysis.figures",
    "analysis/render/html/page.py imports molprof.analysis.figures.model",
    "analysis/render/html/page.py imports molprof.analysis.plots",
    "analysis/render/html/setting.py imports molprof.analysis.figures",
    "analysis/render/html/setting.py imports molprof.analysis.figures.run_model",
    "analysis/render/html/tables.py imports molprof.analysis.compare",
    "analysis/render/html/tables.py imports molprof.analysis.compare.model",
    "analysis/render/html/tables.py imports molprof.analysis.compare.parts",
    "analysis/render/html/tables.py imports molprof.analysis.documents.difference",
    "analysis/render/html/tables.py imports molprof.analysis.drift.model",
    "analysis/render/html/tables.py imports molprof.analysis.figures",
    "analysis/render/html/tables.py imports molprof.analysis.figures.model",
}
CIRCLES = [
    ["molprof.analysis.bench", "molprof.analysis.documents", "molprof.analysis.plots", "molprof.analysis.render"],
]
HIDDEN_CIRCLES = [
    ["molprof.analysis.bench", "molprof.analysis.documents", "molprof.analysis.plots", "molprof.analysis.render"],
]
LONG_FILES = {
    "analysis/figures/run.py",
    "tests/test_findings.py",
}
MANY_PARAMETERS = {
    "molprof/commands/bench.py:invoke",
}


@pytest.fixture
def code() -> Checkout:
    assert CODE is not None
    return CODE


def test_imports_follow_the_floors(code: Checkout) -> None:
    found = {f"{item.path} imports {item.target}": str(item) for item in code.breaks()}
    assert [found[key] for key in sorted(found.keys() - BREAKS)] == []
    assert sorted(BREAKS - found.keys()) == [], "gone: delete it from BREAKS"


def test_every_room_has_a_floor(code: Checkout) -> None:
    known = {name for column in (ANALYSIS, PROFILER, COMMANDS) for names in column for name in names} | {GROUND}
    rooms = {room(name) for name in code.modules} - {"molprof", "molprof.analysis", "molprof.profiler"}
    assert rooms - known <= {"molprof.profiler.hardware"}
    assert known <= rooms


def test_rooms_do_not_import_each_other_in_circles(code: Checkout) -> None:
    assert code.circles(hidden=False) == CIRCLES
    assert code.circles(hidden=True) == HIDDEN_CIRCLES
    assert code.module_circles() == []


def test_nothing_in_the_wheel_imports_what_is_not(code: Checkout) -> None:
    for path in code.modules.values():
        assert not _imports(code, path) & {"training", "benchmarks", "docs", "tests", "shape", "generate"}, path


def test_analysis_needs_nothing_that_runs_a_model(code: Checkout) -> None:
    for path in code.modules.values():
        if path.startswith(("analysis/", "queries/")):
            assert not _imports(code, path) & HEAVY, path


def test_the_lowest_ground_needs_the_standard_library_only(code: Checkout) -> None:
    allowed = sys.stdlib_module_names | {"molprof"}
    for path in ("molprof/common/errors.py", "molprof/common/phases.py", "molprof/common/settings.py"):
        assert _imports(code, path) <= allowed, path


def test_files_are_short(code: Checkout) -> None:
    long = {path: lines for path, lines in code.long_files().items() if path not in LONG_FILES}
    assert long == {}, f"at most {MOST_LINES} lines, tests {MOST_TEST_LINES}"
    assert sorted(LONG_FILES - code.long_files().keys()) == [], "gone: delete it from LONG_FILES"


def test_functions_take_few_parameters(code: Checkout) -> None:
    many = {name: count for name, count in code.long_signatures().items() if name not in MANY_PARAMETERS}
    assert many == {}, f"at most {MOST_PARAMETERS} parameters"
    assert sorted(MANY_PARAMETERS - code.long_signatures().keys()) == [], "gone: delete it from MANY_PARAMETERS"


def test_reachable() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b"}}
    assert reachable("a", arrows) == {"b", "c"}
    assert reachable("d", arrows) == set()


def test_the_picture_has_every_room(code: Checkout) -> None:
    drawn = picture(code)
    for names in (*ANALYSIS, *PROFILER):
        for name in names:
            assert f">{label(name)}</text>" in drawn
    assert "prefers-color-scheme: dark" in drawn


def _imports(code: Checkout, path: str) -> set[str]:
    """First names of the modules that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(code.trees[path]):
        if isinstance(node, ast.Import):
            names.update(item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}
