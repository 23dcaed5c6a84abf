"""A grid file (TOML): the cases of a command, every combination of values of its options."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molprof.common.toml_file import TomlFile, read_toml, unknown

MOST_CASES = 10_000
EXAMPLE = """\
[options]            # of every capture
n = 16
[grid]               # every combination
model = ["qwen", "llama"]
processor = ["none", "lp"]
batch-size = [1, 8, 32]
[[exclude]]          # but not these
model = "llama"
batch-size = 32"""
# Of a case's name: file systems take 255 characters, endings included.
_NAME_CHARACTERS = 150
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")
_PATHS = ("model", "tokenizer", "smiles", "prompts", "trace", "traces")
Value = str | int | float | bool


@dataclass(frozen=True)
class Case:
    name: str  # file name of what it writes, without ending
    options: Mapping[str, Value]  # the values that it takes from the grid
    settings: Mapping[str, Value]  # those of all its options, by name


@dataclass(frozen=True)
class Grid:
    """A file and its cases; the last key of the grid changes fastest."""

    file: TomlFile
    command: str  # the words after `molprof`
    cases: tuple[Case, ...]

    def place(self, key: str) -> list[str]:
        return ["grid" if key in self.file.content["grid"] else "options", key]


def read_grid(path: Path, options_of: Callable[[str], Mapping[str, bool] | None]) -> Grid:
    """Return the cases that a file describes.

    Args:
        options_of: for a command the names of its options, and if each takes a value; None: there is no such command.
    """
    file = read_toml(path, EXAMPLE)
    content = file.check_keys(file.content, [], ("command", "options", "grid", "exclude"))
    command = content.get("command", "capture")
    known = options_of(command) if isinstance(command, str) else None
    if known is None:
        file.refuse(f"command is {command!r}, expected one that runs cases", ["command"], 'command = "bench batch"')
    common = file.check_keys(content.get("options", {}), ["options"], known)
    grid = file.check_keys(content.get("grid", {}), ["grid"], known)
    if not grid:
        file.refuse("there is no [grid]", [])
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            file.refuse(f"{key} is {values!r}, expected a list of values", ["grid", key])
        if key in common:
            file.refuse(f"{key} is in [options] too", ["grid", key])
        if twice := [text for text, times in Counter(map(repr, values)).items() if times > 1]:
            file.refuse(f"{key} has {twice[0]} twice", ["grid", key])
    excluded = _excluded(file, grid)
    count = math.prod(map(len, grid.values()))
    if count > MOST_CASES:
        file.refuse(f"the grid has {count:,} cases, more than {MOST_CASES:,}", ["grid"])
    for table, entries in (("options", {key: [value] for key, value in common.items()}), ("grid", grid)):
        for key, values in entries.items():
            for value in values:
                _check(file, [table, key], known[key], value)
    cases: dict[str, Case] = {}
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        if any(all(chosen[key] == value for key, value in rule.items()) for rule in excluded):
            continue
        name = _name(chosen, grid)
        while name in cases:  # such as those of two folders with the same name
            name += "_"
        cases[name] = Case(name, chosen, {**common, **chosen})
    if not cases:
        file.refuse("every case of the grid is excluded", ["exclude"])
    return Grid(file, command, tuple(cases.values()))


def _excluded(file: TomlFile, grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    rules = file.content.get("exclude", [])
    if not isinstance(rules, list):
        file.refuse("exclude is a table, expected [[exclude]]", ["exclude"])
    for number, rule in enumerate(rules):
        file.check_keys(rule, ["exclude", number], grid)
        for key, value in rule.items():
            if value not in grid[key]:
                problem = unknown(f"value {value!r} of {key}", str(value), [str(item) for item in grid[key]])
                file.refuse(problem, ["exclude", number, key])
    return [rule for rule in rules if rule]


def _check(file: TomlFile, where: list[str], takes_value: bool, value: object) -> None:
    key = where[-1]
    if not isinstance(value, str | int | float):
        file.refuse(f"{key} has the value {value!r}, expected text, a number, true or false", where)
    if isinstance(value, bool) == takes_value:
        expected = "a value" if takes_value else "true or false"
        file.refuse(f"{key} is {value!r}, expected {expected}", where)


def _name(chosen: Mapping[str, Value], grid: Mapping[str, list[Value]]) -> str:
    """Return a file name from the values that differ between cases; of models and processors without the key."""
    parts = []
    for key in [key for key in chosen if len(grid[key]) > 1] or chosen:
        value = chosen[key]
        text = Path(str(value)).name if key in _PATHS else str(value).lower()
        parts.append(text if key in ("model", "processor") else f"{key}-{text}")
    return _UNSAFE.sub("-", "-".join(parts))[:_NAME_CHARACTERS].strip("-.") or "case"
