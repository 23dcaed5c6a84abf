"""The page in a real browser: it renders, sorts, prints, turns dark, and asks for nothing but its own file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from page_data import HOSTILE, foreign, hostile_document, render, report_of, two_runs

from molprof.analysis.compare import compare

pytestmark = pytest.mark.skipif(
    browser.CHROMIUM is None, reason="chromium is not installed: no browser to show the page in"
)
Show = Callable[[str], browser.Page]


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    """A page of a browser with an empty profile."""
    with browser.page(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def show(window: browser.Page, tmp_path: Path) -> Show:
    """Opens a page from its text."""

    def open_page(text: str) -> browser.Page:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        window.size(1200, 900)
        window.open(path.as_uri())
        return window

    return open_page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(two_runs(tmp_path_factory.mktemp("page")), "html")


def count(window: browser.Page, selector: str) -> int:
    return int(window.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))


def style(window: browser.Page, selector: str, name: str) -> Any:
    return window.evaluate(f"getComputedStyle(document.querySelector({json.dumps(selector)}))[{name!r}]")


def test_renders_without_an_error_and_without_a_request(show: Show, page: str, tmp_path: Path) -> None:
    window = show(page)
    assert window.console == []
    asked = [url for url in window.requests if not url.startswith("data:")]
    assert asked == [(tmp_path / "page.html").as_uri()]
    assert window.evaluate("document.title") == "molprof compare: qwen lp:generic against llama lp:generic"
    sizes = window.evaluate(
        "Array.from(document.querySelectorAll('figure svg'),"
        " figure => [figure.getBoundingClientRect().width, figure.getBoundingClientRect().height])"
        ".filter(([width]) => width > 0)"
    )
    assert len(sizes) == 6
    for width, height in sizes:
        assert width > 500
        assert height > 80
    # The policy took the page's own style sheet and refused nothing that a figure needs.
    assert style(window, ".summary", "border-left-style") == "solid"
    assert style(window, '#where-the-difference-lies svg [fill="#0072b2"]', "fill") == "rgb(0, 114, 178)"


def column(window: browser.Page, table: int, place: int) -> list[str]:
    values: list[str] = window.evaluate(
        f"Array.from(document.querySelectorAll('table.sortable')[{table}].tBodies[0].rows,"
        f" row => row.cells[{place}].dataset.value)"
    )
    return values


def sorting(window: browser.Page, place: int) -> str | None:
    """How the open table says that it is sorted by the column of this place."""
    heading = f"document.querySelectorAll('#times th')[{place}]"
    found: str | None = window.evaluate(f"{heading}.getAttribute('aria-sort')")
    return found


def test_sorts_by_click_and_by_keyboard(show: Show, page: str) -> None:
    window = show(page)
    window.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    headings = "Array.from(document.querySelectorAll('table.sortable'), table => table.closest('article')?.innerText)"
    index = next(place for place, text in enumerate(window.evaluate(headings)) if (text or "").startswith("Unprofiled"))
    window.evaluate(f"document.querySelectorAll('table.sortable')[{index}].id = 'times'")
    before = column(window, index, 2)
    numbers = [float(value) for value in before if value and value.replace(".", "").isdigit()]
    assert numbers != sorted(numbers)
    window.click("#times th button", 2)
    assert sorting(window, 2) == "descending"
    after = [float(value) for value in column(window, index, 2) if value and value.replace(".", "").isdigit()]
    assert sorted(numbers, reverse=True) == after
    window.evaluate("document.querySelectorAll('#times th button')[2].focus()")
    window.press("Enter", "Enter", 13, text="\r")
    assert sorting(window, 2) == "ascending"
    after = column(window, index, 2)
    assert [float(value) for value in after if value and value.replace(".", "").isdigit()] == sorted(numbers)
    assert sorted(after) == sorted(before)
    empty = [place for place, value in enumerate(after) if value == ""]
    assert empty == list(range(len(after) - len(empty), len(after)))
    # Text begins with A, and the mark moves with the order.
    window.click("#times th button", 0)
    assert column(window, index, 0) == sorted(column(window, index, 0), key=str.casefold)
    assert sorting(window, 2) is None


def test_dark_mode(show: Show, page: str) -> None:
    window = show(page)
    look: dict[str, tuple[str, str]] = {}
    for scheme in ("light", "dark"):
        window.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        paper = style(window, "body", "background-color")
        look[scheme] = (paper, style(window, '#where-the-difference-lies svg text[fill="#1b1f24"]', "fill"))
    window.call("Emulation.setEmulatedMedia", features=[])
    assert look == {
        "light": ("rgb(255, 255, 255)", "rgb(27, 31, 36)"),
        "dark": ("rgb(20, 24, 30)", "rgb(230, 233, 238)"),
    }


@pytest.mark.parametrize("width", [400, 1200, 2560])
def test_no_width_makes_the_whole_page_scroll_sideways(show: Show, page: str, width: int) -> None:
    window = show(page)
    window.size(width, 900)
    window.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    # Plots take the width that there is.
    drawn = "Array.from(document.querySelectorAll('.across svg'), item => item.getBoundingClientRect().width)"
    column, wide = window.evaluate(drawn)[:2]
    assert (column > 0.8 * width, wide == 0) == (width == 400, width == 400)
    assert max(column, wide) > 0.8 * min(width, 1600)


def test_print_unfolds_every_table_and_folds_them_again(show: Show, page: str) -> None:
    window = show(page)
    assert count(window, "details[open]") == 0
    window.evaluate(
        "window.seen = 0; addEventListener('beforeprint', () => {"
        " window.seen = document.querySelectorAll('details:not([open])').length === 0 ? 1 : -1 })"
    )
    assert len(window.call("Page.printToPDF", printBackground=False)["data"]) > 20_000
    assert (window.evaluate("window.seen"), count(window, "details[open]")) == (1, 0)


def test_hostile_names_run_nothing(show: Show, tmp_path: Path) -> None:
    halves = [" ".join(HOSTILE[place::2]) for place in (0, 1)]
    reports = [report_of(tmp_path, hostile_document(text), f"evil{place}") for place, text in enumerate(halves)]
    window = show(render(compare(reports, anyway=True), "html"))
    assert window.console == []
    assert [url for url in window.requests if not url.startswith(("file:", "data:"))] == []
    assert count(window, "script") == 1
    assert count(window, "[onload], [onerror], [onmouseover], img") == 0
    for place in range(min(6, count(window, "h1, .summary p, summary"))):
        window.click("h1, .summary p, summary", place)
    assert window.console == []
    assert window.dialogs == []


def test_a_foreign_trace(show: Show, tmp_path: Path) -> None:
    window = show(render(foreign(tmp_path), "html"))
    assert window.console == []
    assert count(window, "figure svg") == 1
