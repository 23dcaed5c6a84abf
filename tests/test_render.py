"""Rendering: exact small documents, width, alignment, units, and names that try to be something else."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from page_data import render, report_of

from molprof.analysis.compare import compare
from molprof.analysis.documents.figures import figure_values
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import FIGURES
from molprof.analysis.render import FORMATS
from molprof.analysis.render import render as render_document
from molprof.analysis.render.table import WIDTH
from molprof.common import values as text
from molprof.common.document import Cell, Column, Document, Plot, Section, Table, pairs
from molprof.common.errors import UsageError
from molprof.common.text import escaped
from molprof.common.values import width

EVIL = "evil|<b>\x1b[31m\u202e`*_\r\n名前" + "x" * 300

SMALL = Document(
    "title",
    (
        Section("", parts=(Section("drawn", plot=Plot("", lambda wide: "<svg/>")),)),
        Section(
            "Section",
            ("a note",),
            Table((Column("name"), Column("count", "count")), (("a", 1), ("b|", 1000)), frozenset({1})),
            parts=(Section("on pages", ("a page has it",), page_only=True), Section("part", ("in it",))),
        ),
        Section("", table=pairs((("key", "value"), ("time", Cell(2_000_000, "ns"))))),
    ),
    lambda: {"rows": [1, {"b": None}]},
    warnings=("cut",),
    summary=("The answer.",),
)


def document(*sections: Section) -> Document:
    return Document("t", sections, dict)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return report_of(tmp_path, tiny_trace.document())


def evil_document() -> dict[str, Any]:
    """Every text that a trace can bring along is hostile."""
    content = tiny_trace.document()
    for event in content["traceEvents"]:
        if event.get("cat") in ("kernel", "cpu_op", "gpu_memcpy"):
            event["name"] = f"{event['name']} {EVIL}"
    content["deviceProperties"] = [{"name": EVIL}]
    manifest = content["molprof"]
    manifest["model"].update(name=EVIL, tokenizer=EVIL)
    manifest["generation"]["processor"] = EVIL
    manifest["molecules"][0].update(smiles=EVIL, problem=EVIL)
    return content


def test_table() -> None:
    assert render_document(SMALL) == (
        "title\n=====\n\nWARNING: cut\n\n  The answer.\n\n"
        "Section\n  a note\n  name  count\n  ----  -----\n  a         1\n* b|    1,000\n\n"
        "part\n  in it\n\n"
        "  key   value\n  time  2.00 ms\n"
    )


def test_markdown() -> None:
    assert render_document(SMALL, "markdown") == (
        "## title\n\n> **Warning:** cut\n\n- The answer.\n\n### Section\n\n- a note\n\n"
        "| name | count |\n| --- | ---: |\n| a | 1 |\n| **b\\|** | 1,000 |\n\n#### part\n\n- in it\n\n"
        "- key: value\n- time: 2.00 ms\n"
    )


def test_data() -> None:
    assert render_document(SMALL, "json") == '{\n  "rows": [\n    1,\n    {\n      "b": null\n    }\n  ]\n}\n'
    assert render_document(SMALL, "csv") == "figure,value\nrows.0,1\nrows.1.b,\n"
    listed = Document("", (), lambda: [{"a": 1}, {"a": 2}], lambda: Table((Column("a"),), ((1.5,), ("x\x1b",))))
    assert render_document(listed, "json") == '[\n  {"a": 1},\n  {"a": 2}\n]\n'
    assert render_document(listed, "csv") == "a\n1.5\nx\\x1b\n"


def test_markdown_folds_details_cuts_names_and_keeps_indents() -> None:
    table = Table((Column("name"), Column("count", "count")), (("  " + "k" * 90, 1), ("", 2)))
    assert render_document(document(Section("all <b>", ("a note",), table, detail=True)), "markdown") == (
        "## t\n\n<details><summary>all &lt;b&gt;</summary>\n\n- a note\n\n"
        f"| name | count |\n| --- | ---: |\n| &nbsp;&nbsp;{'k' * 79}… | 1 |\n|  | 2 |\n\n</details>\n"
    )


def test_paths_lose_their_beginning() -> None:
    function = f"/opt/{'a/' * 30}model/layer.py(12): forward"
    rows = [(function, f"{'Outer/' * 20}Linear"), (None, "Linear")]
    paths = document(Section("", table=Table((Column("function", "path"), Column("module", "path")), rows)))
    shown = render_document(paths).splitlines()
    assert max(map(width, shown)) == WIDTH
    assert shown[-2].startswith("  model/layer.py(12): forward  …r/Outer/")
    assert shown[-2].endswith("/Outer/Linear")
    assert f"| model/layer.py(12): forward | …{'/Outer' * 12}/Linear |" in render_document(paths, "markdown")
    assert f'title="{function}"' in render_document(paths, "html")


def test_details_end_and_say_so() -> None:
    rows = Table((Column("n", "index"),), [(number,) for number in range(20)])
    shown = render_document(document(Section("whole", table=rows), Section("cut", table=rows, detail=True)))
    whole, cut = shown.split("cut\n")
    assert whole.splitlines()[-2] == "  19"
    assert cut.startswith("  first 12 rows; --format json has 8 more\n")
    assert cut.splitlines()[-1] == "  11"


def test_too_wide_a_table_wraps_titles_and_cuts_text_not_numbers() -> None:
    columns = (Column(), Column("a long title of many words", "count"), Column("another title of many words", "count"))
    shown = render_document(document(Section("", table=Table(columns, (("x" * 80, 1_234_567, 7_654_321),)))))
    lines = shown.splitlines()
    assert max(map(len, lines)) == WIDTH
    assert [line.split() for line in lines[3:7]] == [
        ["a", "long", "another"],
        ["title", "of", "title", "of"],
        ["many", "many"],
        ["words", "words"],
    ]
    assert lines[6] == f"{' ' * 84}words      words"
    assert lines[-1].endswith("xxx…  1,234,567  7,654,321")


def test_a_table_of_many_columns_is_split_and_repeats_its_keys() -> None:
    columns = [Column("figure")]
    for number in range(6):
        columns += [Column(f"run {number}", "ns"), Column("ratio", "factor", joined=True)]
    row = ["k" * 30, *[2_500, Cell(0.98, "factor", noise=True)] * 5, None, "none"]
    table = Table(tuple(columns), (row,), missing="-")
    assert render_document(document(Section("s", table=table))).splitlines()[3:] == [
        "s",
        "  figure" + " " * 28 + "run 0 ratio    run 1 ratio    run 2 ratio    run 3 ratio",
        f"  {'-' * 30}" + "  ------- -----" * 4,
        f"  {'k' * 30}" + "  2.50 µs     ~" * 4,
        "",
        " " * 49 + "run",
        "  figure" + " " * 28 + "run 4 ratio    5 ratio",
        f"  {'-' * 30}  ------- -----  --- -----",
        f"  {'k' * 30}  2.50 µs     ~    -  none",
    ]


def test_what_is_said_of_a_name_goes_over_lines() -> None:
    table = pairs((("key", "word " * 29 + "word"), ("", "more")))
    assert render_document(document(Section("s", table=table))).splitlines()[4:] == [
        "  key  " + "word " * 17 + "word",
        "       " + "word " * 11 + "word",
        "       more",
    ]


@pytest.mark.parametrize(
    ("value_ns", "expected"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (45_432_698, "45.4 ms"),
        (468_153_602, "468 ms"),
        (-2_000_000_000, "-2.00 s"),
        (7_200_000_000_000, "7,200 s"),
        (None, "not recorded"),
    ],
)
def test_times(value_ns: int | None, expected: str) -> None:
    assert text.time_text(value_ns) == expected


def test_other_values() -> None:
    assert text.bytes_text(771_323_904) == "771 MB"
    assert text.count_text(2_912_920) == "2,912,920"
    assert (text.number_text(14.0), text.number_text(1.3333)) == ("14", "1.33")
    assert [*map(text.percent_text, (0.3843, 0.00001, -0.00001, 0, -0.0))] == [
        "38.4 %", "< 0.01 %", "> -0.01 %", "0 %", "0 %",
    ]  # fmt: skip
    assert [*map(text.signed_percent_text, (0.02, 0.00001, -0.00001))] == ["+2.00 %", "< 0.01 %", "> -0.01 %"]
    assert [text.percent_text(None), text.count_text(None), text.bytes_text(None)] == ["not recorded"] * 3
    assert text.short_name(
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16> >(int)"
    ) == ("vectorized_elementwise_kernel<4, FillFunctor<BFloat16> >")
    assert text.short_name(
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
        "::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, 4>(int)"
    ) == ("unrolled_elementwise_kernel<direct_copy_kernel_cuda(float), 4>")
    assert text.short_name(
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
        "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)"
    ) == ("vllm::fused_add_rms_norm_kernel<BFloat16, 8>")


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert escaped("a\x1b[31m\r\n\x00\u202e\u200b\x9b") == "a\\x1b[31m\\r\\n\\x00\\u202e\\u200b\\x9b"
    assert escaped("\ud800") == "\\ud800"
    assert escaped("ÅΩ名 µs") == "ÅΩ名 µs"
    assert (text.width("名前"), text.width("é"), text.width("e\u0301")) == (4, 1, 1)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("compared", [False, True])
def test_hostile_names(tmp_path: Path, form: str, compared: bool) -> None:
    evil = report_of(tmp_path, evil_document())
    shown = render(compare([evil, evil]) if compared else evil, form)
    assert shown.endswith("\n")
    shown.encode()
    if form != "html":
        assert all(character.isprintable() or character in "\n\t" for character in shown)
    if form == "json":
        expected = compare([evil, evil]).to_json() if compared else {**evil.to_json(), "figures": figure_values(evil)}
        assert json.loads(shown) == expected
    if form == "csv":
        assert "evil|<b>\\x1b[31m\\u202e`*_\\r\\n名前" in shown
    if form == "table":
        assert max(text.width(line) for line in shown.splitlines()) <= WIDTH
    if form == "markdown":
        assert "<b>" not in shown.replace("\\<b\\>", "")
        rows = [line for line in shown.splitlines() if line.startswith("| evil") or "evil" in line]
        assert rows
        assert all("evil|" not in line.replace("\\|", "") for line in rows)


def test_broken_sums_are_shown(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["traceEvents"].pop()
    shown = render(report_of(tmp_path, content))
    assert "WARNING: checks that do not hold: token slices = tokens of the recorded steps\n" in shown
    assert (
        "* token slices = tokens of the recorded steps                          2        3       none  FAILS\n" in shown
    )


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_comparisons_of_any_number_fit(tmp_path: Path, report: Report, count: int) -> None:
    foreign = report_of(tmp_path, {"traceEvents": [tiny_trace.work("kernel", "k", 5, 2, 1)]}, "a_foreign_trace")
    shown = render(compare([report, foreign] * (count // 2) + [report] * (count % 2)))
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "not recorded" in shown


def test_json_and_csv(report: Report) -> None:
    data = json.loads(render(report, "json"))
    assert data.pop("figures") == {figure.id: figure.value(report) for figure in FIGURES}
    assert data == report.to_json()
    figures = dict(csv.reader(io.StringIO(render(report, "csv"))))
    assert figures["counts.launches"] == "4"
    assert figures["run.phases.template.launches"] == ""
    comparison = compare([report, report])
    assert json.loads(render(comparison, "json")) == comparison.to_json()
    lines = list(csv.reader(io.StringIO(render(comparison, "csv"))))
    assert lines[0] == [
        "id",
        "unit",
        "llama lp:generic #1",
        "llama lp:generic #2",
        "llama lp:generic #2 ratio",
    ]
    assert ["wall_ns", "ns", "1095", "1095", "1.0"] in lines


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in ("csv", "json")])
def test_what_people_read_has_all_of_a_document(form: str) -> None:
    shown = render_document(SMALL, form)
    for part in ("title", "cut", "The answer.", "Section", "a note", "count", "key", "2.00 ms", "part", "in it"):
        assert part in shown
    assert ("a page has it" in shown) == (form == "html")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match=f"unknown format 'yaml'; known: {', '.join(sorted(FORMATS))}"):
        render_document(SMALL, "yaml")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("H100",), "H100"),
        (("B200",) * 8, "8 x B200"),
        (("A", "B", "A"), "2 x A, B"),
    ],
)
def test_devices_of_one_name_are_counted(tmp_path: Path, names: tuple[str, ...], shown: str) -> None:
    content = {"traceEvents": tiny_trace.EVENTS, "deviceProperties": [{"name": name} for name in names]}
    lines = render(report_of(tmp_path, content)).splitlines()
    assert lines[0].startswith("molprof report: /")
    assert next(line for line in lines if line.startswith("  devices in the trace")).split(maxsplit=4)[4] == shown
