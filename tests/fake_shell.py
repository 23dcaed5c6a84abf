"""A stand-in for trace_processor_shell, for tests of native trace processors."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

# Answers like trace_processor_shell, with the embedded engine behind it, in a process of its own.
_SHELL = '''\
    #!{python}
    """A stand-in for trace_processor_shell."""
    import sys
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from molprof.analysis.trace_processor.wasm import WasmTransport

    transport = WasmTransport(memory64=False)


    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, body):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in (body, b""):
                self.wfile.write(b"%x\\r\\n%b\\r\\n" % (len(chunk), chunk))

        def do_GET(self):
            self.answer(b"\\x12\\x04fake")

        def do_POST(self):
            if self.path != "/rpc":
                self.send_error(404)
                return
            self.answer(transport.exchange(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *arguments):
            pass


    HTTPServer(("localhost", int(sys.argv[sys.argv.index("--http-port") + 1])), Handler).serve_forever()
'''


def write(path: Path) -> str:
    """Makes an executable of it at `path`."""
    path.write_text(textwrap.dedent(_SHELL).replace("{python}", sys.executable))
    path.chmod(0o755)
    return str(path)
