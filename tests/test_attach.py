"""`molprof attach` sends what it should, times it, and always leaves the server's profiler off."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from goldens import called

TEXT = ["[1", ", 2", "]"]


class Fake(ThreadingHTTPServer):
    """What vLLM answers on these paths; its profiler writes the tiny trace when it stops."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.asked, self.on = folder, [], False
        self.steps = 0  # that it is to record
        self.held: threading.Event | None = None  # while the profiler is on, answers wait for it
        self.has_profiler, self.models = True, [{"id": "mine"}]
        self.refuses = ""  # what it answers to requests
        self.breaks = False  # answers end before their usage
        self.drops: list[str] = []  # paths at which the connection breaks before the answer, once each

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Fake

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        known = {"/v1/models": {"data": self.server.models}, "/version": {"version": "0.32.0"}}
        self._send(200, json.dumps(known[self.path]))

    def do_OPTIONS(self) -> None:
        self._send(405 if self.server.has_profiler else 404, "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        self.server.asked.append((self.path, body))
        if self.path.endswith("_profile") and not self.server.has_profiler:
            self._send(404, "no such path")
        elif self.path in self.server.drops and (self.path != "/stop_profile" or self.server.on):
            self.server.drops.remove(self.path)
            self.server.on = True  # it starts, and does not stop
            self.close_connection = True
        elif self.path.endswith("_profile"):
            self.server.on = self.path == "/start_profile"
            self.server.steps = body.get("max_iterations", 0) if self.server.on else 0
            if not self.server.on:
                tiny_trace.write(self.server.folder / f"{len(self.server.asked)}.pt.trace.json.gz", _foreign())
            self._send(200, "")
        elif self.server.refuses:
            self._send(400, self.server.refuses)
        else:
            if self.server.steps > 2 and self.server.held is not None:
                self.server.held.wait(60)
                return
            events = [{"choices": [{"text": text, "finish_reason": None}]} for text in TEXT]
            events[-1]["choices"][0]["finish_reason"] = "stop"
            if not self.server.breaks:
                events.append({"choices": [], "usage": {"completion_tokens": 5}})
            self._send(200, "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def _foreign() -> dict[str, Any]:
    content = tiny_trace.document()
    del content["molprof"]
    return content


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Fake]:
    (tmp_path / "served").mkdir()
    (tmp_path / "ask.txt").write_text("a\nb\nc\n")
    made = Fake(tmp_path / "served")
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def words(server: Fake, *more: str) -> list[str]:
    asked = "--prompts ask.txt --regex [0-9]+ --max-new-tokens 9 --repeats 2 --concurrency 2"
    return ["attach", server.url, *asked.split(), *more]


def test_both_runs_are_timed_and_recorded(tmp_path: Path, server: Fake) -> None:
    line = words(server, "--steps", "7", "--trace-dir", "served", "--traces", "out", "--format", "json")
    code, out, err = called(line, tmp_path)
    assert code == 0, err
    data = json.loads(out)
    assert {name: len(run["passes"]) for name, run in data["runs"].items()} == {"plain": 2, "constrained": 2}
    for answer in data["runs"]["plain"]["passes"][0]["answers"]:
        moments = [answer["sent_ns"], *answer["pieces_ns"], answer["ended_ns"]]
        assert (len(moments), moments) == (5, sorted(moments))
        assert (answer["text"], answer["tokens"], answer["cut"]) == ("[1, 2]", 5, False)
        assert answer["problem"] == "another text than the regular expression"
    bodies = [body for path, body in server.asked if path == "/v1/completions"]
    assert sorted({body["prompt"] for body in bodies}) == ["a", "b", "c"]
    assert [body.get("structured_outputs") for body in bodies].count({"regex": "[0-9]+"}) == 13
    assert len(bodies) == 25  # one of them alone, recorded to estimate what a step takes
    started = [body for path, body in server.asked if path == "/start_profile"]
    assert started == [{"max_iterations": steps} for steps in (1, 2, 7, 7)]  # first a trial
    assert re.search(
        r"7 steps make about [\d.]+ kB of trace, without Python stacks, which the server keeps in memory", err
    )
    assert not server.on
    for name in ("plain", "constrained"):
        code, out, _ = called(["report", f"out/{name}.json.gz", "--format", "json"], tmp_path)
        assert code == 0
        report = json.loads(out)
        assert report["counts"]["kernels"] == 6
        assert report["served"]["values"] == data["figures"][name]
        assert {name: report["figures"][name] for name in data["figures"][name]} == data["figures"][name]
        assert (report["figures"]["cut_answers"], report["figures"]["valid_ratio"]) == (0, 0)
        assert report["figures"]["tokens_per_molecule"] == 5
        assert report["figures"]["generated_tokens"] is None  # of the recorded steps
    code, out, _ = called(["compare", "out/plain.json.gz", "out/constrained.json.gz"], tmp_path)
    assert code == 0
    assert "At the client, without the profiler, constrained against plain: a request (p50)" in " ".join(out.split())
    code, out, _ = called(["compare", "out/plain.json.gz", "out/constrained.json.gz", "--all"], tmp_path)
    assert "requests of plain, constrained took turns, compared round by round" in " ".join(out.split())
    assert "too few timed passes to tell differences in time from noise: 2, not 3" in " ".join(out.split())


def test_requests_at_a_rate(tmp_path: Path, server: Fake) -> None:
    """At random moments, alike in each pass; each counts from when it was due."""
    line = [*words(server)[:-2], "--rate", "50", "--format", "json"]
    code, out, err = called(line, tmp_path)
    assert code == 0, err
    runs = json.loads(out)["runs"]
    assert {(run["concurrency"], run["rate"]) for run in runs.values()} == {(None, 50)}
    sent = [[answer["sent_ns"] for answer in one["answers"]] for run in runs.values() for one in run["passes"]]
    assert sent == [sent[0]] * 4
    assert 0 < sent[0][0] < sent[0][1] < sent[0][2]
    assert all(one["wall_ns"] > sent[0][2] for run in runs.values() for one in run["passes"])


@pytest.mark.parametrize(
    ("drops", "code"), [(["/stop_profile"], 0), (["/start_profile"], 3), (["/start_profile", "/stop_profile"], 3)]
)
def test_a_connection_that_breaks_leaves_no_profiler_on(
    tmp_path: Path, server: Fake, drops: list[str], code: int
) -> None:
    server.drops = drops
    line = words(server, "--warmup", "0", "--trace-dir", "served", "--traces", "out")
    found, out, err = called(line, tmp_path)
    assert found == code, err
    if not code:
        assert "the server records no Python functions, which alone mark the filling of masks" in " ".join(out.split())
    assert not server.on
    assert server.drops == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_profiler_on(tmp_path: Path, server: Fake, number: signal.Signals) -> None:
    line = words(server, "--warmup", "0", "--trace-dir", "served", "--traces", "out")
    server.held = threading.Event()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and so would the command
    command = [sys.executable, "-m", "molprof", *line]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "recorded pass" not in process.stderr.readline():
            pass
        while process.poll() is None and not (server.steps > 2 and server.asked[-1][0] == "/v1/completions"):
            time.sleep(0.01)  # until a request of that pass has come
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(60) == 130
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert not server.on
    server.held.set()


def test_what_is_refused(tmp_path: Path, server: Fake) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "plain.json.gz").write_bytes(b"kept")
    for line, message in (
        (["attach", "http://example.org", *words(server)[2:]], "example.org is another machine"),
        (["attach", "ftp://127.0.0.1", *words(server)[2:]], "is no address of a server"),
        (["attach", server.url], "no prompts are given"),
        (
            ["attach", "http://127.0.0.1:99999", *words(server)[2:]],
            "'http://127.0.0.1:99999' is no address of a server",
        ),
        (words(server, "--rate", "nan"), "no requests are sent at a rate of nan"),
        (words(server, "--traces", "out"), "--trace-dir and --traces belong together"),
        (words(server, "--trace-dir", "ask.txt", "--traces", "out"), "ask.txt is no folder"),
        (words(server, "--trace-dir", "served", "--traces", "ask.txt"), "name another with --traces DIR"),
        (words(server, "--trace-dir", "served", "--traces", "old"), "plain.json.gz already exists"),
    ):
        code, _, err = called(line, tmp_path)
        assert (code, message in err) == (2, True), err
    assert server.asked == []
    (tmp_path / "none.txt").write_text("")
    server.refuses = '{"error": {"message": "no such\\ngrammar", "code": 400}}'
    (tmp_path / "g.ebnf").write_text('root ::= "a"')
    asked = ["--prompts", "ask.txt", "--max-new-tokens", "9"]
    for line, message in (
        (["attach", server.url, *asked, "--prompts", "none.txt"], "none.txt has no prompts"),
        (["attach", server.url, *asked, "--grammar-file", "g.ebnf"], "/v1/completions: 400 no such grammar"),
    ):
        code, _, err = called(line, tmp_path)
        assert (code, message in err) == (2 if "none" in message else 3, True), err
    server.refuses, server.breaks = "", True
    code, _, err = called(words(server), tmp_path)
    assert (code, ": the answer ended before the server told how many tokens it has" in err) == (3, True), err
    server.breaks, server.models = False, []
    code, _, err = called(words(server), tmp_path)
    assert (code, f"{server.url} serves no model" in err) == (3, True), err
    server.models = [{"id": "mine"}]
    server.has_profiler = False
    code, _, err = called(words(server, "--trace-dir", "served", "--traces", "out"), tmp_path)
    assert code == 3
    assert f"{server.url} has no profiler" in err
    assert "--profiler-config" in err


def test_a_machine_without_openai_sends_nothing(server: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    (tmp_path / "ask.txt").write_text("a\n")
    line = ["attach", server.url, "--prompts", "ask.txt", "--regex", "a", "--max-new-tokens", "4"]
    code, _, said = called(line, tmp_path)
    assert (code, "pip install 'openai>=3'" in said) == (2, True), said
