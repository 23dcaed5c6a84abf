"""Sampling of a production server: from time to time a few steps are recorded, within bounds.

No requests are sent. The profiler is on during a window alone, and is stopped however that ends.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molprof.common.engine_settings import VLLM
from molprof.common.errors import RunError, TraceError, UsageError
from molprof.common.process import interrupts_held
from molprof.common.values import bytes_text, counted
from molprof.profiler.attach import NO_PROFILER, largest, start_profiler, stop_profiler, traces_in, when_whole
from molprof.profiler.attach.server import SGLANG, Server

_POLL_S, _WRITE_S = 0.2, 300
# Windows in a row without a trace, after which a server is left alone.
MOST_FAILURES = 6


@dataclass(frozen=True)
class Sampling:
    """When windows are recorded, and their bounds."""

    every_s: float  # from the start of one to the start of the next
    for_s: float  # no window begins later
    steps: int
    most_s: float  # the profiler is on for so long at most in a window
    most_bytes: int  # of traces of a window; of all that are kept, where they are
    source: Path  # the folder into which the server writes
    kept: Path | None = None  # where traces go once they were read; None: they are deleted

    def __post_init__(self) -> None:
        if self.most_s >= self.every_s:
            text = f"a window of up to {self.most_s:g} s does not fit into {self.every_s:g} s"
            raise UsageError(text, hint="a longer --every, or a shorter --most-seconds")


@dataclass
class Sampled:
    """The outcome of the windows."""

    windows: int = 0
    failed: int = 0
    profiled_s: float = 0.0
    bytes: int = 0
    ended: str = ""  # why there are no more

    def text(self) -> str:
        """Return a summary of the recorded windows as text."""
        return (
            f"{counted(self.windows, 'window')}, {self.failed:,} without a trace; the profiler was on for"
            f" {self.profiled_s:.1f} s, and wrote {bytes_text(self.bytes)}; {self.ended}"
        )


def sample(
    connect: Callable[[], Server],
    sampling: Sampling,
    take: Callable[[Path, Server], None],
    report: Callable[[str], None] = lambda line: None,
) -> Sampled:
    """Record windows until the time is over, a bound is reached, or the server fails too often.

    connect: the server as it is now; it may have been restarted. take: reads a trace. Raises UsageError, and an
    interrupt when the profiler is off.
    """
    sampled, began, failures = Sampled(), time.monotonic(), 0
    number = 0
    while (due := number * sampling.every_s) <= sampling.for_s:
        time.sleep(max(0.0, began + due - time.monotonic()))
        sampled.windows += 1
        kept = 0
        try:
            server = connect()
            path, size = _window(server, sampling, sampled, report)
            sampled.bytes += size
            try:
                take(path, server)
            finally:
                kept = max(size, _put_away(path, sampling))
        except (RunError, TraceError) as problem:
            sampled.failed += 1
            failures += 1
            report(f"window {sampled.windows}: {problem}")
            if failures == MOST_FAILURES:
                sampled.ended = f"given up after {counted(failures, 'window')} in a row without a trace"
                return sampled
        else:
            failures = 0
            report(f"window {sampled.windows}: {bytes_text(size)}")
        if kept > sampling.most_bytes:
            sampled.ended = f"ended at the bound on disk space, {bytes_text(sampling.most_bytes)}"
            return sampled
        # A window that took long leaves out those that it ran into.
        number = max(number + 1, -int((began - time.monotonic()) // sampling.every_s))
    sampled.ended = f"ended after {sampling.for_s:g} s"
    return sampled


def _window(server: Server, sampling: Sampling, sampled: Sampled, report: Callable[[str], None]) -> tuple[Path, int]:
    """Return the largest trace of one window, after deleting the others, and the bytes of all of them."""
    if server.kind not in (VLLM, SGLANG):
        raise UsageError(f"{server.url} is neither vLLM nor SGLang: it cannot record")
    if not server.has("/start_profile"):
        raise RunError(f"{server.url} has no profiler", hint=NO_PROFILER)
    before, files = traces_in(sampling.source), _files(sampling.source)
    begin: dict[str, Any] = {"max_iterations": sampling.steps}
    if server.kind == SGLANG:
        begin = {"num_steps": sampling.steps, "output_dir": str(sampling.source), "with_stack": True}
    with interrupts_held() as noted:  # so that none can leave the profiler on
        start_profiler(server, begin)
        began = time.monotonic()
        try:
            while time.monotonic() - began < sampling.most_s and not noted:
                time.sleep(_POLL_S)
                if traces_in(sampling.source) != before:  # it has stopped by itself after its steps
                    break
        finally:
            stop_profiler(server, report)
            sampled.profiled_s += time.monotonic() - began
    written = when_whole(before, sampling.source, _WRITE_S)
    path, size = largest(written), sum(item.stat().st_size for item in written)
    # The server's frontend writes one too.
    for other in _files(sampling.source) - files - {path}:
        other.unlink(missing_ok=True)
    return path, size


def _files(folder: Path) -> set[Path]:
    return {*folder.rglob("*.json"), *folder.rglob("*.json.gz")}


def _put_away(path: Path, sampling: Sampling) -> int:
    """Keep or delete the trace; return the bytes of kept traces."""
    if sampling.kept is None:
        path.unlink(missing_ok=True)
        return 0
    shutil.move(path, sampling.kept / path.name)
    return sum(traces_in(sampling.kept).values())
