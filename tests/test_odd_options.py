"""Odd options and lines of files give one line and an exit code, before any work."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from goldens import called


class _Models(BaseHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "mine"}], "version": "0.32.0"}).encode())


@pytest.mark.parametrize(
    "more", [["--batches", "1"], ["--what-if", "x"], ["--rows", "3"], ["--beside", "x.json"], ["--measured", "x.json"]]
)
def test_a_list_of_gpus_takes_nothing_else(more: list[str], tmp_path: Path) -> None:
    code, out, err = called(["predict", "--list", *more], tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith(f"molprof: error: --list takes no {more[0]}\n")


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("messages", 5, "list"),
        ("tools", "a", "list"),
        ("response_format", "text", "object"),
        ("response_format.json_schema", "a", "object"),
        ("structured_outputs", ["a"], "object"),
        ("vllm_xargs", ["table_a"], "object"),
    ],
)
def test_a_field_of_a_request_that_is_something_else(field: str, value: Any, kind: str, tmp_path: Path) -> None:
    first, _, last = field.partition(".")
    body = {first: {"type": "json_schema", last: value} if last else value}
    line = json.dumps(body if first == "messages" else {"prompt": "a", **body})
    (tmp_path / "ask.jsonl").write_text(f"{line}\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Models) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        code, out, err = called(["attach", url, "--requests", "ask.jsonl"], tmp_path)
        server.shutdown()
    assert (code, out) == (2, "")
    assert f"ask.jsonl, line 1: {field} is no {kind}: {json.dumps(value)}" in " ".join(err.split())
