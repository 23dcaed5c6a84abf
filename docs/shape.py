"""The shape of the code, measured from its text: which folder may import which, circles, lengths, parameters.

python docs/shape.py [CHECKOUT]
"""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Folder -> name that it is imported by.
FOLDERS = {
    "molprof": "molprof",
    "analysis": "molprof.analysis",
    "profiler": "molprof.profiler",
    "queries": "molprof.queries",
}
GROUND = "molprof.common"
# A module imports from its own folder, from the ground, and from lower floors of its own column, nothing else.
# Each column lists its floors from the lowest; folders on one floor do not import each other.
ANALYSIS = (
    ("molprof.queries", "molprof.analysis.drift", "molprof.analysis.render"),
    ("molprof.analysis.engine",),
    ("molprof.analysis.reader",),
    ("molprof.analysis.figures", "molprof.analysis.query"),
    ("molprof.analysis.findings", "molprof.analysis.compare", "molprof.analysis.trim", "molprof.analysis.ui"),
    ("molprof.analysis.reports", "molprof.analysis.bench"),
    ("molprof.analysis.plots",),
    ("molprof.analysis.documents",),
)
PROFILER = (
    ("molprof.profiler.models", "molprof.profiler.cluster", "molprof.profiler.environment"),
    ("molprof.profiler.molecules", "molprof.profiler.project", "molprof.profiler.sweep"),
    ("molprof.profiler.processors", "molprof.profiler.drift", "molprof.profiler.doctor"),
    ("molprof.profiler.decoding", "molprof.profiler.presets"),
    ("molprof.profiler.capture",),
    ("molprof.profiler.bench",),
)
COMMANDS = ("molprof.commands", "molprof.cli", "molprof.__main__")
MOST_LINES, MOST_TEST_LINES, MOST_PARAMETERS = 300, 350, 7


@dataclass(frozen=True)
class Import:
    """One import: where it stands and what it takes; `hidden` inside a function."""

    path: str
    line: int
    source: str
    target: str
    hidden: bool


class Checkout:
    """The Python files of a checkout.

    Args:
        root: its folder, under version control.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=root, capture_output=True)
        names = listed.stdout.decode().splitlines()
        self.files = {name: (root / name).read_text(encoding="utf-8") for name in names if (root / name).exists()}

    @cached_property
    def modules(self) -> dict[str, str]:
        """Path of each module of the package, by its dotted name."""
        found = {}
        for path in self.files:
            folder, _, rest = path.partition("/")
            if folder in FOLDERS:
                parts = rest.removesuffix(".py").split("/")
                found[".".join([FOLDERS[folder], *(part for part in parts if part != "__init__")])] = path
        return found

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import of one module of the package by another, imports for types alone included."""
        return tuple(item for name, path in self.modules.items() for item in self._imports(name, path))

    def _imports(self, source: str, path: str) -> Iterator[Import]:
        for node, hidden in _walk(ast.parse(self.files[path]), False):
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

    def breaks(self) -> list[str]:
        """Imports that the floors do not allow."""
        return [
            f"{item.path}:{item.line} imports {item.target}"
            for item in self.imports
            if not _allowed(item.source, item.target)
        ]

    def circles(self, hidden: bool) -> list[list[str]]:
        """Groups of rooms that import each other in a circle; with imports inside functions, or without."""
        arrows: dict[str, set[str]] = {}
        for item in self.imports:
            if hidden or not item.hidden:
                arrows.setdefault(room(item.source), set()).add(room(item.target))
        return _circles(arrows)

    def module_circles(self) -> list[list[str]]:
        """Groups of modules that import each other in a circle, imports inside functions included."""
        arrows: dict[str, set[str]] = {}
        for item in self.imports:
            arrows.setdefault(item.source, set()).add(item.target)
        return _circles(arrows)

    def arrows(self, package: str) -> set[tuple[str, str]]:
        """Imports between two rooms of one package."""
        pairs = {(room(item.source), room(item.target)) for item in self.imports}
        return {(a, b) for a, b in pairs if a != b and a.startswith(f"{package}.") and b.startswith(f"{package}.")}

    def rooms(self, package: str) -> set[str]:
        """Files and folders directly inside a package."""
        return {room(name) for name in self.modules if name.startswith(f"{package}.")}

    def lengths(self, tests: bool) -> dict[str, int]:
        """Lines of each file of the tests, or of all others."""
        return {path: len(text.splitlines()) for path, text in self.files.items() if path.startswith("tests/") is tests}

    def long_signatures(self) -> list[str]:
        """Functions of more than `MOST_PARAMETERS` parameters, those that click calls left out."""
        return [
            f"{path}:{node.lineno} {node.name} ({count})"
            for path, text in self.files.items()
            if not path.startswith("tests/")
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and (count := _parameters(node)) > MOST_PARAMETERS
            and not any("click" in (words := ast.unparse(one)) or "option" in words for one in node.decorator_list)
        ]


