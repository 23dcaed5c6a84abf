"""Attach: requests to a running vLLM or SGLang server with and without their constraint, timed, then recorded."""

from __future__ import annotations

import dataclasses
import gzip
import math
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import to_builtins
from msgspec.structs import replace

from molprof.common.attached import KEY, Answer, Attached, Pass
from molprof.common.engine_settings import VLLM
from molprof.common.errors import RunError, UsageError
from molprof.common.process import interrupts_held
from molprof.common.settings import CaptureSettings
from molprof.common.values import bytes_text
from molprof.profiler.attach.replay import DEFAULT_MATCHING, Matching, masks_of, tokenizer_of
from molprof.profiler.attach.requests import ARGUMENTS, CALL, CONTENT, REASONING, Request, Requests
from molprof.profiler.attach.server import SGLANG, RefusedError, Server
from molprof.profiler.recording.tracefile import OutputFile, read_exported, write_trace

PLAIN, CONSTRAINED = "plain", "constrained"
_TRACE_S, _POLL_S = 300, 0.2
# What a step takes is known from so many; a recording of more than so many bytes is warned of.
_SAMPLE_STEPS, _MOST_BYTES, _BLOCK_BYTES = 2, 10**9, 1 << 20
# A trial's trace is there when the profiler has stopped; folders of another machine are seen late.
_TRIAL_S, _REMOTE_S, _SAY_S = 5, 60, 10
NO_PROFILER = """start vLLM with --profiler-config '{"profiler": "torch", "torch_profiler_dir": "DIR"}'"""


NO_STACKS = (
    "the server records no Python functions, which alone mark the filling of masks:"
    ' "torch_profiler_with_stack": true in its --profiler-config'
)
NO_SCHEDULER = (
    "the server's scheduler, which fills masks, is another process and in no trace: start the server with"
    " VLLM_ENABLE_V1_MULTIPROCESSING=0 (one worker), or by molprof run --processes --stacks --after signal --for 3s"
    " -o all.json.gz vllm serve MODEL, or join samples of the process: molprof join --help"
)


@dataclass(frozen=True)
class Load:
    """How to send requests: at most so many at once (None: no bound), so many per s (None: the next as one ends)."""

    concurrency: int | None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise UsageError(f"no requests are sent at a rate of {self.rate:g}", hint="--rate takes a number above 0")

    def due_ns(self, count: int, seed: int) -> list[int]:
        """Return when to send requests, ns: at random (a Poisson process), equally in each pass; or all at once."""
        if self.rate is None:
            return [0] * count
        gaps = random.Random(seed)
        return [round(1e9 * moment) for moment in accumulate(gaps.expovariate(self.rate) for _ in range(count))]


@dataclass(frozen=True)
class AttachResult:
    """The runs by name, `plain` and `constrained`; their recordings; and remarks, one line each."""

    runs: dict[str, Attached]
    traces: list[Path]
    notes: list[str]
    problem: RunError | None = None  # why there are fewer traces than runs


class _Client:
    """Sends the requests of a pass."""

    def __init__(self, server: Server, settings: CaptureSettings, load: Load, requests: Requests) -> None:
        self._server, self._settings, self._load, self._requests = server, settings, load, requests.requests
        _ = server.client  # or the threads would make one each

    def run(
        self,
        constrained: bool,
        stop: Callable[[], object] = lambda: False,
        with_ids: bool = False,
        first: int | None = None,
    ) -> Pass:
        """One pass, or its first requests; `stop` is asked whether to give up. with_ids: ask vLLM for tokens.

        Raises RunError.
        """
        requests = self._requests[:first]
        count = len(requests)
        left = iter(zip(requests, self._load.due_ns(count, self._settings.seed), strict=True))
        answers: list[Answer] = []
        problems: list[Exception] = []
        began = time.perf_counter_ns()

        def work() -> None:
            try:
                while not problems and (due_request := next(left, None)) is not None:
                    request, due_ns = due_request
                    time.sleep(max(0, began + due_ns - time.perf_counter_ns()) / 1e9)
                    answers.append(self._answer(request, constrained, began, with_ids))
                    if self._load.rate is not None:  # what it waits for its turn counts
                        answers[-1] = replace(answers[-1], sent_ns=due_ns)
            except Exception as problem:  # told in the thread that waits
                problems.append(problem)

        most = min(self._load.concurrency or count, count)
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

    def _answer(self, request: Request, constrained: bool, began: int, with_ids: bool) -> Answer:
        fields = request.body(constrained)
        body = {"model": self._server.model, **fields, "stream": True, "stream_options": {"include_usage": True}}
        if with_ids and self._server.kind == VLLM:
            body["return_token_ids"] = True
        sent_ns, answer = time.perf_counter_ns(), _Streamed()
        try:
            for event in self._server.stream(request.path, body):
                answer.take(event, time.perf_counter_ns() - began)
            ended_ns = time.perf_counter_ns()
            if answer.tokens is None:
                raise RunError(f"line {request.line}: the answer ended before the server told how many tokens it has")
        except RunError as failed:
            if isinstance(failed, RefusedError):
                raise RefusedError(f"line {request.line}: {failed}", failed.status, failed.hint) from failed
            if self._server.is_there():
                raise
            text = f"line {request.line}: the server at {self._server.url} ended before its answer did"
            raise RunError(text) from failed
        calls, cut, judge = answer.calls(), answer.reason == "length", request.judge
        valid, problem = judge.problem(answer.text, calls, request.prompt, cut)
        return Answer(
            request.line, sent_ns - began, answer.pieces_ns, ended_ns - began, answer.tokens, answer.text, cut, valid,
            problem, kinds="".join(answer.kinds), inside=request.inside,
            calls=[f"{name}({text})" for name, text in calls], reasoning_tokens=answer.reasoning_tokens,
            token_ids=answer.token_ids, reasoned=answer.reasoned,
        )  # fmt: skip


