"""Pages for assistants are complete, and questions that a trace cannot answer are named."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
import pytest
import tiny_trace
from goldens import called

from molprof.analysis.documents.questions import QUESTIONS
from molprof.analysis.findings import RULES
from molprof.cli import cli

CPU_ONLY = {"idle", "kernels", "peaks"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the skill, and a small trace with a kernel."""
    folder = tmp_path_factory.mktemp("skill")
    assert called(["skill", "skill"], folder)[0] == 0
    tiny_trace.write(folder / "gpu.json", {"traceEvents": [tiny_trace.work("kernel", "a", 0, 5, 1)]})
    return folder


def test_every_finding_belongs_to_one_question() -> None:
    subjects = [subject for item in QUESTIONS for subject in item.subjects]
    assert sorted(subjects) == sorted({rule.find.__module__.rpartition(".")[2] for rule in RULES})
    assert {name for item in QUESTIONS for name in item.then} <= {item.id for item in QUESTIONS}


@pytest.mark.parametrize("line", dict.fromkeys(line for item in QUESTIONS for line in item.commands))
def test_commands_parse(line: str) -> None:
    _, *words = shlex.split(line.replace("TRACES", "a b").replace("BEFORE AFTER", "a b").replace(" N", " 5"))
    with click.Context(cli) as context:
        name, command, rest = cli.resolve_command(context, words)
        assert command is not None
        command.make_context(name, rest, context)


def test_files_are_linked_and_not_replaced(folder: Path) -> None:
    index = (folder / "skill" / "SKILL.md").read_text()
    for item in QUESTIONS:
        page = (folder / "skill" / "questions" / f"{item.id}.md").read_text()
        assert f"(questions/{item.id}.md)" in index
        assert all((folder / "skill" / "queries" / f"{name}.sql").is_file() for name in item.modules)
        assert all(f"### {name}\n" in page for name in item.modules)
    assert called(["skill", "skill"], folder)[0] == 2
    assert called(["skill", "skill", "--force"], folder)[0] == 0


def test_sql_files_run(folder: Path) -> None:
    files = [path for path in sorted((folder / "skill" / "queries").iterdir()) if path.stem != "facts"]
    (folder / "all.sql").write_text("\n".join(path.read_text() for path in files))
    code, _, said = called(["query", "all.sql", "gpu.json"], folder)
    assert (code, said) == (0, "")


def test_what_a_trace_cannot_answer(folder: Path) -> None:
    _, out, _ = called(["report", "gpu.json", "--format", "json"], folder)
    reasons = {item["question"]: item["reason"] for item in json.loads(out)["not_answered"]}
    assert not {"idle", "kernels"} & reasons.keys()
    assert reasons["origin"].startswith("stacks not recorded: with_stack=True")
    assert reasons["speed"].startswith("the trace holds times under the profiler alone")
    assert {"figures_graphs", "figures_allocations"}.isdisjoint(reasons)  # what is only not recorded is null
    tiny_trace.write(folder / "cpu.json", {"traceEvents": [tiny_trace.slice_("cpu_op", "aten::mm", 0, 5)]})
    _, out, _ = called(["report", "cpu.json", "--format", "json"], folder)
    assert {item["question"] for item in json.loads(out)["not_answered"]} >= CPU_ONLY
    _, out, _ = called(["compare", "gpu.json", "cpu.json", "--format", "json"], folder)
    first, other = json.loads(out)["not_answered"]
    assert {item["question"]: item["reason"] for item in first} == reasons
    assert {item["question"] for item in other} >= CPU_ONLY
