"""A server of the UI that runs while a test asks it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from molprof.analysis.engine import Engine
from molprof.analysis.ui.prepare import Prepared
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
