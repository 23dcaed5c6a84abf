"""In a real browser, pages open without errors or requests, and the Perfetto UI shows the served trace."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import browser
import pytest
import tiny_trace
from goldens import called
from page_data import HOSTILE, hostile_document, render, report_of, two_runs
from rank_traces import events, write_rank
from tiny_trace import slice_
from ui_server import PINNED, VISIBLE, serving, wait_for_view

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.ui.contents import ViewTarget
from molprof.analysis.ui.prepare import load_for_remote, prepare
from molprof.analysis.ui.server import UiServer

# What the UI by itself tries to reach, and the policy refuses.
OUTSIDE = {
    "https://storage.cloud.google.com/perfetto-ui-internal/is-internal-user/is_internal_user.js",
    "http://127.0.0.1:9001/status",
}
# What it says about that, and about what is its own.
SAID = re.compile(
    r"Unrecognized Content-Security-Policy directive 'navigate-to'\."
    r"|Loading the script 'https://storage\.cloud\.google\.com/.* violates .* The action has been blocked\."
    r"|Connecting to 'http://127\.0\.0\.1:9001/status' violates .* The action has been blocked\."
    r"|Fetch API cannot load http://127\.0\.0\.1:9001/status\. Refused to connect .*"
    r"|Failed to load resource: the server responded with a status of 404 \(Not Found\)"  # /live_reload
    r"|LiveReload SSE error Event"
    r"|Failed to cache trace .*",  # which is wanted: no copy stays in the browser
    re.DOTALL,
)
Show = Callable[[str], browser.Page]

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium to show pages in")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    """A page of a browser with an empty profile, for all tests."""
    with browser.page(tmp_path_factory.mktemp("profile")) as page:
        page.size(1500, 900)
        yield page


@pytest.fixture
def show(window: browser.Page, tmp_path: Path) -> Show:
    """Opens a page from its text."""

    def open_page(text: str) -> browser.Page:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
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


def test_the_browser_tells_of_what_the_tests_watch(show: Show) -> None:
    window = show("<script>alert('box'); console.error('said'); fetch('http://127.0.0.1:9/x')</script>")
    window.wait("true")
    assert window.dialogs == ["box"]
    assert ("error", "said") in window.console
    assert "http://127.0.0.1:9/x" in window.requests


def test_a_page_shows_prints_and_asks_for_nothing(show: Show, page: str, tmp_path: Path) -> None:
    window = show(page)
    assert window.console == []
    asked = [url for url in window.requests if not url.startswith("data:")]
    assert asked == [(tmp_path / "page.html").as_uri()]
    boxes = "Array.from(document.querySelectorAll('figure svg'), item => item.getBoundingClientRect())"
    sizes = window.evaluate(f"{boxes}.map(box => [box.width, box.height])")
    assert len(sizes) == 6  # each is drawn once
    assert all(width > 500 and height > 80 for width, height in sizes)
    # The policy took the page's own style sheet and refused nothing that a figure needs.
    assert style(window, ".summary", "border-left-style") == "solid"
    text = "#where-the-difference-lies svg text"
    for scheme, look in (("light", ("rgb(255, 255, 255)", "rgb(27, 31, 36)")),
                         ("dark", ("rgb(20, 24, 30)", "rgb(230, 233, 238)"))):  # fmt: skip
        window.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        assert (style(window, "body", "background-color"), style(window, text, "fill")) == look
    window.call("Emulation.setEmulatedMedia", features=[])
    # Printing unfolds every table, and folds them again.
    window.evaluate(
        "window.seen = 0; addEventListener('beforeprint', () => {"
        " window.seen = document.querySelectorAll('details:not([open])').length })"
    )
    before = count(window, "details:not([open])")
    assert len(window.call("Page.printToPDF", printBackground=False)["data"]) > 20_000
    assert (window.evaluate("window.seen"), count(window, "details:not([open])"), before > 0) == (0, before, True)
    # No width makes the whole page scroll sideways.
    window.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    for width in (400, 2560, 1500):
        window.size(width, 900)
        assert window.evaluate("document.documentElement.scrollWidth") <= width


# Text of cells and headings that is cut at the side of its table, and pairs of texts that lie on each other.
SPOILT = """(() => {
  const tables = Array.from(document.querySelectorAll(".scroll:has(> table)"));
  const cut = tables.filter(box => box.scrollWidth > box.clientWidth);
  const boxes = [];
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    if (!texts.currentNode.textContent.trim()) continue;
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    for (const box of range.getClientRects()) if (box.width > 1) boxes.push(box);
  }
  boxes.sort((a, b) => a.top - b.top);
  let overlaps = 0;
  boxes.forEach((a, place) => {
    for (const b of boxes.slice(place + 1)) {
      if (b.top > a.bottom - 4) break;
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2) overlaps += 1;
    }
  });
  return [cut.length, overlaps, boxes.length > 40];
})()"""


@pytest.mark.parametrize("by", ["module", "kernel", "operator"])
def test_a_tree_is_readable_in_a_small_window(show: Show, by: str, tmp_path: Path) -> None:
    """No text is cut or on another: a row of a table that is too wide shows its values below its name."""
    given = Path(__file__).parent / "goldens" / "given" / "gpu-eager.json.gz"
    code, text, _ = called(["report", "by", by, str(given), "--format", "html"], tmp_path)
    assert code == 0
    window = show(text)
    window.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    for width in (400, 500, 1000):
        window.size(width, 900)
        window.wait(f"innerWidth === {width}")
        window.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert window.evaluate(SPOILT) == [0, 0, True], width
        assert window.evaluate("document.documentElement.scrollWidth") <= width
        labels = "Array.from(document.querySelectorAll('.cards tbody td:nth-child(2)'), cell => cell.dataset.label)"
        titles = "Array.from(document.querySelectorAll('.cards th:nth-child(2)'), cell => cell.textContent.trim())"
        assert {*window.evaluate(labels)} == {*window.evaluate(titles)}
    window.size(1500, 900)


def test_tables_sort_by_click_and_by_keyboard(show: Show, page: str) -> None:
    window = show(page)
    window.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    window.evaluate(
        "Array.from(document.querySelectorAll('table.sortable')).find("
        "table => table.closest('article')?.innerText.startsWith('Unprofiled')).id = 'times'"
    )

    def column(place: int) -> list[str]:
        cells = f"row => row.cells[{place}].dataset.value"
        return list(window.evaluate(f"Array.from(document.querySelector('#times').tBodies[0].rows, {cells})"))

    def numbers() -> list[float]:
        return [float(value) for value in column(2) if value]

    before = column(2)
    window.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # it is laid out
    window.click("#times th button", 2)
    window.wait("document.querySelectorAll('#times th')[2].getAttribute('aria-sort') === 'descending'")
    assert numbers() == sorted(numbers(), reverse=True)
    window.evaluate("document.querySelectorAll('#times th button')[2].focus()")
    window.press("Enter", "Enter", 13, text="\r")
    assert numbers() == sorted(numbers())
    assert window.evaluate("document.querySelectorAll('#times th')[2].getAttribute('aria-sort')") == "ascending"
    assert sorted(column(2)) == sorted(before)
    assert set(column(2)[len(numbers()) :]) <= {""}  # what is not recorded stands last
    window.click("#times th button", 0)
    assert column(0) == sorted(column(0), key=str.casefold)


def test_hostile_names_run_nothing(show: Show, tmp_path: Path) -> None:
    halves = [" ".join(HOSTILE[place::2]) for place in (0, 1)]
    reports = [report_of(tmp_path, hostile_document(text), f"evil{place}") for place, text in enumerate(halves)]
    window = show(render(compare(reports, anyway=True), "html"))
    for place in range(min(6, count(window, "h1, .summary p, summary"))):
        window.click("h1, .summary p, summary", place)
    assert (window.console, window.dialogs) == ([], [])
    assert [url for url in window.requests if not url.startswith(("file:", "data:"))] == []
    assert count(window, "[onload], [onerror], [onmouseover], img") == 0


def check_quiet(window: browser.Page, server: UiServer) -> None:
    """Nothing but the server was reached, and nothing was said that the UI does not say anyway."""
    here = f"127.0.0.1:{server.port}"
    asked = {url: end for url, end in window.requests.items() if not url.startswith(("data:", "blob:"))}
    outside = {url: end for url, end in asked.items() if urlsplit(url).netloc != here}
    assert set(outside) <= OUTSIDE
    assert set(outside.values()) <= {"csp"}
    assert server.address in asked
    errors = [text for level, text in window.console if level in ("error", "assert")]
    assert [text for text in errors if not SAID.fullmatch(text)] == []
    assert [text for _, text in window.console if "Startup command" in text] == []


def pinned(window: browser.Page) -> list[str]:
    """Names of the pinned rows from top to bottom, as they stand on the page."""
    return list(window.evaluate(f"Array.from({PINNED}, title => title.textContent)"))


def number(window: browser.Page, sql: str) -> int:
    """What the UI's engine answers for the column `n`."""
    query = f"app.trace.engine.query({json.dumps(sql)}).then(result => Number(result.firstRow({{n: 0}}).n))"
    return int(window.evaluate(query))


