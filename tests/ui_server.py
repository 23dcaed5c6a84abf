"""A running server of the UI for tests, and its requests."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import tiny_trace
from browser import Page

from molprof import api
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.ui.contents import ViewTarget
from molprof.analysis.ui.prepare import Prepared, prepare
from molprof.analysis.ui.server import UiServer

PINNED = "document.querySelectorAll('.pf-viewer-page__pinned-track-tree .pf-track__title-popup')"
VISIBLE = "app.trace.timeline.visibleWindow.toTimeSpan()"


@contextmanager
def serving(result: Prepared, port: int = 0, engine: TraceProcessor | None = None) -> Iterator[UiServer]:
    with UiServer(result, port, engine) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def prepared(tmp_path: Path, *documents: Any, place: ViewTarget = ViewTarget(), **options: Any) -> Prepared:  # noqa: B008
    """What is served of documents, or of lists of events."""
    traces = []
    for number, content in enumerate(documents):
        document = {"traceEvents": content} if isinstance(content, list) else content
        path = tiny_trace.write(tmp_path / f"run{number}.json", document)
        traces.append(api.load(path, **{"stacks": True, **options}))
    return prepare(traces, tmp_path, place)


def get(
    server: UiServer, path: str, method: str = "GET", host: str | None = None, token: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    headers = {"Host": host} if host is not None else {}
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request(method, f"/{server.token if token is None else token}/{path}", headers=headers)
        with connection.getresponse() as response:
            return response.status, dict(response.getheaders()), response.read()


def wait_for_view(window: Page, result: Prepared) -> None:
    """Waits until a browser shows all that is pinned, at the place to show."""
    last = result.view.pinned[-1]
    window.wait(f"(window.app?.trace?.workspace.pinnedTracks ?? []).some(row => row.name === {last!r})")
    window.wait(f"app.trace.workspace.pinnedTracks.length === {len(result.view.pinned)}")
    window.wait("!document.body.innerText.includes('Loading')")
    # What is known to the UI is drawn a moment later, and zoomed to.
    window.wait(f"{PINNED}.length === {len(result.view.pinned)}")
    window.wait("document.body.dataset.packages")
    if result.view.visible is not None:
        window.wait(f"String({VISIBLE}.start) === '{result.view.visible.start_ns}'")
