"""Formats render documents exactly: widths, values as text, and hostile names.

What commands print of whole traces is in `tests/goldens`.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import tiny_trace
from golden_commands import GOLDENS
from goldens import GIVEN, stored
from msgspec.structs import replace
from page_data import HOSTILE, hostile_document, render, report_of, two_runs

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.documents.origin import origin_document
from molprof.analysis.documents.report import report_document
from molprof.analysis.figures.model import Finding, Gain, SumCheck
from molprof.analysis.render import FORMATS
from molprof.analysis.render import render as render_document
from molprof.analysis.render.html import ROWS
from molprof.analysis.render.table import WIDTH, shown_rows, shown_sections
from molprof.common import values as text
from molprof.common.document import Cell, Column, Document, Name, Plot, Section, Table, named, pairs
from molprof.common.errors import UsageError
from molprof.common.text import escaped
from molprof.common.values import width

SMALL = Document(
    "title",
    (
        Section("", parts=(Section("drawn", plot=Plot("", lambda: "<svg/>")),)),
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
FUNCTION = f"/opt/{'a/' * 30}model/layer.py(12): forward"
TABLES = {
    "detail": (Section("s", table=Table((Column("n", "index"),), [(n,) for n in range(20)]), detail=True)),
    "paths": Section("", table=Table(
        (Column("function", "path"), Column("module", "path")), [(FUNCTION, f"{'Outer/' * 20}Linear"), (None, "x")]
    )),
    "titles": Section("", table=Table(
        (Column(), Column("a long title of many words", "count"), Column("another title of many words", "count")),
        (("x" * 80, 1_234_567, 7_654_321),),
    )),
    "split": Section("s", table=Table(
        (Column("figure"), *(
            column for number in range(6)
            for column in (Column(f"run {number}", "ns"), Column("ratio", "factor", joined=True))
        )),
        (("k" * 30, *[2_500, Cell(0.98, "factor", noise=True)] * 5, None, "none"),),
        missing="-",
    )),
    "spare": Section("", table=Table(
        (Column("name"), *(Column(title, "count") for title in "abcd")), (("k" * 30, *[10**20] * 4),),
        spare_columns=("b", "c", "d", "a"),
    )),
    "pairs": Section("s", table=pairs((("key", "word " * 29 + "word"), ("", "more")))),
    "wide": Section("", table=Table((Column("a"), Column("b")), [("x" * 50, "y" * 50)], wide=True)),
}  # fmt: skip


def of(name: str) -> Document:
    return Document("t", (TABLES[name],), dict)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("table", "title\n=====\n\nWARNING: cut\n\n  The answer.\n\n"
            "Section\n  a note\n  name  count\n  ----  -----\n  a         1\n* b|    1,000\n\n"
            "part\n  in it\n\n  key   value\n  time  2.00 ms\n"),
        ("markdown", "## title\n\n> **Warning:** cut\n\n- The answer.\n\n### Section\n\n- a note\n\n"
            "| name | count |\n| --- | ---: |\n| a | 1 |\n| **b\\|** | 1,000 |\n\n#### part\n\n- in it\n\n"
            "- key: value\n- time: 2.00 ms\n"),
        ("json", '{\n  "rows": [\n    1,\n    {\n      "b": null\n    }\n  ]\n}\n'),
        ("csv", "figure,value\nrows.0,1\nrows.1.b,\n"),
    ],
)  # fmt: skip
def test_a_small_document(form: str, expected: str) -> None:
    assert render_document(SMALL, form) == expected


def numbers_of(sections: Iterable[Section]) -> Iterator[str]:
    """What text formats show of columns of numbers, all but the rows that they fold."""
    for section in shown_sections(sections):
        for row in shown_rows(section)[0]:
            yield from (text for text, column in zip(row, section.table.columns, strict=True) if column.numeric)
        yield from numbers_of(section.parts)


def test_every_format_has_the_numbers_of_its_document() -> None:
    """Names may be cut; what is counted is not."""
    path = GIVEN / "gpu-graph.json.gz"
    origins = api.origins(path)[0]
    for document in (report_document(api.report(path)), origin_document(origins, "module")):
        expected = set(numbers_of(document.sections))
        assert len(expected) > 20
        shown = {form: render_document(document, form) for form in ("table", "markdown", "html")}
        shown["markdown"] = shown["markdown"].replace("\\", "")
        shown["html"] = unescape(re.sub(r"<[^>]*>", "", shown["html"]))
        for form, found in shown.items():
            left_out = form == "table" and "No room for: " in found  # whole columns, which it names
            assert left_out or {number for number in expected if number not in found} == set(), form


def test_data_in_rows() -> None:
    listed = Document("", (), lambda: [{"a": 1}, {"a": 2}], lambda: Table((Column("a"),), ((1.5,), ("x\x1b",))))
    assert render_document(listed, "json") == '[\n  {"a": 1},\n  {"a": 2}\n]\n'
    assert render_document(listed, "csv") == "a\n1.5\nx\\x1b\n"
    with pytest.raises(UsageError, match=f"unknown format 'yaml'; known: {', '.join(sorted(FORMATS))}"):
        render_document(SMALL, "yaml")


def test_json_and_csv_are_of_what_a_result_holds() -> None:
    result = {"cell": Cell(np.float64(1.5), "ns"), "pairs": ((1, None),), "none": None}
    names: tuple[Name, ...] = (("value", "cell.value"), ("first", "pairs", (("one", "0"),)), ("none", "none", ("a",)))
    document = Document("", (), lambda: [result, named(result, *names)])
    assert json.loads(render_document(document, "json")) == [
        {"cell": {"value": 1.5, "unit": "ns", "noise": False}, "pairs": [[1, None]], "none": None},
        {"value": 1.5, "first": [{"one": 1}], "none": None},
    ]
    assert render_document(document, "csv").splitlines()[1:] == [
        "0.cell.value,1.5", "0.cell.unit,ns", "0.cell.noise,False", "0.pairs.0.0,1", "0.pairs.0.1,", "0.none,",
        "1.value,1.5", "1.first.0.one,1", "1.none,",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "terminal", "expected"),
    [
        ("detail", None, ["s", "  first 12 rows; --format json has 8 more", "   n", "  --", *(
            f"  {n:2}" for n in range(12)
        )]),
        ("paths", None, [
            f"  function{' ' * 21}module", f"  {'-' * 27}  {'-' * 69}",
            f"  model/layer.py(12): forward  …r/{'Outer/' * 10}Linear", f"  not recorded{' ' * 17}x",
        ]),
        ("titles", None, [
            f"{' ' * 83}a long    another", f"{' ' * 81}title of   title of", f"{' ' * 85}many       many",
            f"{' ' * 84}words      words", f"  {'-' * 76}  ---------  ---------",
            f"  {'x' * 75}…  1,234,567  7,654,321",
        ]),
        ("split", None, [
            "s",
            "  figure" + " " * 28 + "run 0 ratio    run 1 ratio    run 2 ratio    run 3 ratio",
            f"  {'-' * 30}" + "  ------- -----" * 4,
            f"  {'k' * 30}" + "  2.50 µs     ~" * 4,
            "",
            " " * 49 + "run",
            "  figure" + " " * 28 + "run 4 ratio    5 ratio",
            f"  {'-' * 30}  ------- -----  --- -----",
            f"  {'k' * 30}  2.50 µs     ~    -  none",
        ]),
        ("spare", None, [
            "  No room for: b, c. --format csv has them.", f"  name{' ' * 54}a{' ' * 28}d",
            f"  {'-' * 30}  {'-' * 27}  {'-' * 27}", f"  {'k' * 30}" + "  100,000,000,000,000,000,000" * 2,
        ]),
        ("pairs", None, ["s", "  key  " + "word " * 17 + "word", "       " + "word " * 11 + "word", "       more"]),
        ("wide", None, [f"  a{' ' * 51}b", f"  {'-' * 50}  {'-' * 50}", f"  {'x' * 50}  {'y' * 50}"]),
        ("wide", 70, ["  lines are cut to 70 columns; --format csv has them whole"]),
    ],
)  # fmt: skip
def test_tables_fit(name: str, terminal: int | None, expected: list[str]) -> None:
    lines = render_document(of(name), "table", terminal).splitlines()[3:]
    assert lines == expected or (terminal and lines[:1] == expected and max(map(width, lines)) == terminal)


def test_markdown_folds_details_cuts_names_and_keeps_indents() -> None:
    table = Table((Column("name"), Column("count", "count")), (("  " + "k" * 90, 1), ("", 2)))
    folded = Document("t", (Section("all <b>", ("a note",), table, detail=True),), dict)
    assert render_document(folded, "markdown") == (
        "## t\n\n<details><summary>all &lt;b&gt;</summary>\n\n- a note\n\n"
        f"| name | count |\n| --- | ---: |\n| &nbsp;&nbsp;{'k' * 79}… | 1 |\n|  | 2 |\n\n</details>\n"
    )
    assert f"| model/layer.py(12): forward | …{'/Outer' * 12}/Linear |" in render_document(of("paths"), "markdown")


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_what_a_terminal_shows_fits(golden: object) -> None:
    """No line of a table is wider than the terminal, and without --all a report fits one screen."""
    for command, block in stored(golden.name).items():  # type: ignore[attr-defined]
        words = command.removeprefix("$ molprof ").split()
        columns = int(words.pop(0).removeprefix("COLUMNS=")) if words and words[0].startswith("COLUMNS=") else WIDTH
        if words[:1] not in (["report"], ["compare"], ["ranks"]) or {"--format", "--help", "--help-all"} & set(words):
            continue
        lines = [line for line in block.split("wrote ")[0].rstrip().splitlines()[2:] if not line.startswith("stderr:")]
        assert max(map(width, lines), default=0) <= columns
        if not {"--all", "by", "rows", "ranks", "-o"} & set(words) and "corpus/ranks" not in words:
            assert len(lines) <= 40 * len(block.split("\nmolprof report: ")), command


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        *((text.time_text(ns), shown) for ns, shown in (
            (0, "0 ns"), (999, "999 ns"), (1_000, "1.00 µs"), (12_345, "12.3 µs"), (45_432_698, "45.4 ms"),
            (468_153_602, "468 ms"), (-2_000_000_000, "-2.00 s"), (7_200_000_000_000, "7,200 s"),
            (None, "not recorded"),
        )),
        (text.bytes_text(771_323_904), "771 MB"), (text.count_text(2_912_920), "2,912,920"),
        (text.number_text(14.0), "14"), (text.number_text(1.3333), "1.33"),
        *((text.percent_text(ratio), shown) for ratio, shown in (
            (0.3843, "38.4 %"), (0.00001, "< 0.01 %"), (-0.00001, "> -0.01 %"), (0, "0 %"), (-0.0, "0 %"),
        )),
        (text.signed_percent_text(0.02), "+2.00 %"), (text.signed_percent_text(0.00001), "< 0.01 %"),
        (text.short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16> >"
                         "(int)"), "vectorized_elementwise_kernel<4, FillFunctor<BFloat16> >"),
        (text.short_name(
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
            "::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, 4>(int)"),
         "unrolled_elementwise_kernel<direct_copy_kernel_cuda(float), 4>"),
        (text.short_name(
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)"),
         "vllm::fused_add_rms_norm_kernel<BFloat16, 8>"),
        (escaped("a\x1b[31m\r\n\x00\u202e\u200b\x9b"), "a\\x1b[31m\\r\\n\\x00\\u202e\\u200b\\x9b"),
        (escaped("\ud800"), "\\ud800"), (escaped("ÅΩ名 µs"), "ÅΩ名 µs"),
        ([*map(width, ("名前", "é", "e\u0301"))], [4, 1, 1]),
    ],
)  # fmt: skip
def test_values_as_text(found: object, expected: object) -> None:
    assert found == expected


class Page(HTMLParser):
    """Elements of a page with their attributes. Every one that is opened must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "input", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    @property
    def kinds(self) -> set[str]:
        return {name for tag, attributes in self.found for name in (tag, *(f"@{key}" for key in attributes))}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two runs."""
    return render(two_runs(tmp_path_factory.mktemp("two")), "html")


def test_a_page_fetches_nothing_and_its_links_lead_somewhere(page: str) -> None:
    found = Page(page).found
    names = {attributes["id"] for _, attributes in found if "id" in attributes}
    for tag, attributes in found:
        for key in {"href", "src", "xlink:href", "action", "data", "srcset", "poster"} & attributes.keys():
            value = attributes[key]
            assert value is not None
            assert value == "data:," or value.removeprefix("#") in names, (tag, key, value)
        assert not [key for key in attributes if key.startswith("on")], (tag, attributes)
    assert not re.search(r"https?://(?!www\.w3\.org/(2000/svg|1999/xlink))|@import", page)

    # Each style and the script that is on the page, and no other.
    inline = {tag: re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page, re.DOTALL) for tag in ("style", "script")}
    assert len(inline["script"]) == 1
    inline["style"] += [value for _, item in found if (value := item.get("style"))]
    digests = {
        tag: " ".join(sorted({f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts}))
        for tag, texts in inline.items()
    }
    (policy,) = (item["content"] for _, item in found if item.get("http-equiv") == "Content-Security-Policy")
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-hashes' {digests['style']}; script-src {digests['script']}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    # Only plots have styles of their own.
    assert " style=" not in re.sub(r"<svg .*?</svg>", "", page, flags=re.DOTALL)


def test_cells_are_sorted_by_their_values(page: str, tmp_path: Path) -> None:
    for value, shown in (("4000000000", "4.00 s"), ("-30000000", "-30.0 ms"), ("1.345", "1.34x"), ("", "-")):
        assert f'<td class="number" data-value="{value}">{shown}</td>' in page
    # Noise explains the ratio: it is sorted by, and shown when pointed at.
    noisy = render(two_runs(tmp_path, spread_ns=3_000_000_000), "html")
    assert '<td class="number" data-value="1.345" title="1.34x">~</td>' in noisy
    assert re.findall(r'<tr class="marked"><td data-value="([^"]*)"', page) == ["model"]
    assert f'title="{FUNCTION}"' in render_document(of("paths"), "html")
    small = render_document(SMALL, "html")
    assert all(part in small for part in ("The answer.", "a note", "2.00 ms", "in it", "a page has it", "<svg/>"))
    rows = Table((Column("n", "index"),), [(number,) for number in range(ROWS + 7)])
    long = render_document(Document("t", (Section("numbers", table=rows),), dict), "html")
    assert long.count('<td class="number"') == ROWS
    assert "first 500 rows; --format json has 7 more" in long


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("compared", [False, True])
def test_hostile_names_stay_text(tmp_path: Path, form: str, compared: bool) -> None:
    words = f"{' '.join(HOSTILE)}|`*_名前{'x' * 300}"
    plain, evil = (report_of(tmp_path, hostile_document(text), "trace") for text in ("harmless", words))
    finding = Finding(
        id=words, title=words, evidence=words, fix=words, explanation=words, query=words, figures={words: 1.0},
        gain=Gain(0.5, 0.5, "wall time", words), location=words,
    )  # fmt: skip
    evil = replace(evil, findings=(finding,), checks=(*evil.checks, SumCheck(words, words, 1, 2, 0.0, False)))
    shown, harmless = (render(compare([item, item]) if compared else item, form) for item in (evil, plain))
    assert not {"\x1b", "\u202e", "\r", "\x00"} & set(shown)
    if form == "html":
        assert Page(shown).kinds <= Page(harmless).kinds | {"article", "h3", "dl", "dt", "dd", "@title"}
        assert shown.count("<script>") == shown.count("</script>") == 1
        assert "{{ 7 * 7 }}" in shown
        return
    assert shown.isascii() or all(character.isprintable() or character in "\n\t" for character in shown)
    if form == "json":
        assert compared or json.loads(shown)["findings"][0]["title"] == words
    elif form == "table":
        assert max(width(line) for line in shown.splitlines()) <= WIDTH
    elif form == "markdown":
        assert "<svg" not in shown.replace("\\<", "")
        assert all("|`" not in line.replace("\\|", "") for line in shown.splitlines())


@pytest.mark.parametrize(("worth", "terminal"), [(0, None), (3, 60), (8, 60), (8, 80)])
def test_the_first_screen_has_forty_lines(tmp_path: Path, worth: int, terminal: int | None) -> None:
    """Whatever is found: each of the first five is named with its place, and no text is cut."""
    long = " ".join(["long words"] * 20)
    finding = Finding(
        id="a", title="A title", evidence=f"a fact; {long}; another {long}", fix=long, explanation=long, query="steps",
        gain=Gain(0.125, 0.25, "unprofiled wall time", "all of it"), figures={}, location="file.py(3): function",
    )  # fmt: skip
    notes = [replace(finding, note=True, title=f"Worth knowing {number}") for number in range(3)]
    report = replace(report_of(tmp_path, tiny_trace.document()), findings=(*[finding] * worth, *notes))
    lines = render_document(report_document(report), "table", terminal, whole=False).splitlines()
    assert len(lines) <= 40
    assert sum(line.endswith("file.py(3): function") for line in lines) == min(worth, 5)
    assert sum(line.endswith("12.5 % to 25.0 %: A title") for line in lines) == min(worth, 5)
    assert not any("…" in line for line in lines[1:])
    assert ("  Nothing worth doing was found." in lines) == (not worth)


def test_damage_and_broken_sums_stand_at_the_top(tmp_path: Path) -> None:
    content = tiny_trace.document()
    content["traceEvents"].pop()
    report = report_of(tmp_path, content)
    shown = render(replace(report, trace=replace(report.trace, complete=False, problem="cut at byte 7")))
    assert shown.split("\n\n")[1:3] == [
        "WARNING: the trace is damaged, only its whole part was read: cut at byte 7",
        "WARNING: checks that do not hold: token slices = tokens of the recorded steps",
    ]
    assert (
        "* token slices = tokens of the recorded steps                          2        3       none  FAILS\n" in shown
    )
