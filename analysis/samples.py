"""Samples of a process that was not profiled, as a sampler wrote them: who ran what from when to when.

They are of py-spy (Chrome trace, speedscope), of any writer of speedscope's JSON, of `perf script`, or stacks of one
line each with their time. Frames read as functions do in traces: `vllm/core.py(12): step`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from molprof.common.errors import TraceError, UsageError
from molprof.common.files import read_text
from molprof.common.typed_json import read_typed

SAMPLES_KEY = "molprof_samples"
# Times from 2001 on, s, are those of the system's clock.
LEAST_UNIX_S = 1e9
_UNITS_NS = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 1000, "nanoseconds": 1}
_PROCESS, _THREAD = re.compile(r"\b[Pp](?:rocess|id)[ :]+(\d+)"), re.compile(r"\b[Tt](?:hread|id)[ :]+(\d+)")
_HEADER = re.compile(r"^(?P<name>\S.*?)\s+(?P<pid>\d+)(?:/(?P<tid>\d+))?\s+(?:\[\d+\]\s+)?(?P<time>\d+\.\d+):")
_FRAME = re.compile(r"^\s+[0-9a-f]+\s+(?P<name>.+?)(?:\+0x[0-9a-f]+)?\s+\((?P<object>[^()]*)\)$")
_TIMED_LINE = re.compile(r"^(?P<time>\d+(?:\.\d+)?)\s+(?P<stack>\S.*?)(?:\s+\d+)?$")
_WITH_FILE = re.compile(r"^(?P<name>.+) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)$")
_KINDS = "py-spy's chrometrace or speedscope, the text of perf script, or lines such as `12.345 main;step;fill`"
Stack = tuple[int, ...]
ThreadKey = tuple[int | None, int | None, str]  # process, thread, name
_LENGTH_NS = 10_000_000  # of a single sample


class SampledThread(Struct):
    """A thread, and what it ran: start and end, ns, and number of the stack."""

    pid: int | None
    tid: int | None
    name: str
    spans: list[tuple[int, int, int]]


class Samples(Struct):
    """What one file holds, as it is stored in the trace that it was joined to, on the clock of that."""

    source: str
    threads: list[SampledThread]
    frames: list[str] = []
    stacks: list[list[int]] = []  # of frames, the outermost first
    is_placed: bool = True  # its start is known, not guessed from the time of the file

    @property
    def span_ns(self) -> tuple[int, int]:
        """The first start and the last end."""
        spans = [span for thread in self.threads for span in thread.spans]
        return min(start for start, _, _ in spans), max(end for _, end, _ in spans)

    def moved(self, by_ns: int) -> Samples:
        """Return the samples at other times."""
        threads = [
            SampledThread(
                thread.pid, thread.tid, thread.name, [(start + by_ns, end + by_ns, s) for start, end, s in thread.spans]
            )
            for thread in self.threads
        ]
        return Samples(self.source, threads, self.frames, self.stacks, self.is_placed)


def from_json(raw: Any) -> list[Samples]:
    """Return what a trace's `molprof_samples` holds. Raises TraceError."""
    return read_typed(raw, list[Samples], SAMPLES_KEY)


def read_samples(path: Path) -> Samples:
    """Return the samples of a file. Raises TraceError, UsageError."""
    text = read_text(path)
    threads = _Threads()
    try:
        content = json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
        if content is None:
            (_perf if _HEADER.match(text.lstrip()) and "\n\t" in text else _lines)(text, threads)
        elif isinstance(content, dict) and "profiles" in content:
            _speedscope(content, threads)
        else:
            _chrome(content if isinstance(content, list) else content["traceEvents"], threads)
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        what = f"{type(problem).__name__}: {problem}" if not isinstance(problem, ValueError) else str(problem)
        raise TraceError(f"{path} holds no samples with times: {what}", hint=f"known are {_KINDS}") from problem
    samples = threads.samples(path.name)
    if not samples.threads:
        raise UsageError(f"{path} holds no samples", hint=f"known are {_KINDS}")
    return samples


class _Threads:
    """Threads as they are read."""

    def __init__(self) -> None:
        self._frames: dict[str, int] = {}
        self._stacks: dict[Stack, int] = {}
        self._spans: dict[ThreadKey, list[tuple[int, int, int]]] = defaultdict(list)

    def frame(self, name: str, file: str | None = None, line: Any = None) -> int:
        """Return the number of a frame."""
        if not file and (match := _WITH_FILE.match(name)):
            name, file, line = match["name"], match["file"], match["line"]
        if name.startswith("py::"):  # of perf's trampolines: py::step:/path/core.py
            _, _, rest = name.partition("::")
            name, _, file = rest.partition(":")
        if file:  # as torch names functions: without their class
            name = f"{file}({line or 0}): {name.rpartition('.')[2]}"
        return self._frames.setdefault(name, len(self._frames))

    def add(self, thread: ThreadKey, start_ns: int, end_ns: int, stack: Iterable[int]) -> None:
        """Add that a thread ran a stack, outermost frame first."""
        if end_ns > start_ns:
            number = self._stacks.setdefault(tuple(stack), len(self._stacks))
            self._spans[thread].append((start_ns, end_ns, number))

    def add_moments(self, thread: ThreadKey, moments: list[tuple[int, Stack]]) -> None:
        """Add samples without lengths: each lasts to the next of its thread, as long as is usual there at most."""
        times = [time for time, _ in moments]
        gaps = [after - before for before, after in itertools.pairwise(times) if after > before]
        usual = round(median(gaps)) if gaps else _LENGTH_NS
        for (time, stack), after in zip(moments, [*times[1:], times[-1] + usual], strict=True):
            self.add(thread, time, min(after, time + usual), stack)

    def samples(self, source: str) -> Samples:
        threads = [SampledThread(*thread, sorted(spans)) for thread, spans in self._spans.items()]
        return Samples(source, threads, list(self._frames), [list(stack) for stack in self._stacks])


