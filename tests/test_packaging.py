"""What the package must contain, and what the project's files promise each other."""

from __future__ import annotations

import ast
import configparser
import subprocess
from pathlib import Path

import pytest
from shape import FOLDERS

ROOT = Path(__file__).parent.parent


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
        for folder, name in FOLDERS.items()
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


def test_the_wheel_has_every_data_file() -> None:
    listed = _setup()["options.package_data"]
    for folder, name in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                matched = [
                    pattern
                    for package, patterns in listed.items()
                    for pattern in patterns.replace(",", " ").split()
                    if path.match(str(Path(folder, *package.removeprefix(name).split("."), pattern)))
                ]
                assert matched, f"{path} is in no package_data of setup.cfg"


def test_libraries_do_not_print() -> None:
    for folder in ("analysis", "profiler", "queries"):
        for path in _modules(folder):
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
