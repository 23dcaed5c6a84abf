"""Commands as processes that start at once: each is forked off a process that has imported all that they need.

`python -m molprof` spends most of its time on imports, and the tests start it hundreds of times. A fork is a process
like any other, with arguments, environment, folder, streams, signals and exit code of its own. Test processes that name
the same server share its imports: it forks a server for each of them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import hashlib
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

# What commands import when they are used. None of it may start a thread, which a fork would lack.
ANALYSIS = ("molprof.commands", "molprof.common", "molprof.queries", "molprof.analysis")
LIBRARIES = ("wasmtime", "jinja2", "matplotlib.figure")
CAPTURE = (*ANALYSIS, "molprof.profiler")
MODELS = (*LIBRARIES, "torch.profiler", "transformers", "rdkit.Chem")
# Half a second of imports, which one command needs; its tests start it by themselves.
LEFT_OUT = "molprof.commands.mcp_server"
# Libraries read these when they are imported, so a command that is given others cannot be forked.
READ_AT_IMPORT = ("PYTHON", "HF_", "OMP_", "MKL_", "TORCH", "LD_", "MPL", "LANG", "LC_", "HOME", "PATH", "XDG_", "TMP")


class ForkServer:
    """Runs `molprof ARGUMENTS`, one at a time; who asks first for a server of this name and environment starts it."""

    def __init__(
        self,
        name: str,
        packages: tuple[str, ...],
        libraries: tuple[str, ...],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._environment = _import_environment(environment)
        key = json.dumps([name, packages, libraries, sorted(self._environment.items())])
        # Of Linux's abstract names, which end with the process.
        self._address = f"\0molprof-{hashlib.sha256(key.encode()).hexdigest()}"
        self._lifeline: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        while (connection := self._connected()) is None:
            assert self._process is None or self._process.poll() is None, "the server ended"
            self._start([",".join(packages), ",".join(libraries)])
        self._socket = connection

    def _connected(self) -> socket.socket | None:
        """A connection to a server that has forked for it; None if there is none, or it has just ended."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._address)
            _exactly(connection, 1)
        except (ConnectionError, EOFError):
            connection.close()
            return None
        return connection

    def _start(self, arguments: list[str]) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(self._address)
            except OSError:  # another process has started it meanwhile
                return
            listener.listen()
            self._lifeline, other = socket.socketpair()
            with other:
                files = [listener.fileno(), other.fileno()]
                line = [sys.executable, __file__, *map(str, files), *arguments]
                # Not what a test adds to the environment: the server outlives the test that it is started in.
                kept = self._environment
                self._process = subprocess.Popen(line, pass_fds=files, stdin=subprocess.DEVNULL, env=kept)

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment would have imported the same."""
        return _import_environment(environment) == self._environment

    def run(
        self, arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        request = json.dumps([arguments, str(cwd), dict(environment)]).encode()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            head = len(request).to_bytes(8, "little")
            socket.send_fds(self._socket, [head], [out.fileno(), err.fileno()])
            self._socket.sendall(request)
            pid = self._number()
            self._socket.settimeout(timeout_s)
            try:
                code = self._number()
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._socket.settimeout(None)
                self._number()
                raise subprocess.TimeoutExpired(["molprof", *arguments], timeout_s, _text(out), _text(err)) from None
            self._socket.settimeout(None)
            return subprocess.CompletedProcess(["molprof", *arguments], code, _text(out), _text(err))

    def close(self) -> None:
        self._socket.close()
        if self._lifeline is not None and self._process is not None:
            self._lifeline.close()
            self._process.wait()

    def _number(self) -> int:
        return int.from_bytes(_exactly(self._socket, 8), "little", signed=True)


def _import_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT)}


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (part := connection.recv(count - len(data))):
            raise EOFError
        data += part
    return data


def _import_all(packages: list[str], libraries: list[str]) -> None:
    for library in libraries:
        importlib.import_module(library)
    for package in packages:
        top = importlib.import_module(package)
        for found in pkgutil.walk_packages(top.__path__, f"{package}."):
            if found.name != LEFT_OUT:
                with contextlib.suppress(ModuleNotFoundError):  # of an extra
                    importlib.import_module(found.name)


def _accept(listener: socket.socket, lifeline: socket.socket) -> socket.socket:
    """In the server: fork for each connection, until who started it ends. Returns, in the fork, the connection."""
    while True:
        ready, _, _ = select.select([listener, lifeline], [], [])
        if lifeline in ready:
            os._exit(0)
        connection = listener.accept()[0]
        if not os.fork():
            listener.close()
            lifeline.close()
            connection.sendall(b"+")
            return connection
        connection.close()


def _serve(connection: socket.socket) -> Iterator[list[str]]:
    """In the server: fork for each request. Yields once, in the fork, the arguments of its command."""
    while True:
        head, (out, err), _, _ = socket.recv_fds(connection, 8, 2)
        arguments, cwd, environment = json.loads(_exactly(connection, int.from_bytes(head, "little")))
        pid = os.fork()
        if not pid:
            connection.close()
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(cwd)
            yield arguments
            return
        os.close(out)
        os.close(err)
        connection.sendall(pid.to_bytes(8, "little", signed=True))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(code.to_bytes(8, "little", signed=True))


def main() -> None:
    listener, lifeline = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    del sys.path[0]  # the tests' folder
    gc.disable()  # to look for unused objects takes a fifth of the time of the imports
    _import_all(sys.argv[3].split(","), sys.argv[4].split(","))
    gc.freeze()  # the collector of a fork would write to all of it, and so copy it
    gc.enable()
    try:
        arguments = next(_serve(_accept(listener, lifeline)))
    except (ValueError, EOFError, ConnectionError, KeyboardInterrupt):
        os._exit(0)  # the tests have ended
    sys.path.insert(0, "")
    sys.argv[1:] = arguments
    code: object = 0
    try:
        runpy.run_module("molprof", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    # As Python ends, but without taking apart all that was imported.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    main()
