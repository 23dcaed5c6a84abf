"""A handler for `torch.profiler.profile(on_trace_ready=...)`: each recording becomes a trace file, written whole."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from molprof.common.files import next_free
from molprof.profiler.recording.tracefile import OutputFile, read_exported, write_trace
from molprof.profiler.recording.window import export


def trace_handler(folder: str | Path, name: str | None = None) -> Callable[[torch.profiler.profile], None]:
    """Return a handler for `on_trace_ready`, which writes `NAME.json.gz`, `NAME-2.json.gz` and so on to the folder.

    The folder is made; a file that exists is left alone. `ProfilerStep` annotations, which `profile.step()` makes, are
    the steps of the trace.

    Args:
        name: None: the machine and the number of the process.

    The handler raises RunError where torch could not export, or the disk is full.
    """
    directory = Path(folder)
    stem = name or f"{socket.gethostname()}-{os.getpid()}"

    def handle(profile: torch.profiler.profile) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        output = OutputFile(next_free(directory / f"{stem}.json.gz"), command=tuple(sys.argv), chosen=True)
        with output.raw() as raw:
            export(profile, raw)
            write_trace(read_exported(raw, output), output, (), {})

    return handle