@pytest.mark.parametrize("remote", [False, True])
def test_a_captured_run_opens_at_its_typical_step_and_again_after_a_reload(
    window: browser.Page, tmp_path: Path, remote: bool
) -> None:
    path = tiny_trace.write(tmp_path / "run.json.gz", tiny_trace.document())
    result = prepare([api.load(path, stacks=True)], tmp_path, ViewTarget())
    held = load_for_remote(result, None) if remote else nullcontext()
    with held as engine, serving(result, engine=engine) as server:
        window.open(server.address)
        for turn in range(1 if remote else 2):
            if turn:
                window.reload()
            wait_for_view(window, result)
            assert pinned(window) == list(result.view.pinned)
            span = window.evaluate(f"(span => [String(span.start), String(span.end)])({VISIBLE})")
            assert span == ["96800", "180000"]
            assert remote or window.evaluate("document.title").startswith("run.json.gz ")
            # molprof's tables can be asked for.
            include = "INCLUDE PERFETTO MODULE molprof.launches;"
            assert number(window, f"{include} SELECT launches AS n FROM molprof_launch_count") == 4
        assert (window.evaluate("app.trace.engine.mode") == "HTTP_RPC") is remote
        assert (f"{server.address}trace/{result.view.title}" in window.requests) is not remote
        assert remote or any(url.endswith(".wasm") for url in window.requests)  # workers are watched too
        check_quiet(window, server)


