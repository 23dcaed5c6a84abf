"""A grid (TOML): the cases of a command, one for every combination of option values; packaged or a user's file."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from molprof.common.errors import UsageError
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
_GRIDS = Path(__file__).with_name("grids")
# Of a case's name: file systems take 255 characters, endings included.
_NAME_CHARACTERS = 150
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")
_PATHS = ("model", "tokenizer", "smiles", "prompts", "trace", "traces")
# Options that take several values with commas between them, besides those of numbers and of choices.
_LISTS = ("model", "processor")
_ALL = "all"
Value = str | int | float | bool


@dataclass(frozen=True)
class Option:
    """An option or argument of the command."""

    takes_value: bool = True
    choices: tuple[str, ...] = ()  # all values; empty: others too
    number: type[int] | type[float] | None = None
    repeatable: bool = False  # one case has several values

    def values(self, key: str, text: str) -> list[Value]:
        """Return the values of a text on the command line."""
        if self.choices and text == _ALL:
            return [*self.choices]
        is_list = bool(self.choices or self.number or (key in _LISTS and not Path(text).exists()))
        return [self._value(item.strip()) for item in text.split(",")] if is_list else [text]

    def _value(self, text: str) -> Value:
        try:
            return text if self.number is None else self.number(text)
        except ValueError:  # which the command says
            return text


@dataclass(frozen=True)
class Case:
    """A case of a grid."""

    name: str  # file name of what it writes, without ending
    options: Mapping[str, Value]  # the values that it takes from the grid
    settings: Mapping[str, Any]  # those of all its options, by name


@dataclass(frozen=True)
class Grid:
    """A file and its cases; the last key of the grid changes fastest."""

    file: TomlFile
    command: str  # the words after `molprof`
    cases: tuple[Case, ...]
    processes: int  # of each case
    overrides: Mapping[str, Any]  # options of the command line, which replace those of the file

    def refuse(self, key: str, problem: str, hint: str | None = None) -> NoReturn:
        """Raise UsageError with the option's name, or its line in the file."""
        if key in self.overrides or not key:
            raise UsageError(problem if not key or problem.startswith("Invalid") else f"--{key}: {problem}", hint)
        self.file.refuse(problem, ["grid" if key in self.file.content["grid"] else "options", key], hint)


def packaged() -> dict[str, str]:
    """Return the grids that come with molprof, and a line about each."""
    files = sorted(_GRIDS.glob("*.toml"))
    return {path.stem: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for path in files}


def grid_path(name: Path) -> Path:
    """Return the file of a grid: the one of that path, else a packaged one."""
    return _GRIDS / f"{name}.toml" if str(name) in packaged() and not name.is_file() else name


