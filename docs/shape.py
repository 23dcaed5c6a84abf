"""The shape of the code, measured from its text: floors, imports, circles, lengths, parameters.

python docs/shape.py [CHECKOUT]
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx

ROOT = Path(__file__).parent.parent
# Folder -> name that it is imported by.
FOLDERS = {
    "molprof": "molprof",
    "analysis": "molprof.analysis",
    "profiler": "molprof.profiler",
    "queries": "molprof.queries",
}
GROUND = "molprof.common"


def _floors(column: int) -> tuple[tuple[str, ...], ...]:
    """Return the rooms of one side by floor, from the lowest: the table in architecture.md declares them.

    The highest and the lowest row name paths, which are none.
    """
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("\n## Floors\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \d+ \|(.*?)\|(.*?)\|$", table, re.MULTILINE)
    side = ("molprof.analysis", "molprof.profiler")[column]
    rooms = [[name.removesuffix(".py") for name in re.findall(r"`([\w.]+)`", row[column])] for row in reversed(rows)]
    return tuple(tuple(f"{'molprof' if name == 'queries' else side}.{name}" for name in names) for names in rooms)


ANALYSIS, PROFILER = _floors(0), _floors(1)
COMMANDS = (("molprof.api",), ("molprof.commands", "molprof.testing"), ("molprof.cli",), ("molprof.__main__",))
# Documents show reports, whoever loads them.
FORBIDDEN = ("molprof.analysis.documents", "molprof.analysis.trace")
MOST_LINES, MOST_TEST_LINES, MOST_PARAMETERS = 450, 450, 7
# click passes every option; a Triton kernel takes pointers, strides and sizes one by one.
EXEMPT = ("click", "option", "triton.jit")


@dataclass(frozen=True)
class Import:
    """One import: where it stands and what it takes; `hidden` inside a function."""

    path: str
    line: int
    source: str
    target: str
    hidden: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.target}"


class Checkout:
    """The Python files of a checkout under version control.

    Attributes:
        trees: syntax tree of each file but the tests, by its path.
        modules: path of each module of the package, by its dotted name.
        imports: every import of one module of the package by another, imports for types alone included.
    """

    def __init__(self, root: Path = ROOT) -> None:
        command = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
        names = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True).stdout.splitlines()
        files = {name: (root / name).read_text(encoding="utf-8") for name in names if (root / name).exists()}
        self.trees = {path: ast.parse(text) for path, text in files.items() if not path.startswith("tests/")}
        self._lines = {path: len(text.splitlines()) for path, text in files.items()}
        self.modules: dict[str, str] = {}
        for path in files:
            folder, _, rest = path.partition("/")
            if folder in FOLDERS:
                parts = rest.removesuffix(".py").split("/")
                self.modules[".".join([FOLDERS[folder], *(part for part in parts if part != "__init__")])] = path
        self.imports = [item for name, path in self.modules.items() for item in self._imports(name, path)]

    def _imports(self, source: str, path: str) -> Iterator[Import]:
        for node, hidden in _walk(self.trees[path], False):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = (f"{node.module}.{alias.name}" for alias in node.names)
                targets = [name if name in self.modules else node.module for name in inner]
            else:
                continue
            for target in dict.fromkeys(targets):
                if target in self.modules and target not in (source, "molprof"):
                    yield Import(path, node.lineno, source, target, hidden)

    def breaks(self) -> list[Import]:
        """Return imports against the order of the floors."""
        return [item for item in self.imports if not _allowed(room(item.source), room(item.target))]

    def circles(self, hidden: bool) -> list[list[str]]:
        """Return groups of rooms that import each other in a circle; with imports inside functions, or without."""
        return _circles((room(item.source), room(item.target)) for item in self.imports if hidden or not item.hidden)

    def module_circles(self) -> list[list[str]]:
        """Return groups of modules that import each other in a circle, imports inside functions included."""
        return _circles((item.source, item.target) for item in self.imports)

    def lengths(self, tests: bool) -> dict[str, int]:
        """Lines of each file of the tests, or of all others."""
        return {path: lines for path, lines in self._lines.items() if path.startswith("tests/") is tests}

    def long_files(self) -> dict[str, int]:
        """Lines of each file that has too many."""
        pairs = ((False, MOST_LINES), (True, MOST_TEST_LINES))
        return {path: lines for tests, most in pairs for path, lines in self.lengths(tests).items() if lines > most}

    def long_signatures(self) -> dict[str, int]:
        """Parameters of each function that has too many, by `path:function`."""
        return {
            f"{path}:{node.name}": count
            for path, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and (count := _parameters(node)) > MOST_PARAMETERS
            and not any(word in ast.unparse(one) for one in node.decorator_list for word in EXEMPT)
        }

    def imports_of_nothing(self) -> list[str]:
        """Return imports of modules of the package that it does not have; some run only beside other packages."""
        return [
            f"{path}:{node.lineno} imports {node.module}"
            for path, tree in self.trees.items()
            if not path.startswith("docs/recipes/")  # which say where their files go
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("molprof.")
            if node.module not in self.modules
        ]

    def names_twice(self) -> dict[str, list[str]]:
        """Return the files of each class name that the package has several times, with or without an underscore."""
        found: dict[str, list[str]] = {}
        for path in self.modules.values():
            for node in ast.walk(self.trees[path]):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name.lstrip("_"), []).append(path)
        return {name: paths for name, paths in found.items() if len(paths) > 1}


def room(name: str) -> str:
    """Return the file or folder directly inside analysis, profiler or molprof that a module belongs to."""
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[1:2] in (["analysis"], ["profiler"]) else 2])


def _allowed(source: str, target: str) -> bool:
    if source in (target, "molprof") or target == GROUND:  # the package hands out what it has, when it is used
        return True
    if (source, target) == FORBIDDEN or source == GROUND:
        return False
    for column in (ANALYSIS, PROFILER, COMMANDS):
        floors = {name: number for number, names in enumerate(column) for name in names}
        if source in floors and target in floors:
            return floors[target] < floors[source]
    return any(source in names for names in COMMANDS)


def _walk(node: ast.AST, hidden: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether it stands inside a function."""
    for child in ast.iter_child_nodes(node):
        inside = hidden or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield child, inside
        yield from _walk(child, inside)


def _circles(arrows: Iterable[tuple[str, str]]) -> list[list[str]]:
    groups = networkx.strongly_connected_components(networkx.DiGraph(arrows))
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = node.args
    names = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


@functools.cache
def checkout() -> Checkout:
    """Return the checkout that this file is in, read once."""
    return Checkout()


def main(root: Path = ROOT) -> int:
    """Print what breaks a rule; return how much does."""
    code = Checkout(root)
    broken = {
        "Against the order": list(map(str, code.breaks())),
        "Imports of nothing": code.imports_of_nothing(),
        "Circles of rooms": list(map(" ".join, code.circles(True))),
        "Circles of modules": list(map(" ".join, code.module_circles())),
        "Long files": [f"{lines} {path}" for path, lines in code.long_files().items()],
        "Class names used twice": [f"{name} {' '.join(paths)}" for name, paths in code.names_twice().items()],
        "Many parameters": [f"{count} {name}" for name, count in code.long_signatures().items()],
    }
    text = [
        line for title, items in broken.items() if items for line in (f"{title}:", *(f"  {item}" for item in items))
    ]
    sys.stdout.write("\n".join([*text, f"{sum(map(len, broken.values()))} problems"]) + "\n")
    return min(1, sum(map(len, broken.values())))


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
