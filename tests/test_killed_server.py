"""A server that is killed while it answers is reported as gone, however much of the answer had come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SERVER = """
import json, os, signal, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        text = json.dumps({"/v1/models": {"data": [{"id": "mine"}]}, "/version": {"version": "0.32.0"}}[self.path])
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if sys.argv[1] != "before":
            self.send_response(200)
            self.send_header(*(("Connection", "close") if sys.argv[1] == "plain" else ("Transfer-Encoding", "chunked")))
            self.end_headers()
            event = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\\n\\n'
            self.wfile.write(event if sys.argv[1] == "plain" else b"%x\\r\\n%s\\r\\n" % (len(event), event))
            self.wfile.flush()
        os.kill(os.getpid(), signal.SIGKILL)

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize("how", ["before", "plain", "chunked"])
def test_a_server_that_is_killed_in_a_timed_pass(tmp_path: Path, how: str) -> None:
    (tmp_path / "ask.txt").write_text("a\nb\n")
    with subprocess.Popen([sys.executable, "-c", SERVER, how], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        line = [sys.executable, "-m", "molprof", "attach", url, "--prompts", "ask.txt", "--max-new-tokens", "9"]
        done = subprocess.run(
            [*line, "--concurrency", "1", "--warmup", "0"], cwd=tmp_path, check=False, capture_output=True, text=True
        )
        server.kill()
    assert done.returncode == 3, done.stderr
    assert f"line 1: the server at {url} ended before its answer did" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
