"""A running vLLM or SGLang server: its requests with and without their constraint, timed here, then recorded there."""

from __future__ import annotations

import gzip
import http.client
import json
import math
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import to_builtins
from msgspec.structs import replace

from molprof.common.attached import KEY, Answer, Attached, Pass
from molprof.common.errors import RunError, UsageError
from molprof.common.files import scratch_file
from molprof.common.process import interrupts_held
from molprof.common.settings import VLLM, CaptureSettings
from molprof.common.text import shortened
from molprof.profiler.capture.answers import checks_of, problem_of
from molprof.profiler.constraints import whole_of
from molprof.profiler.molecules.prompts import Prompt, Whole, read_inputs
from molprof.profiler.recording.tracefile import OutputFile, read_exported, write_trace

PLAIN, CONSTRAINED = "plain", "constrained"
LOCAL = ("127.0.0.1", "localhost", "::1")
_SGLANG = "sglang"
_ANSWER_S, _TRACE_S, _POLL_S = 600, 300, 0.2
_MOST_TEXT = 300
_NO_PROFILER = """start vLLM with --profiler-config '{"profiler": "torch", "torch_profiler_dir": "DIR"}'"""


@dataclass(frozen=True)
class Load:
    """How requests are sent: so many at a time (None: no bound), so many per s (None: the next as one ends)."""

    concurrency: int | None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise UsageError(f"no requests are sent at a rate of {self.rate:g}", hint="--rate takes a number above 0")

    def due_ns(self, count: int, seed: int) -> list[int]:
        """When requests are due, ns: at random (a Poisson process), alike in each pass; all at once without a rate."""
        if self.rate is None:
            return [0] * count
        gaps = random.Random(seed)
        return [round(1e9 * moment) for moment in accumulate(gaps.expovariate(self.rate) for _ in range(count))]


@dataclass(frozen=True)
class Found:
    """The runs by name, `plain` and `constrained`; their recordings; and remarks, one line each."""

    runs: dict[str, Attached]
    traces: list[Path]
    notes: list[str]


class _RefusedError(RunError):
    """The server answered with an error."""