class _Streamed:
    """A streamed answer, collected piece by piece."""

    def __init__(self) -> None:
        self.pieces_ns: list[int] = []
        self.kinds: list[str] = []
        self.text, self.reason = "", ""
        self.tokens: int | None = None
        self.reasoning_tokens: int | None = None  # as the server counts
        self.token_ids: list[int] | None = None
        self.reasoned = 0  # of these, those up to the last one of reasoning
        self._calls: dict[int, list[str]] = {}  # name and arguments so far, by number

    def take(self, event: dict[str, Any], at_ns: int) -> None:
        usage = event.get("usage") or {}
        self.tokens = usage.get("completion_tokens", self.tokens)
        details = usage.get("completion_tokens_details") or {}
        self.reasoning_tokens = details.get("reasoning_tokens", self.reasoning_tokens)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            kinds = [CONTENT] if choice.get("text") or delta.get("content") else []
            self.text += choice.get("text") or delta.get("content") or ""
            kinds += [REASONING] if delta.get("reasoning_content") or delta.get("reasoning") else []
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                parts = self._calls.setdefault(call.get("index", 0), ["", ""])
                parts[0] += function.get("name") or ""
                parts[1] += function.get("arguments") or ""
                kinds.append(ARGUMENTS if function.get("arguments") else CALL)
            self.reason = choice.get("finish_reason") or self.reason
            # The role stands before the first token; a token may add no letter, as the end does not.
            if kinds or "role" not in delta:
                self.pieces_ns.append(at_ns)
                self.kinds.append(kinds[-1] if kinds else self.kinds[-1] if self.kinds else CONTENT)
            if (token_ids := choice.get("token_ids")) is not None:
                self.token_ids = [*(self.token_ids or ()), *token_ids]
                if self.kinds and self.kinds[-1] == REASONING:
                    self.reasoned = len(self.token_ids)

    def calls(self) -> list[tuple[str, str]]:
        """Return names and arguments of the tools that it calls."""
        return [(name, text) for _, (name, text) in sorted(self._calls.items())]


@dataclass(frozen=True)
class ServerRecording:
    """Settings of the server's recording: the number of steps of each run, and the server's folder for the trace."""

    steps: int
    skipped: int  # steps of the pass before the first that is recorded
    source: Path
    folder: Path
    command: tuple[str, ...] = ()
    force: bool = False


