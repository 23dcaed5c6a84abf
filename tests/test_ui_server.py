"""What `molprof open` serves, to whom, and how the command ends."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import tiny_trace
from conftest import Cli
from ui_server import get, prepared, serving

from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.ui.prepare import Prepared, View, load_for_remote
from molprof.analysis.ui.server import UiServer
from molprof.common.errors import QueryError, UsageError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UiServer]:
    trace = tmp_path / "trace.gz"
    trace.write_bytes(gzip.compress(b'{"traceEvents":[]}'))
    view = View("run.json.gz", [], {}, None, [], [])
    with serving(Prepared(trace, view, [])) as server:
        yield server


def test_the_page_and_its_parts_are_served_with_a_policy(server: UiServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    status, headers, page = get(server, "")
    assert status == 200
    version = next(iter(server.assets)).split("/")[0]
    assert f'src="{version}/frontend_bundle.js"'.encode() in page
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == policy["worker-src"] == "'self'"
    assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    status, headers, _ = get(server, f"{version}/trace_processor.wasm")
    assert (status, headers["Content-Type"]) == (200, "application/wasm")
    assert "Content-Security-Policy" in headers
    status, _, body = get(server, "trace/run.json.gz")
    assert (status, gzip.decompress(body)) == (200, b'{"traceEvents":[]}')


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        pytest.param("", {"token": "x" * 32}, id="wrong-token"),
        pytest.param("", {"token": ""}, id="no-token"),
        pytest.param("", {"token": "%C3%A9"}, id="token-not-ascii"),
        pytest.param("", {"host": "evil.example"}, id="other-host"),
        pytest.param("", {"host": "127.0.0.1.evil.example:80"}, id="host-that-looks-alike"),
        pytest.param("", {"host": ""}, id="no-host"),
        pytest.param("../../../../etc/passwd", {}, id="parent"),
        pytest.param("%2e%2e/index.html", {}, id="parent-escaped"),
        pytest.param("index.html", {}, id="not-listed"),
    ],
)
def test_everything_else_is_not_found(server: UiServer, path: str, changes: dict[str, str]) -> None:
    status, _, body = get(server, path, **changes)  # type: ignore[arg-type]
    assert (status, body) == (404, b"not found\n")


def test_a_forwarded_port_is_this_machine_too(server: UiServer) -> None:
    assert get(server, "", host="localhost:8080")[0] == 200
    assert get(server, "", method="POST")[0] == 404
    assert get(server, "", method="PUT")[0] == 501


def test_a_port_in_use_is_told(server: UiServer) -> None:
    view = View("run", [], {}, None, [], [])
    with pytest.raises(UsageError, match=f"cannot listen on port {server.port} of 127.0.0.1"):
        UiServer(Prepared(Path("x"), view, []), server.port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_the_address_and_ends_with_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    trace = tiny_trace.write(tmp_path / "trace.json", tiny_trace.document())
    environment = {**os.environ, "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22", "TMPDIR": str(tmp_path / "scratch")}
    (tmp_path / "scratch").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "molprof", "open", str(trace), "--step", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with urlopen(address, timeout=30) as response:
        assert response.status == 200
    os.kill(process.pid, number)
    rest, errors = process.communicate(timeout=60)
    port = address.split(":")[2].split("/")[0]
    assert (process.returncode, rest) == (0, "")
    assert f"ssh -N -L {port}:127.0.0.1:{port} " in errors
    assert "@10.0.0.2, then open the address there" in errors
    assert errors.endswith("Ctrl-C ends it\nended\n")
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["-"], "standard input (-) can be read once only: name a file", id="stdin"),
        pytest.param(["a.json", "--step", "1", "--token", "2"], "exclude each other", id="two-places"),
        pytest.param(["a.json"], "cannot read a.json", id="missing"),
    ],
)
def test_wrong_use_is_one_line(molprof: Cli, arguments: list[str], message: str) -> None:
    result = molprof("open", *arguments)
    assert result.returncode in (2, 3)
    assert message in result.stderr
    assert "Traceback" not in result.stderr


class _Client:
    """Carries an engine's messages to a server, as the UI does."""

    def __init__(self, server: UiServer) -> None:
        self._address = f"{server.address}rpc"

    def exchange(self, request: bytes) -> bytes:
        with urlopen(Request(self._address, data=request), timeout=60) as response:
            return bytes(response.read())

    def close(self) -> None:
        pass


def test_a_remote_engine_answers_one_client_after_the_other(tmp_path: Path) -> None:
    result = prepared(tmp_path, tiny_trace.document())
    with load_for_remote(result, None) as engine, serving(result, engine=engine) as server:
        status, _, body = get(server, "status")
        assert status == 200
        assert b"run0.json" in body
        for _ in range(2):
            client = TraceProcessor(_Client(server))
            assert client.query("SELECT COUNT() AS n FROM slice")["n"].tolist() == [34]
            with pytest.raises(QueryError, match="no such table: absent"):
                client.query("SELECT * FROM absent")
        assert get(server, "rpc", method="POST", token="x" * 32)[0] == 404
        assert get(server, "rpc", method="POST", host="evil.example")[0] == 404
        assert '"remote": true' in get(server, "view.js")[2].decode()


def test_without_an_engine_nothing_is_answered(server: UiServer) -> None:
    assert get(server, "rpc", method="POST")[0] == 404
    assert get(server, "status")[0] == 404
