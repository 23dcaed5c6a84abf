"""Windows of a production server stay within bounds, reach the history, and always leave the profiler off."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from goldens import called
from test_attach import Fake

from molprof.common.errors import RunError, UsageError
from molprof.profiler.attach.server import Server
from molprof.profiler.attach.windows import MOST_FAILURES, Sampled, Sampling, sample


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Fake]:
    (tmp_path / "served").mkdir()
    made = Fake(tmp_path / "served")
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def sampled(server: Fake, failing: int = 0, **bounds: object) -> tuple[Sampled, list[str], list[str]]:
    """Windows of a server that is away at calls from the second on, so many; what was taken, and said."""
    given = {"every_s": 0.4, "for_s": 0.9, "steps": 7, "most_s": 0.1, "most_bytes": 10**9, "source": server.folder}
    calls, taken, said = iter([False, *[True] * failing]), list[str](), list[str]()

    def connect() -> Server:
        if next(calls, False):
            raise RunError(f"no server answers at {server.url}")
        return Server(server.url, ())

    found = sample(connect, Sampling(**{**given, **bounds}), lambda path, _: taken.append(path.name), said.append)  # type: ignore[arg-type]
    assert not server.on
    return found, taken, said


def test_a_restart_in_between_is_a_window_without_a_trace(server: Fake) -> None:
    found, taken, said = sampled(server, failing=1)
    assert (found.failed, len(taken)) == (1, found.windows - 1)
    assert said[1] == f"window 2: no server answers at {server.url}"
    started = [body for path, body in server.asked if path == "/start_profile"]
    assert started == [{"max_iterations": 7}] * len(taken)
    assert list(server.folder.iterdir()) == []  # each was deleted


def test_bounds(server: Fake, tmp_path: Path) -> None:
    found, taken, _ = sampled(server, most_bytes=1)
    assert (found.windows, len(taken), found.ended) == (1, 1, "ended at the bound on disk space, 1 B")
    found, _, _ = sampled(server, failing=MOST_FAILURES, every_s=0.2, for_s=60)
    assert (found.windows, found.failed) == (1 + MOST_FAILURES, MOST_FAILURES)
    assert found.ended == f"given up after {MOST_FAILURES} windows in a row without a trace"
    with pytest.raises(UsageError, match="does not fit into"):
        Sampling(30, 60, 7, 30, 1, tmp_path)
    server.has_profiler = False
    found, _, said = sampled(server, for_s=0)
    assert (found.failed, f"window 1: {server.url} has no profiler" in said) == (1, True)


def test_the_command_fills_a_history_and_an_interrupt_leaves_no_profiler_on(server: Fake, tmp_path: Path) -> None:
    line = ["attach", server.url, "--trace-dir", "served", "--to", "history", "--every", "3s", "--most-seconds", "1"]
    code, _, said = called([*line, "--for", "1s"], tmp_path)
    assert code == 0, said
    (entry,) = (json.loads(path.read_text()) for path in (tmp_path / "history").iterdir())
    assert (entry["name"], entry["figures"]["kernels"]) == ("mine", 6)
    assert (entry["environment"]["vllm"], entry["environment"]["served model"]) == ("0.32.0", "mine")
    assert called([*line, "--prompts", "ask.txt"], tmp_path)[0] == 2
    assert called(["attach", server.url, "--every", "3s"], tmp_path)[0] == 2
    command = [sys.executable, "-m", "molprof", *line[:-2], "--most-seconds", "2"]
    server.asked.clear()
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not server.on:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
        assert (process.returncode, "Traceback" in rest) == (130, False)
    assert not server.on