def attach(
    server: Server,
    settings: CaptureSettings,
    load: Load,
    requests: Requests,
    recording: ServerRecording | None,
    report: Callable[[str], None] = lambda line: None,
    matching: Matching = DEFAULT_MATCHING,
) -> AttachResult:
    """Run passes with and without the constraints, in turn, then record one of each. The profiler is off afterwards.

    Raises UsageError and RunError; an interrupt is raised when the profiler is off. What fails after the timed passes
    is in what is returned.
    """
    client = _Client(server, settings, load, requests)
    tokenizer = tokenizer_of(server, matching.tokenizer)
    names = [PLAIN, CONSTRAINED] if requests.constrain else [PLAIN]
    outputs: dict[str, OutputFile] = {}
    if recording is not None:
        folder = recording.folder
        outputs = {name: OutputFile(folder / f"{name}.json.gz", recording.force, recording.command) for name in names}
    for output in outputs.values():
        output.check()
    if recording is not None:
        _check_recording(server, recording, report)
    passes: dict[str, list[Pass]] = {name: [] for name in names}
    order = random.Random(settings.seed)
    warmed: Pass | None = None
    for name in names:
        for _ in range(settings.warmup):
            warmed = client.run(name == CONSTRAINED, with_ids=name == CONSTRAINED)
            report(f"{name}: warm-up")
    for number in range(settings.repeats):
        for name in order.sample(names, len(names)):
            passes[name].append(client.run(name == CONSTRAINED))
            report(f"{name}: timed pass {number + 1}/{settings.repeats}: {passes[name][-1].wall_ns / 1e9:.3g} s")
    common = {"server": server.kind, "version": server.version, "model": server.model, "session": uuid.uuid4().hex}
    command = [] if recording is None else list(recording.command)
    masks = None
    if requests.constrain:
        report("filling the masks of the answers again")
        answers = None if warmed is None else sorted(warmed.answers, key=lambda answer: answer.line)
        masks = masks_of(requests.requests, answers, tokenizer, matching.matcher)
    runs = {
        name: Attached(
            **common,
            run=name,
            concurrency=load.concurrency,
            rate=load.rate,
            passes=timed,
            command=command,
            masks=masks if name == CONSTRAINED else None,
        )
        for name, timed in passes.items()
    }
    attach_result = AttachResult(runs, [], list(requests.notes))
    if recording is not None:
        try:
            attach_result.notes.extend(_estimate(client, server, recording, names[-1] == CONSTRAINED, report))
            for name in names:
                report(f"{name}: recorded pass")
                written = _recorded(client, server, recording, name == CONSTRAINED, report)
                attach_result.traces.append(_written(largest(written), outputs[name], runs[name]))
                if len(written) > 1:
                    text = f"the server wrote {len(written)} traces into {recording.source}; the largest was taken"
                    attach_result.notes.append(f"{name}: {text}")
        except RunError as problem:
            return dataclasses.replace(attach_result, problem=problem)
    return attach_result


def _check_recording(server: Server, recording: ServerRecording, report: Callable[[str], None]) -> None:
    """Raise RunError or UsageError, before anything is timed, if the server cannot record."""
    if server.kind not in (VLLM, SGLANG):
        raise UsageError(f"{server.url} is neither vLLM nor SGLang: it cannot record", "leave out --traces")
    if not server.has("/start_profile"):
        raise RunError(f"{server.url} has no profiler", hint=NO_PROFILER)
    if server.kind == SGLANG:  # whose profiler may have ended when it is stopped: not tried
        if recording.skipped:
            raise UsageError("SGLang records from the first step", hint="leave out --skip-steps")
        return
    report("trying the server's profiler")
    before = traces_in(recording.source)
    with interrupts_held():
        start_profiler(server, {"max_iterations": 1})
        stop_profiler(server, report)
    when_whole(before, recording.source, _TRIAL_S if server.is_local else _REMOTE_S)


def start_profiler(server: Server, begin: dict[str, Any]) -> None:
    """Start the server's profiler. Raises RunError where it cannot; it is off then."""
    try:
        server.ask("POST", "/start_profile", begin)
    except RefusedError as problem:  # it may run for somebody else
        busy = f"it may record already: wait, or stop it by curl -X POST {server.url}/stop_profile"
        hint = NO_PROFILER if problem.status == HTTPStatus.NOT_FOUND else busy
        raise RunError(f"the server does not record: {problem}", hint=hint) from problem
    except RunError:  # the connection broke before the answer: it may have started
        stop_profiler(server, lambda line: None)
        raise


def stop_profiler(server: Server, report: Callable[[str], None]) -> None:
    """Stop the profiler, which answers when the trace is written.

    It is off afterwards: where the connection breaks it is asked once more, and one of a server that is gone is off.
    Raises RunError.
    """
    try:
        _ask_to_stop(server, report)
    except RefusedError as problem:
        if server.kind != SGLANG:
            raise
        report(f"the server's profiler had stopped: {problem}")  # by itself, after its steps
    except RunError:
        if not server.is_there():
            text = f"the server at {server.url} ended while it was recorded, and its profiler with it"
            raise RunError(text) from None
        report("the connection to the server broke: its profiler is stopped once more")
        try:
            _ask_to_stop(server, report)
        except RefusedError as problem:  # the first request had stopped it
            report(f"the server's profiler had stopped: {problem}")
        except RunError as problem:
            hint = f"it may be on still, and grow: curl -X POST {server.url}/stop_profile"
            raise RunError(f"the server does not say whether its profiler is off: {problem}", hint) from problem


