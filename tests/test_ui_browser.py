"""The Perfetto UI in a real browser, as `molprof open` serves it: what it shows, and what it asks for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import browser
import pytest
import tiny_trace
from ui_server import PINNED, VISIBLE, serving, wait_for_view

from molprof import api
from molprof.analysis.ui.contents import Place
from molprof.analysis.ui.prepare import Prepared, load_for_remote, prepare
from molprof.analysis.ui.server import UiServer

CORPUS = Path(os.environ.get("MOLPROF_CORPUS", "/nonexistent")) / "traces"
RANKS = CORPUS.parent / "ranks"
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
    result = prepare([api.load(path, stacks=True) for path in paths], tmp_path, place)
    with serving(result) as server:
        window.open(server.address)
        wait_for_view(window, result)
        yield result
        check_quiet(window, server)
        assert f"{server.address}trace/{result.view.title}" in window.requests
        assert any(url.endswith(".wasm") for url in window.requests)  # workers are watched too


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
    names: list[str] = window.evaluate(f"Array.from({PINNED}, title => title.textContent)")
    return names


def visible(window: browser.Page) -> tuple[int, int]:
    """Start and duration of what is shown, ns."""
    start, end = window.evaluate(f"(span => [String(span.start), String(span.end)])({VISIBLE})")
    return int(start), int(end) - int(start)


def number(window: browser.Page, sql: str) -> int:
    """What the UI's engine answers for the column `n`."""
    query = f"app.trace.engine.query({json.dumps(sql)}).then(result => Number(result.firstRow({{n: 0}}).n))"
    return int(window.evaluate(query))


def test_a_captured_run_opens_at_its_typical_step_and_again_after_a_reload(
    window: browser.Page, tmp_path: Path
) -> None:
    path = tiny_trace.write(tmp_path / "run.json.gz", tiny_trace.document())
    with shown(window, tmp_path, path) as result:
        for turn in range(2):
            assert pinned(window) == [
                "steps", "phases", "host syncs", "sequence, track 1", "sequence, track 2", "junk tokens",
                "GPU 0 stream 7", "GPU 0 stream 8", "GPU 0 idle",
            ]  # fmt: skip
            assert visible(window) == (96_800, 83_200)
            assert window.evaluate("document.title").startswith("run.json.gz ")
            # The process whose steps these are is unfolded; molprof's tables can be asked for.
            window.wait("document.body.innerText.includes('main thread')")
            include = "INCLUDE PERFETTO MODULE molprof.launches;"
            assert number(window, f"{include} SELECT launches AS n FROM molprof_launch_count") == 4
            if turn == 0:
                window.reload()
                wait_for_view(window, result)


def test_a_remote_engine_holds_the_trace(window: browser.Page, tmp_path: Path) -> None:
    path = tiny_trace.write(tmp_path / "run.json.gz", tiny_trace.document())
    result = prepare([api.load(path, stacks=True)], tmp_path, Place())
    with load_for_remote(result, None) as engine, serving(result, engine=engine) as server:
        window.open(server.address)
        wait_for_view(window, result)
        assert window.evaluate("app.trace.engine.mode") == "HTTP_RPC"
        assert pinned(window) == list(result.view.pinned)
        assert visible(window) == (96_800, 83_200)
        assert number(window, "SELECT COUNT() AS n FROM slice WHERE category = 'kernel'") == 6
        assert [url for url in window.requests if "/trace/" in url] == []
        assert [url for url in window.requests if url.startswith("ws")] == []
        check_quiet(window, server)


@pytest.mark.skipif(not CORPUS.is_dir(), reason="MOLPROF_CORPUS names no folder with traces/")
def test_two_files_stand_in_one_timeline_and_kernels_that_overlap_are_all_there(
    window: browser.Page, tmp_path: Path
) -> None:
    first, second = CORPUS / "b200_vllm_eager.json.gz", tiny_trace.write(tmp_path / "b.json", tiny_trace.cpu_document())
    with shown(window, tmp_path, first, second):
        assert pinned(window) == [
            "b200_vllm_eager: steps", "b200_vllm_eager: modules", "b200_vllm_eager: operators",
            "b200_vllm_eager: GPU 0 stream 7", "b200_vllm_eager: GPU 0 stream 7 (overlapping 2), track 8",
            "b200_vllm_eager: GPU 0 idle", "b: steps",
            "b: phases", "b: sequence, track 1", "b: sequence, track 2", "b: junk tokens",
        ]  # fmt: skip
        assert visible(window) == (0, 87_412_863)
        assert number(window, "SELECT COUNT() AS n FROM slice WHERE category = 'kernel'") == 768
        assert window.evaluate("document.title").startswith("b200_vllm_eager.json.gz+b.json ")
        assert "b200_vllm_ea" in window.evaluate("document.body.innerText")


@pytest.mark.skipif(not RANKS.is_dir(), reason="MOLPROF_CORPUS names no folder with ranks/")
def test_ranks_stand_in_their_order_on_one_clock(window: browser.Page, tmp_path: Path) -> None:
    job = api.ranks([RANKS])
    clocks = tuple((f"rank {rank.rank}", job.clocks.offsets_ns[rank.rank]) for rank in job.ranks)
    result = prepare([api.load(rank.path, stacks=True) for rank in job.ranks], tmp_path, Place(), clocks)
    with serving(result) as server:
        window.open(server.address)
        wait_for_view(window, result)
        assert window.evaluate("document.title").startswith("megatron_tp8_rank0.json.gz+3_more ")
        of_each = ("steps", "host syncs", "GPU {0} stream 7", "GPU {0} stream 24", "GPU {0} idle")
        assert pinned(window) == [f"rank {rank}: {name.format(rank)}" for rank in range(4) for name in of_each]
        # The rows of the first rank are those that one sees: 20 do not fit.
        tree = "document.querySelector('.pf-viewer-page__pinned-track-tree')"
        later = "new Promise(done => setTimeout(done, 800))"
        assert window.evaluate(
            f"{later}.then(() => {tree}.scrollTop === 0 && {tree}.scrollHeight > {tree}.clientHeight)"
        )
        names = window.evaluate("app.trace.workspace.children.map(row => row.name)")
        hosts = [name for name in names if ": python" in name]
        assert hosts == [f"rank {rank}: python {2590092 + rank}" for rank in range(4)]
        # The ends of a collective are within 50 us of each other; the starts are not, because ranks wait.
        places = "ROW_NUMBER() OVER (PARTITION BY track_id ORDER BY ts) AS place"
        kernels = f"SELECT ts, ts + dur AS ts_end, {places} FROM slice WHERE category = 'kernel' AND name GLOB 'nccl*'"
        spreads = "MAX(ts_end) - MIN(ts_end) AS ends, MAX(ts) - MIN(ts) AS starts"
        each = f"SELECT {spreads} FROM ({kernels}) GROUP BY place"
        assert number(window, f"SELECT MAX(ends) AS n FROM ({each})") < 50_000
        assert number(window, f"SELECT MAX(starts) AS n FROM ({each})") > 10_000_000
        check_quiet(window, server)


def test_the_browser_tells_of_what_the_tests_watch(window: browser.Page, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<script>alert('box'); console.error('said'); fetch('http://127.0.0.1:9/x')</script>")
    window.open(page.as_uri())
    window.wait("true")
    assert window.dialogs == ["box"]
    assert ("error", "said") in window.console
    assert "http://127.0.0.1:9/x" in window.requests
