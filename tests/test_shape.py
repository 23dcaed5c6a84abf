"""The shape of the code: imports follow the floors, no circles, no long files, few parameters."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from shape import (
    ANALYSIS,
    COMMANDS,
    GROUND,
    MOST_LINES,
    MOST_PARAMETERS,
    MOST_TEST_LINES,
    PROFILER,
    Checkout,
    checkout,
    room,
)

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
HEAVY = {"torch", "transformers", "rdkit", "safetensors", "tokenizers", "huggingface_hub"}


@pytest.fixture
def code() -> Checkout:
    return checkout()


def test_imports_follow_the_floors(code: Checkout) -> None:
    assert list(map(str, code.breaks())) == []


def test_every_room_has_a_floor(code: Checkout) -> None:
    known = {name for column in (ANALYSIS, PROFILER, COMMANDS) for names in column for name in names} | {GROUND}
    rooms = {room(name) for name in code.modules} - {"molprof", "molprof.analysis", "molprof.profiler"}
    assert rooms == known


def test_rooms_do_not_import_each_other_in_circles(code: Checkout) -> None:
    assert code.circles(hidden=True) == []
    assert code.module_circles() == []


def test_nothing_in_the_wheel_imports_what_is_not(code: Checkout) -> None:
    for path in code.modules.values():
        assert not _imports(code, path) & {"training", "benchmarks", "docs", "tests", "shape"}, path


def test_analysis_needs_nothing_that_runs_a_model(code: Checkout) -> None:
    for path in code.modules.values():
        if path.startswith(("analysis/", "queries/")):
            assert not _imports(code, path) & HEAVY, path


def test_the_lowest_ground_needs_the_standard_library_only(code: Checkout) -> None:
    allowed = sys.stdlib_module_names | {"molprof"}
    for name in ("errors", "settings"):
        assert _imports(code, f"molprof/common/{name}.py") <= allowed, name


def test_files_are_short(code: Checkout) -> None:
    assert code.long_files() == {}, f"at most {MOST_LINES} lines, tests {MOST_TEST_LINES}"


def test_functions_take_few_parameters(code: Checkout) -> None:
    assert code.long_signatures() == {}, f"at most {MOST_PARAMETERS} parameters"


def _imports(code: Checkout, path: str) -> set[str]:
    """First names of the modules that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(code.trees[path]):
        if isinstance(node, ast.Import):
            names.update(item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}
