"""`molprof attach --requests` sends requests unchanged, finds their constraints, and reports answers and failures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from goldens import called

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
ASKED = [{"role": "user", "content": "Weather?"}]
HISTORY = [
    *ASKED,
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "user", "content": [{"type": "text"}]},
]
REQUESTS: list[dict[str, Any]] = [
    {"messages": ASKED, "tools": [TOOL], "tool_choice": "required", "top_k": 3},
    {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": {
        "messages": HISTORY, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    }},
    {"prompt": "x", "structured_outputs": {"regex": "[0-9]+"}, "guided_decoding_backend": "xgrammar"},
    {"prompt": "x", "max_tokens": 3},
]  # fmt: skip


def call(arguments: str, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments, **({} if name is None else {"name": name})}
    return {"tool_calls": [{"index": 0, "function": function}]}


THOUGHT = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"reasoning_content": "so"}]
CALLED = [*THOUGHT, call("", "get_weather"), call('{"city": '), call('"Rome"}')]


class Fake(ThreadingHTTPServer):
    """What a server answers: the deltas of chats, by whether the request is constrained."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[str | None] = []
        self.called: list[dict[str, Any]] = CALLED
        self.version: dict[str, Any] | None = {"version": "0.32.0"}
        self.api: dict[str, Any] | None = None
        self.prefix, self.key, self.profiler = "", "", "works"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{self.prefix}"


class Handler(BaseHTTPRequestHandler):
    server: Fake

    def log_message(self, *args: Any) -> None:
        pass

    def do_OPTIONS(self) -> None:
        self.send(404 if self.server.profiler == "none" else 405, "")

    def do_GET(self) -> None:
        models = {"data": [{"id": "first"}, {"id": "second"}]}
        known = {"/v1/models": models, "/version": self.server.version, "/openapi.json": self.server.api}
        found = known.get(self.path.removeprefix(self.server.prefix))
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self.send(401, '{"error": {"message": "Unauthorized"}}')
        elif found is None or not self.path.startswith(self.server.prefix):
            self.send(404, "")
        else:
            self.send(200, json.dumps(found))

    def do_POST(self) -> None:
        server, path = self.server, self.path.removeprefix(self.server.prefix)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        server.asked.append((path, body))
        server.headers.append(self.headers["Authorization"])
        if path.endswith("_profile"):
            if server.profiler == "busy" or (server.profiler == "once" and len(body) and body["max_iterations"] > 1):
                self.send(409, '{"error": {"message": "in use"}}')
                return
            if path == "/stop_profile" and server.profiler != "elsewhere":
                content = tiny_trace.document()
                del content["molprof"]
                server.folder.mkdir(exist_ok=True)
                tiny_trace.write(server.folder / f"{len(server.asked)}.pt.trace.json.gz", content)
            self.send(200, "")
            return
        deltas: list[dict[str, Any]] = [{"content": '{"city": "Rome"}'}]
        if body.get("tool_choice") == "required":
            deltas = server.called
        field = "delta" if "messages" in body else "text"
        choices = [{"delta": delta} if field == "delta" else {"text": "12"} for delta in deltas]
        events = [{"choices": [{**choice, "finish_reason": None}]} for choice in choices]
        events.append({"choices": [], "usage": {"completion_tokens": 9}})
        self.send(200, "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")

    def send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Fake]:
    (tmp_path / "ask.jsonl").write_text("\n".join(map(json.dumps, REQUESTS)))
    (tmp_path / "ask.txt").write_text("a\nb\n")
    made = Fake(tmp_path / "served")
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def attached(tmp_path: Path, server: Fake, *more: str, code: int = 0) -> tuple[dict[str, Any], str]:
    """The JSON and what is told."""
    line = ["attach", server.url, "--requests", "ask.jsonl", "--repeats", "1", "--warmup", "0", "--format", "json"]
    found, out, err = called([*line, *more], tmp_path)
    assert found == code, err
    return json.loads(out) if out else {}, err


def answers(data: dict[str, Any], name: str = "constrained") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = data["runs"][name]["passes"][0]["answers"]
    return found


def test_requests_go_as_they_are_and_plain_without_what_constrains(tmp_path: Path, server: Fake) -> None:
    attached(tmp_path, server, "--max-new-tokens", "7", "--body", '{"temperature": 0.5}')
    bodies = [body for path, body in server.asked if path == "/v1/chat/completions" and "tools" in body]
    assert sorted(body["tool_choice"] for body in bodies) == ["none", "required"]
    assert {(body["top_k"], body["max_tokens"], body["temperature"], body["model"]) for body in bodies} == {
        (3, 7, 0.5, "first")
    }
    batch = [body for path, body in server.asked if body.get("messages") == HISTORY]
    assert [body.get("response_format", {}).get("type") for body in batch].count("json_schema") == 1
    texts = [body for path, body in server.asked if path == "/v1/completions"]
    assert sorted(body["max_tokens"] for body in texts) == [3, 3, 7, 7]
    assert sum("structured_outputs" in body for body in texts) == 1
    assert sum("guided_decoding_backend" in body for body in texts) == 1
    assert all(body["stream_options"] == {"include_usage": True} for path, body in server.asked)


