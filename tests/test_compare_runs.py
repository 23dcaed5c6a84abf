"""A comparison begins with a table of runs, against the right base; shared notes appear once."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from page_data import report_of, timed
from test_cli import called
from test_prompt_runs import of_prompts

from molprof import api
from molprof.analysis.compare import compare, compare_with
from molprof.analysis.compare.base import base_of, is_constrained
from molprof.analysis.documents.comparison import comparison_document, comparison_verdict
from molprof.analysis.documents.runs import runs_section, told_once
from molprof.analysis.figures import Report

TRACES = Path(__file__).parent.parent / "traces"
CPU = [TRACES / f"cpu-{name}.json.gz" for name in ("llama", "llama-generic", "llama-grammar")]


def prompts(processor: str | None, asked: dict[str, Any] | None = None, masked: int | None = None) -> dict[str, Any]:
    """A run of prompts with a processor, or with arguments that constrain."""
    content = of_prompts()
    content["molprof"]["generation"].update(processor=processor, processor_parameters=asked or {})
    for run in content["molprof"]["molecules"]:
        run["masked_logits"] = None if masked is None else {"free": masked, "copy": 0, "end": 0, "idle": 0}
    return content


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Report]:
    contents = {"free": prompts(None), "rules": prompts("rules"), "trie": prompts("trie")}
    return {name: report_of(tmp_path, content, name) for name, content in contents.items()}


def test_the_base_is_the_only_run_without_a_constraint(runs: dict[str, Report]) -> None:
    for order in itertools.permutations(runs):
        found = compare_with(None, [runs[name] for name in order])
        assert found.runs[0] is runs["free"]
        assert [report for report in found.runs if report is not runs["free"]] == [
            runs[name] for name in order if name != "free"
        ]
        assert (
            found.base == "ratios are to mine unconstrained, the only run without a constraint (--base takes another)"
        )
        section = runs_section(found)
        assert section is not None
        legend = (
            "interval: range of the median of the passes, at 75 %; ~: no ratio beyond noise, as its interval contains 1"
        )
        assert section.notes == (found.base, legend)


def test_a_choice_wins_and_the_first_is_the_base_where_none_stands_out(runs: dict[str, Report]) -> None:
    free, rules, trie = runs.values()
    asked = compare_with(1, [free, rules, trie])
    assert (asked.runs[0], asked.base) == (rules, "ratios are to mine rules, as asked (--base)")
    for given in ([rules, trie, rules], [rules, free, free]):
        found = compare_with(None, given)
        assert (found.runs[0], found.base) == (rules, "")


def test_what_constrains(tmp_path: Path) -> None:
    """A processor, arguments of generate, or masked logits; of a foreign trace it is not known."""
    known = [
        (prompts(None), False),
        (prompts("rules"), True),
        (prompts(None, {"prefix_allowed_tokens_fn": "allowed"}), True),
        ({"traceEvents": [tiny_trace.work("kernel", "a", 0, 5, 1)]}, None),
    ]
    reports = [report_of(tmp_path, content, str(place)) for place, (content, _) in enumerate(known)]
    assert list(map(is_constrained, reports)) == [expected for _, expected in known]
    assert base_of(reports[:3]) == 0
    assert base_of(reports) is None


def test_the_command_takes_files_in_any_order(tmp_path: Path) -> None:
    for name, processor in (("a", "rules"), ("b", None), ("c", "trie")):
        tiny_trace.write(tmp_path / f"{name}.json", prompts(processor))
    code, out, _ = called(["compare", "a.json", "b.json", "c.json", "--format", "json"], tmp_path)
    data = json.loads(out)
    assert (code, data["labels"]) == (0, ["mine unconstrained", "mine rules", "mine trie"])
    code, out, _ = called(["compare", "a.json", "b.json", "c.json", "--base", "c.json", "--format", "json"], tmp_path)
    assert json.loads(out)["labels"] == ["mine trie", "mine rules", "mine unconstrained"]
    code, _, err = called(["compare", "a.json", "b.json", "--base", "d.json"], tmp_path)
    assert (code, "--base d.json is none of the traces" in err) == (2, True)


def test_a_comparison_begins_with_its_runs(tmp_path: Path) -> None:
    code, out, _ = called(["compare", *map(str, CPU)], tmp_path)
    assert code == 0
    lines = out.splitlines()
    assert lines[3] == "Runs"
    paragraph = out.split("\n\n")[2]
    assert paragraph.startswith("  llama no lp takes ")
    comparison = api.compare(*CPU)
    section = runs_section(comparison)
    assert section is not None
    assert section.table is not None
    titles = [column.title for column in section.table.columns]
    for place, row in enumerate(section.table.cells()):
        cells = dict(zip(titles, row, strict=True))
        run, timed_run = comparison.runs[place].run, comparison.timed[place].run
        assert run is not None
        assert timed_run is not None
        assert cells["total time"].value == timed_run.wall_ns.median
        processor_ns = timed_run.phases["processor"].wall_ns
        assert processor_ns is not None
        expected = pytest.approx(processor_ns / run.steps) if timed_run.has_processor else None
        assert cells["processor per step"].value == expected
        assert cells["valid"].value == f"{run.valid_molecules} of {run.molecules}"
        assert cells["molecule tokens"].value == pytest.approx(run.generated_tokens / run.molecules)


def test_cells_that_are_not_recorded_are_not_zero(runs: dict[str, Report]) -> None:
    """Nothing is made for a run without a constraint; whether answers are valid is not recorded of any."""
    content = prompts("rules")
    content["molprof"]["timings"]["processor_once_ns"] = 7_000_000
    (free, rules, _), made = runs.values(), report_of(Path(runs["free"].trace.path).parent, content, "made")
    section = runs_section(compare([free, rules, made]))
    assert section is not None
    assert section.table is not None
    titles = [column.title for column in section.table.columns]
    assert "valid" not in titles
    shown = [dict(zip(titles, row, strict=True)) for row in section.table.cells()]
    assert [row["made once"].value for row in shown] == ["none", None, 7_000_000]
    assert [section.table.text(row["made once"]) for row in shown] == ["none", "-", "7.00 ms"]


def test_one_paragraph_tells_what_holds_for_all_once(runs: dict[str, Report]) -> None:
    times = (2_000_000_000, 2_020_000_000, 4_000_000_000)
    reports = [timed(report, ns, 10_000_000) for report, ns in zip(runs.values(), times, strict=True)]
    (said,) = comparison_verdict(compare(reports))
    assert said.startswith("mine unconstrained takes 2.00 s")
    assert said.count("stopped at the token limit") == 1
    assert said.count("timed passes") == 1
    assert "mine rules does not differ from it beyond noise" in said
    assert "mine trie takes 2.00x of it" in said


def test_warnings_of_several_runs_are_told_once() -> None:
    labels = ("a", "a b", "c")
    same = [
        f"{label}: other programs kept 1.{cores} of 2 cores busy" for label, cores in zip(labels, "475", strict=True)
    ]
    assert told_once(labels, same) == ("all runs: other programs kept 1.4 to 1.7 of 2 cores busy",)
    assert told_once(labels, [*same[:2], "c: other text"]) == (
        "a and a b: other programs kept 1.4 to 1.7 of 2 cores busy",
        "c: other text",
    )
    assert told_once(labels, ["no label"]) == ("no label",)


def test_one_file_twice_has_no_cause(runs: dict[str, Report]) -> None:
    found = compare([runs["rules"], runs["rules"]])
    (said,) = comparison_verdict(found)
    assert "one file, or copies of one" in said
    assert found.differences[0] is not None
    assert found.differences[0].causes == ()


def test_no_word_of_molecules_where_prompts_ran(tmp_path: Path) -> None:
    for name, processor in (("a", None), ("b", "rules"), ("c", "rules")):
        content = prompts(processor)
        if name == "c":  # an answer fewer
            content["molprof"]["molecules"].pop()
        tiny_trace.write(tmp_path / f"{name}.json", content)
    for form in ("table", "markdown", "html"):
        _, out, err = called(["compare", "a.json", "b.json", "--all", "--format", form], tmp_path)
        assert "molecule" not in re.sub(r"<style.*?</style>|<script.*?</script>", "", out + err, flags=re.DOTALL)
    code, _, err = called(["compare", "a.json", "c.json"], tmp_path)
    assert (code, "molecule" in err) == (3, False)
    data = json.loads(called(["compare", "a.json", "b.json", "--format", "json"], tmp_path)[1])
    assert not [row["label"] for row in data["rows"] if "molecule" in row["label"]]


def test_every_format_has_the_table(tmp_path: Path) -> None:
    for name, processor in (("a", "rules"), ("b", None)):
        tiny_trace.write(tmp_path / f"{name}.json", prompts(processor))
    reports = api.reports([tmp_path / "a.json", tmp_path / "b.json"])
    document = comparison_document(compare_with(None, reports))
    assert document.lead is not None
    for form in ("table", "markdown", "html"):
        _, out, _ = called(["compare", "a.json", "b.json", "--format", form], tmp_path)
        assert "the only run without a constraint" in " ".join(out.split())
