"""How traces are read. Apart from the reader, which commands do not import before they need it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """How a trace is read."""

    native_path: str | None = None  # of a `trace_processor_shell` to use instead of the embedded one
    partial: bool = False  # take the intact part of a damaged file
    cached: bool = False  # use the user's cache, and fill it
    stacks: bool = False  # read Python stacks too, often most events; no figure needs them
    processes: int | None = None  # that read a large trace together; None: one per processor
