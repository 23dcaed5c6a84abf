"""The docs are true: commands parse, examples and recipes run, every SQL column is documented."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import examples
import pytest
from forks import forked

import molprof
from molprof.cli import cli
from molprof.commands import capture
from molprof.queries.catalog import CatalogColumn, catalog, standalone_sql

ROOT = Path(__file__).parent.parent
# Command lines of the page for contributors are of this checkout, those of recipes of what they add.
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {ROOT / "docs/contributing.md"})]
CATALOG = catalog()
# What Perfetto's own library uses; durations and times are not plain numbers.
TYPES = r"LONG|DOUBLE|STRING|BOOL|TIMESTAMP|DURATION|ARGSETID|JOINID\([a-z_]+\.[a-z_]+\)"
# Tables, functions and keywords of Perfetto and SQLite that may stand after FROM or JOIN.
STOCK = {"slice", "thread_track", "thread", "process", "args", "ancestor_slice"}
STOCK |= {"counter", "counter_track", "process_counter_track", "_interval_intersect"}
# Where molprof opened or exported the trace.
FACTS = set(re.findall(r"^CREATE PERFETTO TABLE (\w+)", (ROOT / "queries/facts.sql").read_text(), re.MULTILINE))
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    return [
        re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
        for indent, name, code in BLOCK.findall(text)
        if name == language
    ]


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words of each `molprof` command line of a page."""
    for code in blocks(page.read_text(encoding="utf-8"), "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s(?:&&|\|)\s", line):
                words = shlex.split(part, comments=True)
                if "molprof" in words:
                    yield words[words.index("molprof") + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_command_lines_parse(page: Path) -> None:
    for words in command_lines(page):
        command: click.Command = cli
        context = click.Context(cli, **cli.context_settings)
        while words and (isinstance(command, click.Group) or words[0] in getattr(command, "commands", {})):
            if words[0].startswith("-"):
                break
            name = words.pop(0)
            found = command.get_command(context, name) if isinstance(command, click.Group) else command.commands[name]
            assert found is not None, words
            command, context = found, click.Context(found, context, **found.context_settings)
        given, rest, _ = command.make_parser(context).parse_args(words)
        assert not rest
        more = given.get("case_options")  # options of the cases of a sweep
        of_cases = {word.partition("=")[0] for word in more if word[0] == "-"} if isinstance(more, tuple) else set()
        assert of_cases <= {name for item in capture.command.params for name in item.opts}, words
        for name, value in given.items():
            option = next(item for item in command.params if item.name == name)
            assert not getattr(option, "hidden", False), words  # an option that is a command now
            kind = option.type
            if isinstance(kind, click.Choice):
                assert value in kind.choices, words


@pytest.mark.parametrize("page", examples.PAGES)
def test_examples_show_what_the_traces_give(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert examples.fresh(text) == text, "run: python docs/examples.py"


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, trace in (("trace", "qwen"), ("before", "qwen"), ("after", "qwen-generic")):
        (tmp_path / f"{name}.json.gz").symlink_to(ROOT / f"traces/cpu-{trace}.json.gz")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    code = blocks((ROOT / "docs/api.md").read_text(encoding="utf-8"), "python")[0]
    names = {"molprof": molprof}
    exec(code, names)
    assert len(names["late"].to_json()) == len(names["late"]["dur"]) == 0  # type: ignore[attr-defined]
    assert len(names["many"]) == len(list((ROOT / "traces").glob("*.json.gz")))  # type: ignore[arg-type]


def test_messages_name_pages_that_exist() -> None:
    for folder in ("molprof", "profiler", "analysis", "queries", "benchmarks", "training"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".sql", ".md"):
                for name in re.findall(r"docs/[\w-]+\.(?:md|py)", path.read_text(encoding="utf-8")):
                    assert (ROOT / name).exists(), f"{path}: {name}"


def steps(text: str) -> Iterator[tuple[str, str, str]]:
    """The file that each block of a recipe is of, its language, and its text."""
    end, path = 0, ""
    for found in BLOCK.finditer(text):
        step = re.split(r"^\d\. ", text[end : found.start()], flags=re.MULTILINE)[-1]
        paths = re.findall(r"`([\w/]+/[\w.]+\.(?:py|sql|txt))`", step)
        indent, language, code = found.groups()
        path = paths[0] if paths else path  # else that of the block above
        if indent:  # of a numbered step
            yield path, language, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
        end = found.end()


def place(folder: Path, name: str) -> Path:
    """Where a file of the checkout is in the copy."""
    return folder / ("molprof" if name.startswith(("analysis/", "profiler/", "queries/")) else "") / name


def apply(path: Path, language: str, code: str) -> None:
    if language == "diff":
        lines = code.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        new = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        text = path.read_text(encoding="utf-8")
        if len(lines) == 2 and lines[0].startswith("-from "):  # what is imported already may have grown
            source, _, names = lines[1][1:].partition(" import ")
            (old,) = re.findall(rf"^{re.escape(source)} import .*$", text, re.MULTILINE)
            known = {*old.partition(" import ")[2].split(", "), *names.split(", ")}
            new = f"{source} import {', '.join(sorted(known))}"
        assert text.count(old.rstrip("\n")) == 1, f"{path}: {old}"
        path.write_text(text.replace(old.rstrip("\n"), new.rstrip("\n")), encoding="utf-8")
    elif path.exists():
        between = "\n\n" if language == "text" else "\n\n\n"
        path.write_text(f"{path.read_text(encoding='utf-8').rstrip()}{between}{code}", encoding="utf-8")
    else:
        path.write_text(code, encoding="utf-8")


def test_recipes_work(tmp_path: Path) -> None:
    """All recipes, done to a copy, whose tests then pass."""
    package, ignored = tmp_path / "molprof", shutil.ignore_patterns("__pycache__", "goldens")
    shutil.copytree(ROOT / "molprof", package, ignore=ignored)
    for folder in ("analysis", "profiler", "queries"):
        shutil.copytree(ROOT / folder, package / folder, ignore=ignored)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignored)
    for name in ("docs", "benchmarks", "traces", "setup.cfg", "tests/goldens"):
        (tmp_path / name).symlink_to(ROOT / name)
    pages = re.findall(r"\]\((recipes/[\w-]+\.md)\)", (ROOT / "docs/contributing.md").read_text(encoding="utf-8"))
    assert {f"recipes/{page.name}" for page in (ROOT / "docs/recipes").glob("*.md")} == set(pages)
    recipes = "\n".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages)
    tests = [f"tests/test_queries.py::test_cases[{name}]" for name in re.findall(r"`tests/sql/(\w+)\.txt`", recipes)]
    for source, name in re.findall(r"Copy \[`(docs/recipes/\w+\.\w+)`\]\(\S+\) to `(\S+)`", " ".join(recipes.split())):
        shutil.copy(ROOT / source, place(tmp_path, name))
    for name, language, code in steps(recipes):
        if language in ("python", "diff", "text"):
            apply(place(tmp_path, name), language, code)
            tests += [f"{name}::{test}" for test in re.findall(r"^def (test_\w+)", code, re.MULTILINE)]
    forked(passes, tmp_path, tests)


