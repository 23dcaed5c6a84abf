"""A trace with samples of a process that was not profiled: behind its events, on tracks that molprof's reader skips."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct, to_builtins

from molprof.analysis.reader.events import ABSENT
from molprof.analysis.reader.part import TracePart, or_zero, times_ns
from molprof.analysis.reader.survey import EXPORT_KEY
from molprof.analysis.samples import LEAST_UNIX_S, SAMPLES_KEY, Samples, from_json, read_samples, slices_of
from molprof.analysis.trim import pass_over
from molprof.common.errors import UsageError
from molprof.common.files import replacing_packed
from molprof.common.text import whole_json
from molprof.queries import FACT_CATEGORY

# No process, no GPU and no track of tokens has such numbers.
_FIRST_PID = (1 << 30) + 16
_BASE_KEY = "baseTimeNanoseconds"
_AFTER = re.compile(r"\+(\d+(?:\.\d+)?)\s*(ns|us|ms|s)?")
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, None: 1_000_000_000}
_START_HINT = "--starts-at +1.5s (since the trace's first event), a time such as 2026-01-31T12:00:00.25, or Unix time"
_encode = msgspec.json.encode


class _TimedEvent(Struct, gc=False):
    ph: str | None = None
    cat: str | int | None = None
    ts: Raw = ABSENT
    dur: Raw = ABSENT


_decode_times = msgspec.json.Decoder(list[_TimedEvent]).decode
_decode_texts = msgspec.json.Decoder(list[Raw]).decode


class JoinResult(Struct, frozen=True):
    """What was joined, ns: how long is sampled, and how much of that is in the span of the trace's events."""

    samples: Samples
    sampled_ns: int
    overlap_ns: int


def join(trace: Path, path: Path, output: Path, starts_at: str | None, force: bool = True) -> JoinResult:
    """Write a trace with the samples at `path`, whole or not at all; gzip if `output` ends in `.gz`.

    starts_at: when the first sample was taken; None: as the samples say, or else by the time of their file.
    Raises TraceError, UsageError.
    """
    samples = read_samples(path)
    first, last = 1 << 62, -(1 << 62)
    with replacing_packed(output, force) as out:
        before = b'{"traceEvents": [\n'

        def copy(text: bytes) -> TracePart:
            nonlocal before, first, last
            events = _decode_times(text)
            timed = [event.ph != "M" and event.cat != FACT_CATEGORY for event in events]
            starts = times_ns(events, or_zero([event.ts for event in events]), "ts")
            ends = starts + times_ns(events, or_zero([event.dur for event in events]), "dur")
            if any(timed):
                first, last = min(first, int(starts[timed].min())), max(last, int(ends[timed].max()))
            if texts := _decode_texts(text):
                out.write(before + b",\n".join(texts))
                before = b",\n"
            return TracePart(events=len(events))

        keys = pass_over(trace, copy)
        if last < first:
            raise UsageError(f"{trace} has no events to join samples to")
        exported = keys.get(EXPORT_KEY)
        file_ns = exported.get("origin_ns", 0) if isinstance(exported, dict) else 0
        placed = _placed(samples, path, keys, first + file_ns, starts_at)
        start, end = placed.span_ns
        overlap_ns = min(end, last + file_ns) - max(start, first + file_ns)
        if overlap_ns <= 0:
            raise UsageError("no sample was taken while the trace was recorded", hint=_START_HINT)
        earlier = from_json(keys.get(SAMPLES_KEY, []))
        number = sum(len({thread.pid for thread in one.threads}) for one in earlier)
        for event in _events(placed, _FIRST_PID + number, file_ns):
            out.write(before + _encode(event))
        keys |= {"traceName": output.name, SAMPLES_KEY: to_builtins([*earlier, placed])}
        out.write(b"\n]")
        for key, value in keys.items():
            out.write(whole_json(f",\n{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}").encode())
        out.write(b"\n}\n")
    return JoinResult(placed, end - start, overlap_ns)


def _placed(samples: Samples, path: Path, keys: dict[str, Any], first_ns: int, starts_at: str | None) -> Samples:
    """Return the samples on the clock of the trace, whose first event is at `first_ns`."""
    base_ns = keys.get(_BASE_KEY, 0)
    start_ns, end_ns = samples.span_ns
    if starts_at is not None and (match := _AFTER.fullmatch(starts_at.strip())):
        return samples.moved(first_ns + round(float(match[1]) * _UNITS_NS[match[2]]) - start_ns)
    if first_ns + base_ns < LEAST_UNIX_S * 1e9:
        raise UsageError("the trace does not say when it was recorded", hint="--starts-at +1.5s")
    if starts_at is not None:
        return samples.moved(_unix_ns(starts_at) - base_ns - start_ns)
    if start_ns >= LEAST_UNIX_S * 1e9:
        return samples.moved(-base_ns)
    moved = samples.moved(path.stat().st_mtime_ns - base_ns - end_ns)
    moved.is_placed = False
    return moved


def _unix_ns(text: str) -> int:
    with suppress(InvalidOperation):
        return int(Decimal(text) * 10**9)
    try:
        return round(1e9 * datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())
    except ValueError:
        raise UsageError(f"--starts-at {text!r} is no time", hint=_START_HINT) from None


def _events(samples: Samples, first_pid: int, file_ns: int) -> Iterator[dict[str, Any]]:
    """Yield the slices of all threads with the names of their tracks."""
    pids: dict[int | None, int] = {}
    for tid, thread in enumerate(samples.threads, 1):
        common = {"cat": FACT_CATEGORY, "pid": pids.setdefault(thread.pid, first_pid + len(pids)), "tid": tid}
        of = "" if thread.pid is None else f" of process {thread.pid}"
        for kind, name in (("process_name", f"samples{of} ({samples.source})"), ("thread_name", thread.name)):
            yield {**common, "ph": "M", "name": kind, "ts": 0, "args": {"name": name}}
        for start, end, name in slices_of(samples, thread):
            ts, dur = (
                Raw(f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03d}".encode())
                for ns in (start - file_ns, end - start)
            )
            yield {**common, "ph": "X", "name": name, "ts": ts, "dur": dur, "args": {"sampled": True}}
