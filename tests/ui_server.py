"""A server of the UI that runs while a test asks it, and what it serves."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import tiny_trace

from molprof.analysis.engine import Engine
from molprof.analysis.ui.contents import Place
from molprof.analysis.ui.prepare import Prepared, Settings, prepare
from molprof.analysis.ui.server import UiServer


@contextmanager
def serving(result: Prepared, port: int = 0, engine: Engine | None = None) -> Iterator[UiServer]:
    with UiServer(result, port, engine) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def prepared(tmp_path: Path, *documents: Any, place: Place = Place(), **options: Any) -> Prepared:  # noqa: B008
    """What is served of documents, or of lists of events."""
    paths = []
    for number, content in enumerate(documents):
        document = {"traceEvents": content} if isinstance(content, list) else content
        paths.append(tiny_trace.write(tmp_path / f"run{number}.json", document))
    return prepare(paths, tmp_path, Settings(place, **options))


def get(
    server: UiServer, path: str, method: str = "GET", host: str | None = None, token: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    headers = {"Host": host} if host is not None else {}
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request(method, f"/{server.token if token is None else token}/{path}", headers=headers)
        with connection.getresponse() as response:
            return response.status, dict(response.getheaders()), response.read()
