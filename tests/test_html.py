"""The page: in the right order, whole, the same each time; nothing that a trace says becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tiny_trace
from msgspec.structs import replace
from page_data import HOSTILE, foreign, hostile_document, render, report_of, two_runs

from molprof.analysis.compare import compare
from molprof.analysis.figures.drift import JunkExample
from molprof.analysis.figures.model import Finding, Sum
from molprof.analysis.render import render as render_document
from molprof.analysis.render.html import ROWS
from molprof.common.document import Column, Document, Section, Table

# Elements without an end.
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Tree(HTMLParser):
    """Elements with their attributes, and whether every one is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two runs."""
    return render(two_runs(tmp_path_factory.mktemp("two")), "html")


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A page whose names need no care."""
    return Tree(render(report_of(tmp_path_factory.mktemp("plain"), hostile_document("harmless")), "html"))


def test_every_link_leads_somewhere_and_nothing_is_fetched(page: str) -> None:
    tree = Tree(page)
    names = {attributes["id"] for _, attributes in tree.found if "id" in attributes}
    for tag, attributes in tree.found:
        for key in ("href", "src", "xlink:href", "action", "data", "srcset", "poster"):
            value = attributes.get(key)
            if value is not None:
                assert value == "data:," or value.removeprefix("#") in names, (tag, key, value)
        assert not [key for key in attributes if key.startswith("on") or key == "style"], (tag, attributes)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "@import" not in page


def test_the_policy_allows_the_pages_own_style_and_script_alone(tmp_path: Path) -> None:
    page = render(foreign(tmp_path), "html")
    (policy,) = (
        attributes["content"]
        for tag, attributes in Tree(page).found
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "style-src": f"'{digest(page, 'style')}'",
        "script-src": f"'{digest(page, 'script')}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def digest(page: str, tag: str) -> str:
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def test_hostile_names_stay_text(tmp_path: Path, harmless: Tree) -> None:
    text = " ".join(HOSTILE)
    report = report_of(tmp_path, hostile_document(text), "evil")
    finding = Finding(id=text, title=text, evidence=text, fix=text, explanation=text, query=text, figures={text: 1.0})
    check = Sum(text, text, 1, 2, 0.0, False)
    page = render(replace(report, findings=(finding,), checks=(*report.checks, check)), "html")
    tree = Tree(page)
    assert tree.open == []
    kinds = {tag for tag, _ in harmless.found} | {"article", "h3", "dl", "dt", "dd"}
    assert {tag for tag, _ in tree.found} <= kinds
    assert [tag for tag, _ in tree.found].count("script") == 1
    names = {key for _, attributes in tree.found for key in attributes}
    assert names <= {key for _, attributes in harmless.found for key in attributes} | {"title"}
    assert not {"\x1b", "\u202e", "\r", "\x00"} & set(page)
    assert "{{ 7 * 7 }}" in tree.text()


def test_a_finding_leads_to_its_own_evidence(tmp_path: Path) -> None:
    report = report_of(tmp_path, tiny_trace.document())
    findings = tuple(
        Finding(id=name, title=name, evidence="", fix="", explanation=f"why {name}", query="", figures={})
        for name in ("one", "two")
    )
    page = render(replace(report, findings=findings), "html")
    (target,) = re.findall(r'<a href="#([^"]*)">two</a>', page)
    assert "why two" in page.partition(f'<article id="{target}">')[2].partition("</article>")[0]


def test_both_runs_hostile(tmp_path: Path) -> None:
    report = report_of(tmp_path, hostile_document(HOSTILE[0]))
    page = render(compare([report, report]), "html")
    assert page.count("<script>") == page.count("</script>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_cells_carry_the_value_that_they_are_sorted_by(page: str, tmp_path: Path) -> None:
    assert '<td class="number" data-value="4000000000">4.00 s</td>' in page
    assert '<td class="number" data-value="-30000000">-30.0 ms</td>' in page
    assert '<td class="number" data-value="1.345">1.34x</td>' in page
    # Noise explains the ratio: it is sorted by, and shown when pointed at.
    noisy = render(two_runs(tmp_path, spread_ns=3_000_000_000), "html")
    assert '<td class="number" data-value="1.345" title="1.34x">~</td>' in noisy
    # Not recorded is neither 0 nor a name: it goes last whatever the order.
    assert '<td class="number" data-value="">-</td>' in page


def test_damage_and_broken_sums_stand_at_the_top(tmp_path: Path) -> None:
    report = report_of(tmp_path, tiny_trace.document())
    trace = replace(report.trace, complete=False, problem="cut at byte 7")
    broken = Sum("x", "a = b", 1, 2, 0.0, False)
    text = Tree(render(replace(report, trace=trace, checks=(broken,)), "html")).text()
    damage = text.index("the trace is damaged, only its whole part was read: cut at byte 7")
    checks = text.index("checks that do not hold: a = b")
    assert damage < checks < text.index("A typical step")
    assert "a = b 1 2 none FAILS" in text


def test_examples_of_junk_are_shown(tmp_path: Path) -> None:
    example = JunkExample(sequence=0, block=3, position=41, text="<1.0,2.0,3.0|<b>abra|>", surplus="<b>abra", blocks=2)
    comparison = two_runs(tmp_path)
    report = comparison.runs[0]
    assert report.run is not None
    assert report.run.drift is not None
    drift = replace(report.run.drift, junk_examples=(example,))
    report = replace(report, run=replace(report.run, drift=drift))
    assert "0 3 41 2 <b>abra <1.0,2.0,3.0|<b>abra|>" in Tree(render(report, "html")).text()
    both = Tree(render(replace(comparison, timed=(report, comparison.timed[1])), "html")).text()
    assert "llama lp:generic 0 3 41 2 <b>abra" in both
    assert "Junk in coordinate blocks" not in render(foreign(tmp_path), "html")


def test_very_long_tables_end_and_say_so() -> None:
    table = Table((Column("n", "index"),), [(number,) for number in range(ROWS + 7)])
    page = render_document(Document("t", (Section("numbers", table=table),), dict), "html")
    assert page.count('<td class="number"') == ROWS
    assert "first 500 rows; --format json has 7 more" in page


def test_settings_that_differ_are_marked(page: str) -> None:
    marked = re.findall(r'<tr class="marked"><td data-value="([^"]*)"', page)
    assert marked == ["model"]