def _ask_to_stop(server: Server, report: Callable[[str], None]) -> None:
    problems: list[RunError] = []

    def ask() -> None:
        try:
            server.ask("POST", "/stop_profile", limit_s=_TRACE_S)
        except RunError as problem:
            problems.append(problem)

    thread, began = threading.Thread(target=ask, daemon=True), time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(_SAY_S)
        if thread.is_alive():
            report(f"the server writes its trace: {time.monotonic() - began:.0f} s")
    if problems:
        raise problems[0]


def _estimate(
    client: _Client, server: Server, recording: ServerRecording, constrained: bool, report: Callable[[str], None]
) -> list[str]:
    """Report how much a recording takes, by that of a step or two of one request; it is deleted.

    Returns remarks on what the server's recordings lack.
    """
    if recording.steps <= _SAMPLE_STEPS:
        return []
    few = dataclasses.replace(recording, steps=_SAMPLE_STEPS, skipped=0)
    written = _recorded(client, server, few, constrained, report, first=1)
    size, stacks, has_scheduler = 0, False, False
    with _unpacked(largest(written)) as file:
        while block := file.read(_BLOCK_BYTES):
            size += len(block)
            stacks |= b'"python_function"' in block
            has_scheduler |= b"vllm/v1/core/sched/" in block
    for path in written:
        path.unlink(missing_ok=True)
    what = f"{'with' if stacks else 'without'} Python stacks"
    total = size // _SAMPLE_STEPS * recording.steps
    warning = "warning: " if total > _MOST_BYTES else ""
    report(
        f"{warning}{recording.steps} steps make about {bytes_text(total)} of trace, {what}, which the server keeps in"
        f" memory until it is written: {_SAMPLE_STEPS} of one request made {bytes_text(size)}, more requests make more"
    )
    if server.kind == VLLM and constrained and not has_scheduler:
        return [NO_SCHEDULER if stacks else NO_STACKS]
    return []


def _unpacked(path: Path) -> gzip.GzipFile | BinaryIO:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _recorded(
    client: _Client, server: Server, recording: ServerRecording, constrained: bool, report: Callable[[str], None],
    first: int | None = None,
) -> list[Path]:  # fmt: skip
    """Return the traces that the server wrote of a pass, or of its first requests."""
    before = traces_in(recording.source)
    begin: dict[str, Any] = {"max_iterations": recording.steps}
    if recording.skipped:
        begin["delay_iterations"] = recording.skipped
    if server.kind == SGLANG:
        begin = {"num_steps": recording.steps, "output_dir": str(recording.source), "with_stack": True}
    # Held until the profiler is off, so that no interrupt can leave it on.
    with interrupts_held() as noted:
        start_profiler(server, begin)
        try:
            client.run(constrained, lambda: noted, first=first)
        finally:
            if noted:
                report("interrupted: waiting until the server has stopped its profiler")
            stop_profiler(server, report)
    return when_whole(before, recording.source, _TRACE_S)


def when_whole(before: dict[Path, int], folder: Path, limit_s: float) -> list[Path]:
    """Return the new traces in a folder, once they no longer grow. Raises RunError if there is none."""
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        new = {path: size for path, size in traces_in(folder).items() if before.get(path) != size}
        time.sleep(_POLL_S)
        if new and new == {path: size for path, size in traces_in(folder).items() if path in new}:
            return list(new)
    raise RunError(f"the server wrote no trace into {folder}", hint="is it the server's torch_profiler_dir?")


def largest(paths: Iterable[Path]) -> Path:
    """Return the largest file."""
    return max(paths, key=lambda path: path.stat().st_size)


def traces_in(folder: Path) -> dict[Path, int]:
    """Return sizes of traces by path, without those of vLLM's frontend, which runs no model."""
    paths = [path for pattern in ("*.json", "*.json.gz") for path in folder.rglob(pattern)]
    return {path: path.stat().st_size for path in paths if "async_llm" not in path.name}


def _written(source: Path, output: OutputFile, account: Attached) -> Path:
    with output.raw() as raw:
        with _unpacked(source) as file, raw.open("wb") as out:
            shutil.copyfileobj(file, out)
        return write_trace(read_exported(raw, output), output, (), {KEY: to_builtins(account)})
