"""`molprof attach --every`: windows of a server in production, each put into a history."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from molprof.commands.options import DURATION, FOLDER, Read, declared, grouped, make_folder, note, number_option
from molprof.common.errors import UsageError

if TYPE_CHECKING:
    from molprof.profiler.attach.server import Server

_BYTES = {"MB": 10**6, "GB": 10**9}


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([MG]B)", text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is no size, such as 500MB or 2GB")
    return int(float(match[1]) * _BYTES[match[2]])


@dataclass(frozen=True)
class WindowOptions:
    """Options of recorded windows."""

    every: float | None = declared(
        "--every",
        type=DURATION,
        metavar="TIME",
        help="Send nothing; record --steps of what the server does, each 10m or so, and add them to --to.",
    )
    length: float | None = declared(
        "--for",
        "length",
        type=DURATION,
        metavar="TIME",
        default="24h",
        show_default=True,
        help="With --every: no window begins later.",
    )
    to: Path | None = declared("--to", type=FOLDER, metavar="FOLDER", help="With --every: the folder of the history.")
    name: str | None = declared("--name", help="With --every: name in the history.  [default: the model]")
    most_s: int = declared(
        number_option("--most-seconds", "most_s", default=30, help="With --every: longest time of a window.")
    )
    most_bytes: int = declared(
        "--most-bytes", type=Read(_bytes, "size"), metavar="SIZE", default="1GB", show_default=True,
        help="With --every: end when a window, or all in --traces, take more.",
    )  # fmt: skip


windows_options: Callable[..., Callable[..., object]] = grouped(WindowOptions, "windows")  # type: ignore[assignment]


def sample_server(
    windows: WindowOptions, steps: int, source: Path | None, folder: Path | None, connect: Callable[[], Server]
) -> None:
    """Record windows until the time is over, adding each to the history; print a remark on each, and on all."""
    if windows.every is None or windows.length is None or windows.to is None or source is None:
        raise UsageError("--every requires --to and --trace-dir", hint="--to FOLDER --trace-dir DIR")
    if not source.is_dir():
        raise UsageError(f"{source} is no folder", hint="--trace-dir DIR, the server's torch_profiler_dir")
    from molprof.analysis.fleet.history import add, commit_here, entry_of
    from molprof.analysis.fleet.rows import Fleet, each_row
    from molprof.analysis.reader import Reading
    from molprof.analysis.reader.parts import digest_of
    from molprof.common.values import now
    from molprof.profiler.attach.windows import Sampling, sample

    history = windows.to
    make_folder(history, "--to")
    if folder is not None:
        make_folder(folder, "--traces")
    sampling = Sampling(windows.every, windows.length, steps, windows.most_s, windows.most_bytes, source, folder)
    connect()  # tells of a wrong address at once
    commit = commit_here()

    def take(path: Path, server: Server) -> None:
        when = now()
        (row,) = each_row([path], Reading(cached=False), Fleet())
        about = {server.kind: server.version, "served model": server.model}
        row = replace(row, environment=row.environment | about)
        add(history, entry_of(row, digest_of(path), windows.name or server.model, when, commit))

    note(sample(connect, sampling, take, note).text())
    note(f"next: molprof history show {history}")