def test_pieces_are_told_apart(tmp_path: Path, server: Fake) -> None:
    data, _ = attached(tmp_path, server, "--concurrency", "1")
    first, second, third, fourth = answers(data)
    assert (first["kinds"], first["inside"], first["calls"]) == ("rrtaa", "ta", ['get_weather({"city": "Rome"})'])
    assert [one["valid"] for one in (first, second, third, fourth)] == [True, True, True, None]
    figures = data["figures"]["constrained"]
    assert (figures["reasoning_tokens"], figures["argument_tokens"], figures["called_ratio"]) == (0.5, 0.5, 0.25)
    assert figures["unseen_tokens"] == (4 + 1 + 8 + 8 + 8) / 4  # 9 tokens each, of 5, 1, 1 and 1 pieces; one is a name
    assert first["pieces_ns"] == sorted(first["pieces_ns"])
    assert len(first["pieces_ns"]) == len(first["kinds"])
    plain = answers(data, "plain")[0]
    assert (plain["valid"], plain["problem"]) == (False, "no tool was called")


@pytest.mark.parametrize(
    ("deltas", "problem"),
    [
        ([{"content": "no"}], "no tool was called"),
        ([call('{"city": 3}', "get_weather")], "a broken call: arguments of get_weather: not of the schema: $.city: "),
        ([call('{"city"', "get_weather")], "a broken call: arguments of get_weather: not JSON: "),
        ([call("{}", "get_time")], "a broken call: 'get_time' is no tool of the request"),
    ],
)
def test_a_tool_that_is_not_called_is_no_broken_call(
    tmp_path: Path, server: Fake, deltas: list[dict[str, Any]], problem: str
) -> None:
    server.called = deltas
    data, _ = attached(tmp_path, server)
    found = answers(data)[0]
    assert found["valid"] is False
    assert found["problem"].startswith(problem)


def test_fields_that_the_server_does_not_know_are_told(tmp_path: Path, server: Fake) -> None:
    known = {"properties": dict.fromkeys(("messages", "prompt", "tools", "tool_choice", "response_format", "top_k",
                                          "max_tokens"))}  # fmt: skip
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Asked"}}}}
    paths = {path: {"post": {"requestBody": body}} for path in ("/v1/chat/completions", "/v1/completions")}
    server.api = {"paths": paths, "components": {"schemas": {"Asked": known}}}
    _, out, _ = called(["attach", server.url, "--requests", "ask.jsonl", "--repeats", "1", "--warmup", "0"], tmp_path)
    text = "the server's API has no structured_outputs, guided_decoding_backend: it may ignore them"
    assert text in " ".join(out.split())


def test_another_plain_side(tmp_path: Path, server: Fake) -> None:
    others = [{"messages": ASKED, "seed": 5}, *({"messages": ASKED}, {"prompt": "y"}, {"prompt": "y"})]
    (tmp_path / "other.jsonl").write_text("\n".join(map(json.dumps, others)))
    data, _ = attached(tmp_path, server, "--against", "other.jsonl")
    assert sorted(data["runs"]) == ["constrained", "plain"]
    assert sum(body.get("seed") == 5 for _, body in server.asked) == 1
    (tmp_path / "other.jsonl").write_text('{"prompt": "y"}')
    _, err = attached(tmp_path, server, "--against", "other.jsonl", code=2)
    assert "other.jsonl has 1 requests, ask.jsonl has 4" in err


def test_the_key_the_path_and_the_model(tmp_path: Path, server: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    server.prefix, server.key = "/behind/a/proxy", "secret-42"
    _, err = attached(tmp_path, server, code=3)
    assert "401 Unauthorized" in err
    assert "--api-key" in err
    _, err = attached(tmp_path, server, "--api-key", code=2)
    assert "the environment variable OPENAI_API_KEY has no key" in err
    monkeypatch.setenv("OPENAI_API_KEY", "secret-42")
    data, err = attached(tmp_path, server, "--api-key", "--model", "second")
    assert "secret-42" not in json.dumps(data) + err
    assert set(server.headers) == {"Bearer secret-42"}
    assert {body["model"] for _, body in server.asked} == {"second"}
    monkeypatch.setenv("MINE", "secret-42")
    _, err = attached(tmp_path, server, "--api-key", "MINE", "--model", "third", code=2)
    assert "has no model 'third'" in err
    assert "it has first, second" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "ask.jsonl, line 1: "),
        ("[]", "line 1 has not one of messages and prompt"),
        ('{"messages": [], "prompt": "x"}', "line 1 has not one of messages and prompt"),
        ('{"prompt": "x", "n": 2}', "line 1 asks for several answers"),
        ('{"prompt": "x", "model": "gpt"}', "has no model 'gpt'"),
        ('{"url": "/v1/embeddings", "body": {"prompt": "x"}}', "with the url '/v1/embeddings'"),
        ('{"method": "GET", "url": "/v1/completions", "body": {"prompt": "x"}}', "the method is 'GET'"),
        ("", "ask.jsonl has no requests"),
    ],
)
def test_what_is_no_request(tmp_path: Path, server: Fake, line: str, message: str) -> None:
    (tmp_path / "ask.jsonl").write_text(line)
    _, err = attached(tmp_path, server, code=2)
    assert message in err
    assert server.asked == []


