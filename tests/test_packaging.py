"""The code keeps its shape, the package is complete, and the project's files agree."""

from __future__ import annotations

import ast
import configparser
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shape import ANALYSIS, COMMANDS, FOLDERS, GROUND, PROFILER, Checkout, checkout, room

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
HEAVY = {"torch", "transformers", "rdkit", "safetensors", "tokenizers", "huggingface_hub"}
OUTSIDE = {"training", "benchmarks", "docs", "tests", "shape", "generate"}
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


@pytest.fixture(scope="module")
def code() -> Checkout:
    return checkout()


def test_imports_follow_the_floors_without_circles(code: Checkout) -> None:
    assert list(map(str, code.breaks())) == []
    assert code.circles(hidden=True) == []
    assert code.module_circles() == []
    assert code.imports_of_nothing() == []
    known = {name for column in (ANALYSIS, PROFILER, COMMANDS) for names in column for name in names} | {GROUND}
    assert {room(name) for name in code.modules} - {"molprof", "molprof.analysis", "molprof.profiler"} == known


def test_what_code_may_import(code: Checkout) -> None:
    for path in code.modules.values():
        imported = _imports(code, path)
        assert not imported & OUTSIDE, f"{path}: the wheel does not have it"
        if path.startswith(("analysis/", "queries/")):
            assert not imported & HEAVY, f"{path}: reading a trace needs nothing that runs a model"
        if path in ("molprof/common/errors.py", "molprof/common/settings.py"):
            assert imported <= sys.stdlib_module_names | {"molprof", "msgspec"}, path


def test_files_are_short_and_functions_take_few_parameters(code: Checkout) -> None:
    assert code.long_files() == {}
    assert code.long_signatures() == {}
    assert code.names_twice() == {}


def test_libraries_do_not_print(code: Checkout) -> None:
    for path in code.modules.values():
        if not path.startswith("molprof/"):
            calls = (node.func for node in ast.walk(code.trees[path]) if isinstance(node, ast.Call))
            assert not {call.id for call in calls if isinstance(call, ast.Name)} & {"print", "exit"}, path


def test_setup_lists_every_package_and_data_file() -> None:
    listed = SETUP["options.package_data"]
    packages = set()
    for folder, name in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.name == "__init__.py":
                packages.add(".".join([name, *path.parent.relative_to(ROOT / folder).parts]))
            elif path.is_file() and path.suffix not in (".py", ".pyc"):
                assert any(
                    path.match(str(Path(folder, *package.removeprefix(name).split("."), pattern)))
                    for package, patterns in listed.items()
                    for pattern in patterns.replace(",", " ").split()
                ), f"{path} is in no package_data of setup.cfg"
    assert packages == set(SETUP["options"]["packages"].split())


def test_each_dependency_stands_below_its_reason() -> None:
    lines = (ROOT / "setup.cfg").read_text().splitlines()
    named = re.compile(r"    (?!molprof\[)[\w.-]+(\[\w+\])?>=")
    unexplained = [line for before, line in itertools.pairwise(lines) if named.match(line) and "    # " not in before]
    assert (unexplained, len(list(filter(named.match, lines))) > 30) == ([], True)


def test_no_path_of_a_developers_machine_is_in_the_project() -> None:
    line = ["git", "grep", "-nIE", r"/(home|root|work)/[a-z]", "--", ".", ":!tests/test_packaging.py"]
    assert subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False).stdout == ""


def _imports(code: Checkout, path: str) -> set[str]:
    """First names of the modules that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(code.trees[path]):
        if isinstance(node, ast.Import):
            names.update(item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_python_at_the_root_of_a_checkout_finds_all_parts() -> None:
    """Without an installed package, whose folder `molprof` here would hide."""
    packages = [path for path in sys.path if path.endswith("-packages")]
    code = (
        f"import sys; sys.path += {packages!r}\n"
        "import molprof, molprof.analysis.trace, molprof.queries\n"
        "print(molprof.analysis.__path__[0], molprof.load.__module__)"
    )
    # Without `site` there is no editable install.
    found = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(ROOT / "analysis"), "molprof.api"]
