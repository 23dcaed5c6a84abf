"""What the package must contain, and what the project's files promise each other."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "molprof": "molprof",
    "molprof.analysis": "analysis",
    "molprof.profiler": "profiler",
    "molprof.queries": "queries",
}


def _setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def _modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_setup_lists_every_package() -> None:
    listed = set(_setup()["options"]["packages"].split())
    found = {
        ".".join([name, *path.parent.relative_to(ROOT / folder).parts])
        for name, folder in FOLDERS.items()
        for path in _modules(folder)
        if path.name == "__init__.py"
    }
    assert listed == found


def test_dependencies_are_explained() -> None:
    setup = _setup()
    explained = (ROOT / "docs/dependencies.md").read_text()
    lines = setup["options"]["install_requires"].split("\n")
    for extra in setup["options.extras_require"].values():
        lines += extra.split("\n")
    names = {line.split(">")[0].split("[")[0].strip() for line in lines if line and not line.startswith("#")}
    assert [name for name in sorted(names - {"", "molprof"}) if name not in explained] == []


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_analysis_and_profiler_share_the_ground_alone() -> None:
    for path in _modules("analysis"):
        assert not {name for name in _imports(path) if name.startswith("molprof.profiler")}, path
        assert not _imports(path) & {"torch", "transformers", "rdkit"}, path
    for path in _modules("profiler"):
        assert not {name for name in _imports(path) if name.startswith("molprof.analysis")}, path


def test_the_lowest_ground_needs_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"molprof"}
    for path in (ROOT / "molprof/common/phases.py", ROOT / "profiler/__init__.py", ROOT / "molprof/common/errors.py"):
        assert {name.split(".")[0] for name in _imports(path)} <= allowed, path


def test_libraries_do_not_print() -> None:
    for folder in ("analysis", "profiler", "queries"):
        for path in _modules(folder):
            if "training" in path.parts:
                continue
            calls = {
                node.func.id
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert not calls & {"print", "exit"}, path


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_no_path_of_a_developers_machine_is_in_the_project() -> None:
    found = subprocess.run(
        ["git", "grep", "-nIE", r"/(home|root|work)/[a-z]", "--", ".", ":!tests/test_packaging.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