def test_keys_of_json_lines_that_mean_nothing_are_refused(tmp_path: Path, server: Fake) -> None:
    line = ["attach", server.url, "--prompts", "in.jsonl", "--max-new-tokens", "3"]
    for key in ("tools", "shema", "response_format", "structured_outputs", "regexp", "choice"):
        (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": "x", key: {}}))
        code, _, err = called(line, tmp_path)
        assert (code, f"line 1 has '{key}', which is not read" in err, "--requests" in err) == (2, True, True), err
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a", "name": "b"}]}))
    code, _, err = called(line, tmp_path)
    assert (code, "line 1 has a message with 'name', which is not read" in err) == (2, True), err
    assert server.asked == []
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": "x", "id": 3, "source": "mine"}))
    code, _, err = called([*line, "--repeats", "1"], tmp_path)
    assert code == 0, err


RECORDED = ("--trace-dir", "served", "--traces", "out")


@pytest.mark.parametrize(
    ("profiler", "message", "hint"),
    [
        ("none", "has no profiler", "--profiler-config"),
        ("busy", "the server does not record", "/stop_profile"),
        ("elsewhere", "the server wrote no trace into served", "torch_profiler_dir"),
    ],
)
def test_what_cannot_be_recorded_is_said_before_the_passes(
    tmp_path: Path, server: Fake, profiler: str, message: str, hint: str
) -> None:
    server.profiler = profiler
    _, err = attached(tmp_path, server, *RECORDED, code=3)
    assert message in err
    assert hint in err
    assert not [path for path, _ in server.asked if path.startswith("/v1")]


def test_the_passes_are_kept_where_the_recording_fails(tmp_path: Path, server: Fake) -> None:
    server.profiler = "once"
    data, err = attached(tmp_path, server, *RECORDED, code=3)
    assert "the server does not record" in err
    assert data["figures"]["constrained"]["valid_ratio"] == 1
    assert data["traces"] == []


def test_steps_are_skipped_and_the_folder_is_the_servers(tmp_path: Path, server: Fake) -> None:
    assert not server.folder.exists()
    data, _ = attached(tmp_path, server, *RECORDED, "--skip-steps", "20", "--steps", "9")
    started = [body for path, body in server.asked if path == "/start_profile"]
    assert started[2:] == [{"max_iterations": 9, "delay_iterations": 20}] * 2  # a trial and a sample come first
    assert data["traces"] == ["out/plain.json.gz", "out/constrained.json.gz"]


def test_another_server_of_the_api_is_timed_and_not_recorded(tmp_path: Path, server: Fake) -> None:
    server.version = None
    data, _ = attached(tmp_path, server)
    assert data["runs"]["plain"]["server"] == "openai"
    _, err = attached(tmp_path, server, *RECORDED, code=2)
    assert "is neither vLLM nor SGLang: it cannot record" in err


def test_invalid_answers_of_a_constraint_are_a_warning(tmp_path: Path, server: Fake) -> None:
    server.called = [{"content": "no"}]
    attached(tmp_path, server, *RECORDED)
    line = ["attach", server.url, "--requests", "ask.jsonl", "--repeats", "1"]
    _, out, _ = called(line, tmp_path)
    text = "constrained: 1 of 3 answers that no token limit ended are not valid: line 1: no tool was called"
    assert text in " ".join(out.split())
    code, out, _ = called(["report", "out/constrained.json.gz", "--format", "json"], tmp_path)
    assert code == 0
    (found,) = (one for one in json.loads(out)["findings"] if one["id"] == "invalid_answers")
    assert found["evidence"] == "1 of 3 answers that no token limit ended: line 1: no tool was called"
    code, out, _ = called(["report", "out/constrained.json.gz", "--all"], tmp_path)
    assert "share of valid answers 66.7 %" in " ".join(out.split())
    code, out, _ = called(["report", "out/plain.json.gz", "--format", "json"], tmp_path)
    assert not [one for one in json.loads(out)["findings"] if one["id"] == "invalid_answers"]