def passes(folder: Path, tests: list[str]) -> None:
    """The tests of the copy pass, and so its own molprof: none of this process."""
    own = tuple(str(ROOT / name) for name in ("tests/", "docs/", "benchmarks/"))
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "molprof" or str(getattr(module, "__file__", None)).startswith(own):
            del sys.modules[name]
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    os.environ.pop("PYTEST_XDIST_WORKER", None)
    assert pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "-c", "setup.cfg", *tests]) == 0


@pytest.mark.parametrize("name", CATALOG)
def test_every_column_has_type_comment_and_unit(name: str) -> None:
    for entry in CATALOG[name].entries:
        for column in (*entry.arguments, *entry.columns):
            check_column(column)


def check_column(column: CatalogColumn) -> None:
    assert re.fullmatch(TYPES, column.type), column
    assert column.comment.endswith("."), f"a comment is a sentence: {column}"
    if column.type in ("TIMESTAMP", "DURATION") or column.name.endswith("_ns"):
        assert column.unit == "ns", column
    if column.name.endswith(("_bytes", "bytes")):
        assert column.unit == "bytes", column
    if column.name.endswith("_ratio"):
        assert (column.unit, column.type) == ("ratio", "DOUBLE"), column
    if column.name.endswith("_per_second"):
        assert column.unit == "bytes/s", column
    if column.type == "DOUBLE" and not column.unit:
        # A mean or quotient of counts says so in its name.
        assert re.search(r"_per_[a-z]+$|^mean_", column.name), column


@pytest.mark.parametrize("name", CATALOG)
def test_every_module_has_a_line_an_example_and_documented_entries(name: str) -> None:
    module = CATALOG[name]
    assert module.line.endswith(".")
    assert len(f"{name:18} {module.line}") <= 120
    assert module.example.endswith(";")
    assert "ORDER BY" in module.example
    assert any(entry.name in module.example for entry in module.entries)
    assert set(re.findall(r"\$(\w+)", module.example)) == {key for key, _ in module.defaults}
    assert all(entry.comment and entry.columns for entry in module.entries)


@pytest.mark.parametrize("name", CATALOG)
def test_every_entry_is_tested(name: str) -> None:
    tests = "".join(path.read_text() for path in sorted((ROOT / "tests/sql").glob("*.txt")))
    assert [entry.name for entry in CATALOG[name].entries if not re.search(rf"\b{entry.name}\b", tests)] == []


@pytest.mark.parametrize("name", CATALOG)
def test_modules_use_stock_perfetto_and_what_they_include_alone(name: str) -> None:
    sql = re.sub(r"--.*|'[^']*'", "", CATALOG[name].sql)
    # Names that begin with _ are for the modules of the package alone.
    own, *others = (
        set(re.findall(r"^CREATE PERFETTO \w+ (\w+)", item.sql, re.MULTILINE))
        for item in (CATALOG[name], *(CATALOG[item] for item in CATALOG[name].includes))
    )
    local = set(re.findall(r"^ +(?:RECURSIVE )?(\w+)(?:\([^)]*\))? AS (?:MATERIALIZED )?\($", sql, re.MULTILINE))
    included = set().union(*others)
    read = set(re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", sql))
    assert read <= own | local | included | STOCK | FACTS
    assert sql.count("CREATE ") == sql.count("CREATE PERFETTO ")


def test_sql_to_paste_has_every_module_once_and_no_include() -> None:
    for name in CATALOG:
        sql = standalone_sql(name, CATALOG)
        assert "INCLUDE PERFETTO MODULE molprof" not in sql
        created = re.findall(r"^CREATE OR REPLACE PERFETTO \w+ (\w+)", sql, re.MULTILINE)
        assert len(created) == len(set(created))
        assert set(created) >= {entry.name for entry in CATALOG[name].entries}
