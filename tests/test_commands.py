"""Commands as a person types them: help on one screen, subcommands, former names, and names of traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tiny_trace import document, write

from molprof.cli import cli

SCREEN = 40


def _commands(command: click.Command, name: str) -> Iterator[str]:
    yield name
    own = getattr(command, "commands", {}) or {}
    context = click.Context(command)
    names = command.list_commands(context) if isinstance(command, click.Group) else list(own)
    for item in names:
        found = command.get_command(context, item) if isinstance(command, click.Group) else own[item]
        assert found is not None
        yield from _commands(found, f"{name} {item}".strip())


COMMANDS = tuple(_commands(cli, ""))


def shown(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words), terminal_width=100)
    return done.output


def failed(*words: str | Path) -> str:
    done = CliRunner().invoke(cli, list(map(str, words)))
    assert done.exit_code == 2, done.output
    return done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_one_screen(name: str) -> None:
    page = shown(*name.split(), "--help").splitlines()
    assert len(page) <= SCREEN
    assert page[2].startswith("  molprof") or name == "presets" or name.startswith("presets ")


def test_help_all_explains_the_options_that_help_names() -> None:
    short, whole = shown("capture", "--help"), shown("capture", "--help-all")
    assert len(whole.splitlines()) > SCREEN
    options = {word.strip(",") for word in short.split() if word.startswith("--") and word.strip(",") != "--help-all"}
    assert {"--model", "--top-p", "--cudnn-benchmark"} <= options
    assert all(option in whole for option in options - {"--template-", "--max-new-"})
    assert shown("report", "rows", "--help") != shown("report", "--help")


@pytest.mark.parametrize(
    ("words", "now"),
    [
        ("plot timeline a.json", "molprof report plot"),
        ("queries", "molprof query list"),
        ("recommend a.jsonl", "molprof sweep recommend"),
        ("bench cache --model qwen", "molprof sweep cache"),
        ("collect 1", "molprof jobs collect"),
        ("logs 1", "molprof jobs logs"),
        ("report a.json --by module", "molprof report by module TRACE"),
        ("report a.json --what-if gpu=0x", "molprof report by path TRACE --what-if gpu=0x"),
        ("report a.json --peak bf16=1", "molprof report by shape TRACE --peak bf16=1"),
        ("report a.json --rows", "molprof report rows TRACE"),
    ],
)
def test_former_names_say_what_to_type_now(words: str, now: str) -> None:
    assert now in failed(*words.split())


@pytest.mark.parametrize(
    "words",
    [
        "by module {} --fail-if kernels>1", "by module {} --what-if gpu=0x", "by shape {} --format speedscope",
        "by path {} --peak bf16=1", "by memory {} --graph-capture {}", "rows {} --all", "by size {}",
        "by shape {} --names-from {}", "{} --format speedscope", "{} -o a.speedscope.json",
    ],
)  # fmt: skip
def test_what_cannot_go_together_is_refused(tmp_path: Path, words: str) -> None:
    trace = write(tmp_path / "a.json", document())
    failed("report", *words.format(trace, trace).split())


def test_a_trace_that_is_named_as_a_subcommand_is_given_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "by", document())
    assert "Usage: cli report by" in shown("report", "by", "--help")
    assert json.loads(shown("report", "./by", "--format", "json"))["trace"]["path"].endswith("by")


def test_the_ending_of_a_compressed_trace_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.json.gz", document())
    done = CliRunner().invoke(cli, ["report", "a.json", "--format", "json"])
    assert done.stderr.splitlines()[0] == "there is no a.json: a.json.gz is read"
    assert json.loads(done.stdout)["trace"]["path"].endswith("a.json.gz")
    missing = CliRunner().invoke(cli, ["report", "b.json"])
    assert "b.json: No such file" in str(missing.exception) + missing.output