def room(name: str) -> str:
    """The file or folder that a module belongs to, directly inside analysis, profiler or molprof."""
    for package in ("molprof.analysis", "molprof.profiler", "molprof.queries"):
        if name == package or name.startswith(f"{package}."):
            depth = 2 if package == "molprof.queries" else 3
            return ".".join(name.split(".")[:depth])
    return ".".join(name.split(".")[:2])


def _allowed(source: str, target: str) -> bool:
    mine, other = room(source), room(target)
    if mine == other or other == GROUND:
        return True
    if mine == GROUND:
        return False
    if mine in COMMANDS:
        return other not in COMMANDS or COMMANDS.index(other) < COMMANDS.index(mine)
    for column in (ANALYSIS, PROFILER):
        floors = {name: number for number, names in enumerate(column) for name in names}
        if mine in floors and other in floors:
            return floors[other] < floors[mine]
    return False


def _walk(node: ast.AST, hidden: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = hidden or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield child, inside
        yield from _walk(child, inside)


def _circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected groups of two or more."""
    reach = {name: _reachable(name, arrows) for name in arrows}
    groups = {
        tuple(sorted({name, *(other for other in reach[name] if name in reach.get(other, ()))})) for name in arrows
    }
    return [list(group) for group in sorted(groups) if len(group) > 1]


def _reachable(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        for name in arrows.get(todo.pop(), ()):
            if name not in found:
                found.add(name)
                todo.append(name)
    return found


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = node.args
    names = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def targets(code: Checkout) -> list[tuple[str, int, int]]:
    """What is measured, its value, and the most that it may be."""
    outside, inside = code.lengths(False), code.lengths(True)
    packaged = [outside[path] for path in code.modules.values() if outside[path]]
    return [
        ("circles of folders", len(code.circles(False)), 0),
        ("circles of folders, with imports inside functions", len(code.circles(True)), 0),
        ("circles of modules, with imports inside functions", len(code.module_circles()), 0),
        ("imports against the order of the floors", len(code.breaks()), 0),
        ("Python lines outside tests", sum(outside.values()), 30_000),
        ("median lines of a module", round(statistics.median(packaged)), 120),
        (f"files over {MOST_LINES} lines", sum(lines > MOST_LINES for lines in outside.values()), 0),
        (f"tests over {MOST_TEST_LINES} lines", sum(lines > MOST_TEST_LINES for lines in inside.values()), 0),
        (f"functions of more than {MOST_PARAMETERS} parameters", len(code.long_signatures()), 0),
        ("rooms of analysis", len(code.rooms("molprof.analysis")), 14),
        ("rooms of profiler", len(code.rooms("molprof.profiler")), 15),
    ]


def _lines(title: str, items: Iterable[str]) -> list[str]:
    found = list(items)
    return [f"\n{title}:", *(f"  {item}" for item in found)] if found else []


def main(root: Path = ROOT) -> None:
    """Prints the table of targets, then whatever breaks one."""
    code = Checkout(root)
    text = [f"{name:<52} {value:>7,}  at most {most:,}" for name, value, most in targets(code)]
    for package in ("molprof.analysis", "molprof.profiler"):
        text.append(f"{package + ': imports between rooms':<52} {len(code.arrows(package)):>7,}")
    text += _lines("Against the order", code.breaks())
    text += _lines("Circles of modules", (" ".join(group) for group in code.module_circles()))
    for tests, most in ((False, MOST_LINES), (True, MOST_TEST_LINES)):
        long = sorted(((lines, path) for path, lines in code.lengths(tests).items() if lines > most), reverse=True)
        text += _lines(f"Over {most} lines", (f"{lines} {path}" for lines, path in long))
    text += _lines("Many parameters", code.long_signatures())
    sys.stdout.write("\n".join(text) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
