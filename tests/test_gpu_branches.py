"""The table of docs/gpu.md has every place in the code that asks whether the device is a GPU, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from shape import checkout

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
# What asks, by its name in the code. molprof's own question is `on_gpu`.
NAMES = {"on_gpu", "is_cuda", "nvidia_smi", "fused_step", "mark_static_address"}
PACKAGE = "triton"
ROW = re.compile(r"^\| `([\w/]+\.py)`(?: `([\w.]+)`)? \| .+ \| (.+) \|$", re.MULTILINE)


def asks(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in NAMES
    if isinstance(node, ast.Attribute):
        return node.attr in NAMES or ast.unparse(node) in ("torch.cuda", "torch.version.cuda", "ProfilerActivity.CUDA")
    if isinstance(node, ast.Constant):
        return node.value in ("cuda", PACKAGE)
    return isinstance(node, ast.Import) and any(item.name == PACKAGE for item in node.names)


def places(node: ast.AST, name: str = "") -> Iterator[str]:
    """Functions, with their classes, in which something asks; empty: the module itself."""
    for child in ast.iter_child_nodes(node):
        inside = name
        if isinstance(child, ast.ClassDef) or (
            isinstance(child, ast.FunctionDef) and not isinstance(node, ast.FunctionDef)
        ):
            inside = f"{name}.{child.name}".lstrip(".")
        if asks(child):
            yield name
        yield from places(child, inside)


def test_the_table_is_what_the_code_asks() -> None:
    trees = checkout().trees
    found = {
        (path, place)
        for path, tree in trees.items()
        if path.startswith(("profiler/", "molprof/", "benchmarks/"))
        for place in places(tree)
    }
    rows = ROW.findall((ROOT / "docs" / "gpu.md").read_text(encoding="utf-8"))
    listed = [(path, place) for path, place, _ in rows]
    assert len(listed) == len(set(listed))
    assert sorted(set(listed) - found) == [], "the code no longer asks there"
    assert sorted(found - set(listed)) == [], "say in docs/gpu.md what a GPU does there, and what is tested without one"


def test_the_tests_that_it_names_exist() -> None:
    for _, _, tests in ROW.findall((ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")):
        names = re.findall(r"`(test_\w+\.py)`", tests)
        assert names or tests == "all"
        assert [name for name in names if not (ROOT / "tests" / name).exists()] == []
