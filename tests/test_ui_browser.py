"""The Perfetto UI in a real browser, as `molprof open` serves it: what is pinned, where it is zoomed, what it asks for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import browser
import pytest
import tiny_trace
from ui_server import serving

from molprof.analysis.ui.contents import Place
from molprof.analysis.ui.prepare import Prepared, Settings, prepare
from molprof.analysis.ui.server import UiServer

CORPUS = Path(os.environ.get("MOLPROF_CORPUS", "/nonexistent")) / "traces"
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

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium to open the Perfetto UI in")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.page(tmp_path_factory.mktemp("profile")) as page:
        page.size(1500, 900)
        yield page


@contextmanager
def shown(window: browser.Page, tmp_path: Path, *paths: Path, place: Place = Place()) -> Iterator[Prepared]:  # noqa: B008
    """The UI with the traces, until all is pinned."""
    result = prepare(paths, tmp_path, Settings(place))
    with serving(result) as server:
        window.open(server.address)
        wait_for_view(window, result)
        yield result
        check_quiet(window, server)


def wait_for_view(window: browser.Page, result: Prepared) -> None:
    last = result.view.pinned[-1]
    window.wait(f"(window.app?.trace?.workspace.pinnedTracks ?? []).some(row => row.name === {last!r})")
    window.wait(f"app.trace.workspace.pinnedTracks.length === {len(result.view.pinned)}")
    window.wait("!document.body.innerText.includes('Loading')")


def check_quiet(window: browser.Page, server: UiServer) -> None:
    """Nothing but the server was reached, and nothing was said that the UI does not say anyway."""
    here = f"127.0.0.1:{server.port}"
    asked = {url: end for url, end in window.requests.items() if not url.startswith(("data:", "blob:"))}
    outside = {url: end for url, end in asked.items() if urlsplit(url).netloc != here}
    assert set(outside) <= OUTSIDE
    assert set(outside.values()) <= {"csp"}
    assert f"{server.address}trace/" in " ".join(asked)
    assert any(url.endswith(".wasm") for url in asked)  # workers are watched too
    errors = [text for level, text in window.console if level in ("error", "assert")]
    assert [text for text in errors if not SAID.fullmatch(text)] == []
    assert [text for _, text in window.console if "Startup command" in text] == []


def pinned(window: browser.Page) -> list[str]:
    """Names of the pinned rows from top to bottom, as they stand on the page."""
    names: list[str] = window.evaluate(
        "Array.from(document.querySelectorAll('.pf-timeline-page__pinned-track-tree .pf-track__title'),"
        " title => title.innerText)"
    )
    return names


def visible(window: browser.Page) -> tuple[int, int]:
    """Start and duration of what is shown, ns."""
    start, end = window.evaluate(
        "(span => [String(span.start), String(span.end)])(app.trace.timeline.visibleWindow.toTimeSpan())"
    )
    return int(start), int(end) - int(start)


def test_dump(window: browser.Page, tmp_path: Path) -> None:
    path = tiny_trace.write(tmp_path / "run.json.gz", tiny_trace.document())
    with shown(window, tmp_path, path) as result:
        print(visible(window), result.view.visible)
        print(window.evaluate("document.title"))
        print(
            window.evaluate(
                "(function walk(n, d) { return ' '.repeat(d) + n.className + ' ' + (n.children.length ? '' : n.innerText) + '\\n' + (d < 14 ? Array.from(n.children, c => walk(c, d + 1)).join('') : '') })(document.body, 0)"
            )[:9000]
        )
        Path("/work/wt-u-pk/tmp/tiny.png").write_bytes(window.picture())