def read_grid(path: Path, options_of: Callable[[str], Mapping[str, Option] | None], words: Sequence[str] = ()) -> Grid:
    """Return the cases that a file describes.

    Args:
        options_of: for a command its options by their names; None: there is no such command.
        words: options of the command on the command line, which replace those of the file.
    """
    if not path.exists():
        raise UsageError(f"no grid {path}", hint=f"a TOML file, or one of {', '.join(packaged())}")
    file = read_toml(path, EXAMPLE)
    content = file.check_keys(file.content, [], ("command", "processes", "options", "grid", "exclude"))
    command, processes = content.get("command", "capture"), content.get("processes", 1)
    options = options_of(command) if isinstance(command, str) else None
    if options is None:
        old = str(command).removeprefix("bench ")
        if old in packaged():
            file.refuse(f"command = {command!r} is a grid of its own now", ["command"], f"molprof sweep {old}")
        file.refuse(f"command is {command!r}, expected one that runs cases", ["command"], 'command = "report"')
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        file.refuse(f"processes is {processes!r}, expected a whole number from 1 on", ["processes"])
    common = dict(file.check_keys(content.get("options", {}), ["options"], options))
    grid = dict(file.check_keys(content.get("grid", {}), ["grid"], options))
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            file.refuse(f"{key} is {values!r}, expected a list of values", ["grid", key])
        if key in common:
            file.refuse(f"{key} is in [options] too", ["grid", key])
    overrides = _asked(words, options)
    for key, values in overrides.items():
        common.pop(key, None)
        if options[key].repeatable or (len(values) == 1 and key not in grid):
            common[key] = values if options[key].repeatable else values[0]
        else:
            grid[key] = values
    checked = Grid(file, command, (), processes, overrides)
    if not grid:
        file.refuse("there is no [grid]", [])
    for key, values in grid.items():
        grid[key] = values = [*options[key].choices] if values == [_ALL] and options[key].choices else values
        if twice := [text for text, times in Counter(map(repr, values)).items() if times > 1]:
            checked.refuse(key, f"{key} has {twice[0]} twice")
    excluded = _excluded(file, grid, overrides)
    count = math.prod(map(len, grid.values()))
    if count > MOST_CASES:
        file.refuse(f"the grid has {count:,} cases, more than {MOST_CASES:,}", ["grid"])
    for key, values in ({key: [value] for key, value in common.items()} | grid).items():
        for value in values:
            _check(checked, key, options[key], value)
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
    return Grid(file, command, tuple(cases.values()), processes, overrides)


def _asked(words: Sequence[str], options: Mapping[str, Option]) -> dict[str, list[Value]]:
    """Return the values of the command line's options."""
    overrides: dict[str, list[Value]] = {}
    left = [*words]
    while left:
        word, equals, text = left.pop(0).partition("=")
        key = word.lstrip("-")
        option = options.get(key)
        if option is None or not word.startswith("-"):
            raise UsageError(unknown(f"option {word!r} of the cases", key, options), "molprof capture --help-all")
        if option.takes_value and not equals and not left:
            raise UsageError(f"{word} requires a value")
        text = text if equals or not option.takes_value else left.pop(0)
        values = option.values(key, text) if option.takes_value else [True]
        overrides[key] = [*overrides.get(key, []), *values]
    return overrides


def _excluded(file: TomlFile, grid: Mapping[str, Any], overrides: Mapping[str, Any]) -> list[dict[str, Any]]:
    rules = file.content.get("exclude", [])
    if not isinstance(rules, list):
        file.refuse("exclude is a table, expected [[exclude]]", ["exclude"])
    kept = []
    for number, rule in enumerate(rules):
        file.check_keys(rule, ["exclude", number], grid)
        wrong = [key for key, value in rule.items() if value not in grid[key]]
        if wrong and not any(key in overrides for key in wrong):  # else the command line leaves the rule without cases
            value, values = rule[wrong[0]], [str(item) for item in grid[wrong[0]]]
            problem = unknown(f"value {value!r} of {wrong[0]}", str(value), values)
            file.refuse(problem, ["exclude", number, wrong[0]])
        kept += [rule] if rule and not wrong else []
    return kept


def _check(grid: Grid, key: str, option: Option, value: object) -> None:
    if option.repeatable and key in grid.overrides:
        return
    if not isinstance(value, str | int | float):
        grid.refuse(key, f"{key} has the value {value!r}, expected text, a number, true or false")
    if isinstance(value, bool) == option.takes_value:
        expected = "a value" if option.takes_value else "true or false"
        grid.refuse(key, f"{key} is {value!r}, expected {expected}")


def _name(chosen: Mapping[str, Value], grid: Mapping[str, list[Value]]) -> str:
    """Return a file name from the values that differ between cases; of models and processors without the key."""
    parts = []
    for key in [key for key in chosen if len(grid[key]) > 1] or chosen:
        value = chosen[key]
        text = Path(str(value)).name if key in _PATHS else str(value).lower()
        parts.append(text if key in ("model", "processor") else f"{key}-{text}")
    return _UNSAFE.sub("-", "-".join(parts))[:_NAME_CHARACTERS].strip("-.") or "case"