def test_ranks_stand_in_their_order_on_one_clock(window: browser.Page, tmp_path: Path) -> None:
    for rank, content in enumerate((events(), events(late=60, clock=5_000))):
        host = {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python"}}
        write_rank(tmp_path / f"{rank}.json", rank, [*content, host, slice_("cpu_op", "aten::mm", content[0]["ts"], 9)])
    job = api.ranks([tmp_path])
    clocks = tuple((f"rank {rank.rank}", job.clocks.offsets_ns[rank.rank]) for rank in job.ranks)
    result = prepare([api.load(rank.path, stacks=True) for rank in job.ranks], tmp_path, ViewTarget(), clocks)
    with serving(result) as server:
        window.open(server.address)
        wait_for_view(window, result)
        of_each = ("steps", "GPU 0 stream 7", "GPU 0 stream 20", "GPU 0 idle")
        assert pinned(window) == [f"rank {rank}: {name}" for rank in range(2) for name in of_each]
        names = window.evaluate("app.trace.workspace.children.map(row => row.name)")
        assert [name for name in names if ": python" in name] == ["rank 0: python 100", "rank 1: python 101"]
        ends = "SELECT MAX(ts + dur) - MIN(ts + dur) AS n FROM slice WHERE name GLOB 'nccl*'"
        assert number(window, ends) == 200_000  # between the two collectives; each ends on both ranks at once
        check_quiet(window, server)
