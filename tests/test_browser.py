"""The page in a real browser: it renders, sorts, prints, turns dark, and asks for nothing but its own file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_data import HOSTILE, foreign, hostile_document, report_of, two_runs

from molprof.analysis.compare import compare
from molprof.analysis.render import render

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

BROWSER = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed: no browser to show the page in"),
    pytest.mark.skipif(DRIVER is None, reason="chromedriver is not installed: nothing to steer the browser with"),
]
Show = Callable[[str], "Chrome"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A headless browser with an empty profile that logs its console and its requests."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Its own environment: a proxy of the machine's must not stand between it and its driver.
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER), env=environment))
    driver.set_page_load_timeout(120)
    yield driver
    driver.quit()


@pytest.fixture
def show(browser: Chrome, tmp_path: Path) -> Show:
    """Opens a page from its text."""

    def open_page(text: str) -> Chrome:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # what an earlier page left
        browser.set_window_size(1200, 900)
        browser.get(path.as_uri())
        return browser

    return open_page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(two_runs(tmp_path_factory.mktemp("page")), "html")


def requests(browser: Chrome) -> list[str]:
    """Every address that the page asked for."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [item["request"]["url"] for item in sent]


def find(browser: Chrome, selector: str) -> list[WebElement]:
    from selenium.webdriver.common.by import By

    return browser.find_elements(By.CSS_SELECTOR, selector)


def size(browser: Chrome, script: str) -> float:
    value: Any = browser.execute_script(f"return {script}")
    return float(value)


def test_renders_without_an_error_and_without_a_request(show: Show, page: str, tmp_path: Path) -> None:
    browser = show(page)
    assert browser.get_log("browser") == []
    asked = [url for url in requests(browser) if not url.startswith("data:")]
    assert asked == [(tmp_path / "page.html").as_uri()]
    assert browser.title == "qwen lp:generic against llama lp:generic – molprof compare"
    figures = find(browser, "figure svg")
    assert len(figures) == 6
    for figure in figures:
        assert figure.size["width"] > 500
        assert figure.size["height"] > 80
    # The policy took the page's own style sheet and refused nothing that a figure needs.
    assert find(browser, ".verdict")[0].value_of_css_property("border-left-style") == "solid"
    bar = find(browser, '.waterfall svg [fill="#0072b2"]')[0]
    assert bar.value_of_css_property("fill") == "rgb(0, 114, 178)"


def column(browser: Chrome, table: int, place: int) -> list[str]:
    script = (
        "return Array.from(document.querySelectorAll('table.sortable')[arguments[0]].tBodies[0].rows,"
        " row => row.cells[arguments[1]].dataset.value)"
    )
    values: list[str] = browser.execute_script(script, table, place)
    return values


def test_sorts_by_click_and_by_keyboard(show: Show, page: str) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = show(page)
    titles = [summary.text for summary in find(browser, "details summary")]
    index = 4  # after junk, predictions, settings and sums
    assert titles[0].startswith("Figures side by side")
    heading = find(browser, "details[open] table th")[2]
    button = find(browser, "details[open] table th button")[2]
    before = column(browser, index, 2)
    numbers = [float(value) for value in before if value and value.replace(".", "").isdigit()]
    assert numbers != sorted(numbers)
    button.click()
    assert heading.get_attribute("aria-sort") == "descending"
    after = [float(value) for value in column(browser, index, 2) if value and value.replace(".", "").isdigit()]
    assert sorted(numbers, reverse=True) == after
    button.send_keys(Keys.ENTER)
    assert heading.get_attribute("aria-sort") == "ascending"
    after = column(browser, index, 2)
    assert [float(value) for value in after if value and value.replace(".", "").isdigit()] == sorted(numbers)
    assert sorted(after) == sorted(before)
    empty = [place for place, value in enumerate(after) if value == ""]
    assert empty == list(range(len(after) - len(empty), len(after)))
    # Text begins with A, and the mark moves with the order.
    name = find(browser, "details[open] table th button")[1]
    name.click()
    assert column(browser, index, 1) == sorted(column(browser, index, 1), key=str.casefold)
    assert heading.get_attribute("aria-sort") is None


def test_dark_mode(show: Show, page: str) -> None:
    browser = show(page)
    look: dict[str, tuple[str, str]] = {}
    for scheme in ("light", "dark"):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        text = find(browser, '.waterfall svg text[fill="#1b1f24"]')[0]
        paper = find(browser, "body")[0].value_of_css_property("background-color")
        look[scheme] = (paper, text.value_of_css_property("fill"))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert look == {
        "light": ("rgba(255, 255, 255, 1)", "rgb(27, 31, 36)"),
        "dark": ("rgba(20, 24, 30, 1)", "rgb(230, 233, 238)"),
    }


@pytest.mark.parametrize("width", [400, 1200, 2560])
def test_no_width_makes_the_whole_page_scroll_sideways(show: Show, page: str, width: int) -> None:
    browser = show(page)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.execute_script("for (const details of document.querySelectorAll('details')) details.open = true")
    assert size(browser, "document.documentElement.scrollWidth") <= width
    # What is wider than its place scrolls in it.
    assert size(browser, "document.querySelector('figure svg').getBoundingClientRect().width") > 500
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_print_unfolds_every_table_and_folds_them_again(show: Show, page: str) -> None:
    browser = show(page)
    counts = "document.querySelectorAll('details[open]').length"
    assert size(browser, counts) == 1
    browser.execute_script(
        "window.seen = 0; addEventListener('beforeprint', () => {"
        " window.seen = document.querySelectorAll('details:not([open])').length === 0 ? 1 : -1 })"
    )
    data = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"]
    assert len(data) > 20_000
    assert (size(browser, "window.seen"), size(browser, counts)) == (1, 1)


def test_hostile_names_run_nothing(show: Show, tmp_path: Path) -> None:
    reports = [report_of(tmp_path, hostile_document(text), f"evil{index}") for index, text in enumerate(HOSTILE)]
    browser = show(render(compare(reports, anyway=True), "html"))
    assert browser.get_log("browser") == []
    assert [url for url in requests(browser) if not url.startswith(("file:", "data:"))] == []
    assert len(find(browser, "script")) == 1
    assert find(browser, "[onload], [onerror], [onmouseover], img") == []
    for element in find(browser, "h1, .verdict p, summary")[:6]:
        element.click()
    assert browser.get_log("browser") == []  # an alert would have ended the session


def test_a_foreign_trace(show: Show, tmp_path: Path) -> None:
    browser = show(render(foreign(tmp_path), "html"))
    assert browser.get_log("browser") == []
    assert len(find(browser, "figure svg")) == 1