def _ns(text: str) -> int:
    """Return a time in s as ns; a float would lose some."""
    return int(Decimal(text) * 10**9)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.search(name)
    return int(match[1]) if match else None


def _speedscope(content: dict[str, Any], threads: _Threads) -> None:
    frames = [
        threads.frame(frame["name"], frame.get("file"), frame.get("line")) for frame in content["shared"]["frames"]
    ]
    for profile in content["profiles"]:
        name = str(profile.get("name", ""))
        thread = _number(_PROCESS, name), _number(_THREAD, name), name
        if (unit := _UNITS_NS.get(profile.get("unit"))) is None:
            raise ValueError(f"the unit of {name!r} is {profile.get('unit')!r}, not a time")
        time = profile["startValue"]
        if profile["type"] == "sampled":
            for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
                threads.add(thread, round(time * unit), round((time + weight) * unit), [frames[i] for i in stack])
                time += weight
            continue
        opened: list[int] = []
        for event in profile["events"]:
            if opened:
                threads.add(thread, round(time * unit), round(event["at"] * unit), opened)
            time = event["at"]
            if event["type"] == "O":
                opened.append(frames[event["frame"]])
            else:
                opened.pop()


def _chrome(events: list[dict[str, Any]], threads: _Threads) -> None:
    """Of py-spy: begin and end events of functions, times in µs."""
    opened: dict[tuple[int, int], list[int]] = defaultdict(list)
    began: dict[tuple[int, int], int] = {}
    for event in events:
        if event.get("ph") not in ("B", "E"):
            continue
        key, time = (event["pid"], event["tid"]), round(event["ts"] * 1000)
        if stack := opened[key]:
            threads.add((*key, f"thread {key[1]}"), began[key], time, stack)
        began[key] = time
        if event["ph"] == "B":
            args = event.get("args") or {}
            opened[key].append(threads.frame(event["name"], args.get("filename"), args.get("line")))
        elif stack:
            stack.pop()


def _perf(text: str, threads: _Threads) -> None:
    moments: dict[ThreadKey, list[tuple[int, Stack]]] = defaultdict(list)
    for block in re.split(r"\n\s*\n", text):
        first, *rest = block.strip("\n").splitlines() or [""]
        if first.startswith("#") or (match := _HEADER.match(first.lstrip())) is None:
            continue
        frames = [threads.frame(found["name"]) for line in rest if (found := _FRAME.match(line))]
        thread = int(match["pid"]), int(match["tid"] or match["pid"]), match["name"]
        moments[thread].append((_ns(match["time"]), tuple(reversed(frames))))
    for key, some in moments.items():
        threads.add_moments(key, some)


def _lines(text: str, threads: _Threads) -> None:
    moments: list[tuple[int, Stack]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            if (match := _TIMED_LINE.match(line)) is None:
                raise ValueError(f"line {number} does not begin with a time, s")
            moments.append((_ns(match["time"]), tuple(map(threads.frame, match["stack"].split(";")))))
    if moments:
        threads.add_moments((None, None, "samples"), sorted(moments))


def slices_of(samples: Samples, thread: SampledThread) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and frame of the functions of a thread: those that go on from one sample to the next are one."""
    opened: list[tuple[int, int]] = []  # frame and start
    last = 0

    def closed(left: int, at: int) -> Iterator[tuple[int, int, str]]:
        while len(opened) > left:
            frame, start = opened.pop()
            yield start, at, samples.frames[frame]

    for start, end, number in thread.spans:
        stack = samples.stacks[number]
        same = 0
        if start == last:
            while same < min(len(opened), len(stack)) and opened[same][0] == stack[same]:
                same += 1
        yield from closed(same, last)
        opened += [(frame, start) for frame in stack[same:]]
        last = end
    yield from closed(0, last)


def time_by(
    samples: Samples, thread: SampledThread, inside: Callable[[int, int], int], of_stack: Callable[[int], str | None]
) -> dict[str | None, int]:
    """Return the sampled time of a thread, ns, by what `of_stack` says of the number of a stack.

    inside: the part of a span that counts.
    """
    times: dict[str | None, int] = defaultdict(int)
    for start, end, number in thread.spans:
        times[of_stack(number)] += inside(start, end)
    return dict(times)