class Server:
    """A server of vLLM or SGLang.

    Args:
        hosts: names of machines that may be asked.

    Raises:
        UsageError: the URL is none, or of another machine.
        RunError: nothing answers there.
    """

    def __init__(self, url: str, hosts: Sequence[str]) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"//{url}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:  # of a port or a name
            name = ""
        if not name or parts.scheme not in ("", "http"):
            raise UsageError(f"{url!r} is no address of a server", hint="such as http://127.0.0.1:8000")
        if name not in (*LOCAL, *hosts):
            raise UsageError(f"{name} is another machine", hint=f"--host {name}, if it is yours")
        self.address, self.url = (name, port), f"http://{f'[{name}]' if ':' in name else name}:{port}"
        models = self.ask("GET", "/v1/models")
        try:
            self.model = str(json.loads(models)["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as problem:
            raise RunError(
                f"{self.url} serves no model as vLLM and SGLang do", hint="is it the right port?"
            ) from problem
        try:
            self.kind, self.version = VLLM, str(json.loads(self.ask("GET", "/version"))["version"])
        except (RunError, KeyError, ValueError):
            self.kind, self.version = _SGLANG, ""
            self.ask("GET", "/get_model_info")

    def ask(self, method: str, path: str, body: object = None, limit_s: float = 60) -> bytes:
        """What the server answers. Raises RunError, also where it refuses."""
        with closing(self._sent(method, path, body, limit_s)) as connection:
            try:
                return self._answered(connection, path).read()
            except (OSError, http.client.HTTPException) as problem:
                raise RunError(f"{self.url}{path}: {problem or type(problem).__name__}") from problem

    def stream(self, path: str, body: object) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer."""
        with closing(self._sent("POST", path, body, _ANSWER_S)) as connection:
            for line in self._answered(connection, path):
                if line.startswith(b"data: ") and b"[DONE]" not in line:
                    yield json.loads(line[6:])

    def _sent(self, method: str, path: str, body: object, limit_s: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(*self.address, timeout=limit_s)
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"})
        except OSError as problem:
            raise RunError(f"no server answers at {self.url}: {problem}", hint="is it ready?") from problem
        return connection

    def _answered(self, connection: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
        try:
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as problem:
            raise RunError(f"{self.url}{path}: {problem or type(problem).__name__}") from problem
        if answer.status >= 400:
            raise _RefusedError(f"{self.url}{path}: {answer.status} {_reason(answer.read()) or answer.reason}")
        return answer


class _Client:
    """Sends the requests of a pass."""

    def __init__(self, server: Server, settings: CaptureSettings, load: Load) -> None:
        self._server, self._settings, self._load = server, settings, load
        self.prompts = read_inputs(settings).prompts
        self.common = whole_of(settings)
        asked = {prompt.constraint for prompt in self.prompts}
        self._checks = {constraint: checks_of(settings, constraint) for constraint in asked}

    @property
    def constrains(self) -> bool:
        return self.common is not None or any(prompt.constraint is not None for prompt in self.prompts)

    def run(self, constrained: bool, stop: Callable[[], object] = lambda: False) -> Pass:
        """One pass; `stop` is asked whether to give up. Raises RunError."""
        left = iter(zip(self.prompts, self._load.due_ns(len(self.prompts), self._settings.seed), strict=True))
        answers: list[Answer] = []
        problems: list[Exception] = []
        began = time.perf_counter_ns()

        def work() -> None:
            try:
                while not problems and (asked := next(left, None)) is not None:
                    prompt, due_ns = asked
                    time.sleep(max(0, began + due_ns - time.perf_counter_ns()) / 1e9)
                    answers.append(self._answer(prompt, constrained, began))
                    if self._load.rate is not None:  # what it waits for its turn counts
                        answers[-1] = replace(answers[-1], sent_ns=due_ns)
            except Exception as problem:  # told in the thread that waits
                problems.append(problem)

        most = min(self._load.concurrency or len(self.prompts), len(self.prompts))
        threads = [threading.Thread(target=work, daemon=True) for _ in range(most)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            if stop():
                problems.append(RunError("interrupted"))
                break
            next(thread for thread in threads if thread.is_alive() or thread is threads[-1]).join(_POLL_S)
        if problems:
            problem = problems[0]
            raise problem if isinstance(problem, RunError) else RunError(f"a request failed: {problem}") from problem
        return Pass(time.perf_counter_ns() - began, sorted(answers, key=lambda answer: answer.line))

    def _answer(self, prompt: Prompt, constrained: bool, began: int) -> Answer:
        body: dict[str, Any] = {"model": self._server.model, "max_tokens": self._settings.max_new_tokens}
        body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        if constrained and (asked := prompt.constraint or self.common) is not None:
            body |= _fields(asked, self._server.kind)
        if prompt.messages:
            path = "/v1/chat/completions"
            body["messages"] = [{"role": item.role, "content": item.content} for item in prompt.messages]
        else:
            path, body["prompt"] = "/v1/completions", prompt.text
        sent_ns, pieces_ns, text, reason, tokens = time.perf_counter_ns(), list[int](), "", "", None
        for event in self._server.stream(path, body):
            if "error" in event:
                raise RunError(f"line {prompt.line}: {_reason(json.dumps(event))}")
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            for choice in event["choices"]:
                if "role" not in choice.get("delta", {}):  # which stands before the first token
                    pieces_ns.append(time.perf_counter_ns() - began)
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                reason = choice.get("finish_reason") or reason
        ended_ns = time.perf_counter_ns()
        if tokens is None:
            raise RunError(f"line {prompt.line}: the answer ended before the server told how many tokens it has")
        checks, cut = self._checks[prompt.constraint], reason == "length"
        problem = problem_of(checks, text, prompt.text, cut)
        valid = problem is None if checks else None
        return Answer(prompt.line, sent_ns - began, pieces_ns, ended_ns - began, tokens, text, cut, valid, problem)


def _reason(answer: str | bytes) -> str:
    """What an answer says went wrong, in one line."""
    text = answer if isinstance(answer, str) else answer.decode(errors="replace")
    try:
        text = str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        text = "" if text.lstrip().startswith("<") else text  # a page
    return shortened(" ".join(text.split()), _MOST_TEXT)


def _fields(asked: Whole, kind: str) -> dict[str, Any]:
    """What a request says of its constraint."""
    if kind == VLLM:
        name = {"schema": "json", "choices": "choice"}.get(asked.kind, asked.kind)
        value: Any = json.loads(asked.text) if asked.kind == "schema" else asked.text
        if asked.kind == "choices":
            value = asked.text.split(",")
        return {"structured_outputs": {name: value}}
    if asked.kind == "choices":
        return {"ebnf": asked.grammar("ebnf")}
    return {{"schema": "json_schema", "grammar": "ebnf"}.get(asked.kind, asked.kind): asked.text}


@dataclass(frozen=True)
class Recording:
    """What the server is to record: so many steps of each run, into its folder, from which molprof takes the trace."""

    steps: int
    source: Path
    folder: Path
    command: tuple[str, ...] = ()
    force: bool = False


def attach(
    server: Server,
    settings: CaptureSettings,
    load: Load,
    recording: Recording | None,
    told: Callable[[str], None] = lambda line: None,
) -> Found:
    """Passes with and without the constraints, in turn, then a recording of each. The profiler is off afterwards.

    Raises UsageError and RunError; an interrupt is raised when the profiler is off.
    """
    client = _Client(server, settings, load)
    names = [PLAIN, CONSTRAINED] if client.constrains else [PLAIN]
    outputs: dict[str, OutputFile] = {}
    if recording is not None:
        place = recording.folder
        outputs = {name: OutputFile(place / f"{name}.json.gz", recording.force, recording.command) for name in names}
    for output in outputs.values():
        output.check()
    passes: dict[str, list[Pass]] = {name: [] for name in names}
    order = random.Random(settings.seed)
    for name in names:
        for _ in range(settings.warmup):
            client.run(name == CONSTRAINED)
            told(f"{name}: warm-up")
    for number in range(settings.repeats):
        for name in order.sample(names, len(names)):
            passes[name].append(client.run(name == CONSTRAINED))
            told(f"{name}: timed pass {number + 1}/{settings.repeats}: {passes[name][-1].wall_ns / 1e9:.3g} s")
    known = {"server": server.kind, "version": server.version, "model": server.model, "session": uuid.uuid4().hex}
    command = [] if recording is None else list(recording.command)
    runs = {
        name: Attached(**known, run=name, concurrency=load.concurrency, rate=load.rate, passes=made, command=command)
        for name, made in passes.items()
    }
    traces: list[Path] = []
    notes: list[str] = []
    for name in names:
        if recording is None:
            break
        told(f"{name}: recorded pass")
        found = _recorded(client, server, recording, name == CONSTRAINED, told)
        traces.append(_written(max(found, key=lambda path: path.stat().st_size), outputs[name], runs[name]))
        if len(found) > 1:
            notes.append(f"{name}: the server wrote {len(found)} traces into {recording.source}; the largest was taken")
    return Found(runs, traces, notes)


def _recorded(
    client: _Client, server: Server, recording: Recording, constrained: bool, told: Callable[[str], None]
) -> list[Path]:
    """The traces that the server wrote of a pass."""
    before = _traces(recording.source)
    begin: dict[str, Any] = {"max_iterations": recording.steps}
    if server.kind == _SGLANG:
        begin = {"num_steps": recording.steps, "output_dir": str(recording.source), "with_stack": True}
    # Held until the profiler is off, so that no interrupt can leave it on.
    with interrupts_held() as noted:
        refused = False
        try:
            try:
                server.ask("POST", "/start_profile", begin)
            except _RefusedError as problem:  # it may run for somebody else
                refused = True
                raise RunError(f"the server does not record: {problem}", hint=_NO_PROFILER) from problem
            client.run(constrained, lambda: noted)
        finally:
            if noted:
                told("interrupted: waiting until the server has stopped its profiler")
            if not refused:
                server.ask("POST", "/stop_profile", limit_s=_TRACE_S)
    ends = time.monotonic() + _TRACE_S
    while time.monotonic() < ends:
        found = {path: size for path, size in _traces(recording.source).items() if before.get(path) != size}
        time.sleep(_POLL_S)
        if found and found == {path: size for path, size in _traces(recording.source).items() if path in found}:
            return list(found)
    raise RunError(f"the server wrote no trace into {recording.source}", hint="is it the server's torch_profiler_dir?")


def _traces(folder: Path) -> dict[Path, int]:
    """Sizes of traces by path, without those of vLLM's frontend, which runs no model."""
    paths = [path for pattern in ("*.json", "*.json.gz") for path in folder.rglob(pattern)]
    return {path: path.stat().st_size for path in paths if "async_llm" not in path.name}


def _written(source: Path, output: OutputFile, account: Attached) -> Path:
    with scratch_file(output.path) as part:
        raw = output.raw(part)
        with gzip.open(source) if source.suffix == ".gz" else source.open("rb") as file, raw.open("wb") as out:
            shutil.copyfileobj(file, out)
        return write_trace(read_exported(raw, output), output, (), {KEY: to_builtins(account)})
