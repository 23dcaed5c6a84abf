"""Traces in Perfetto's own format: whether torch exports them, their events as JSON, and molprof's as packets."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from molprof.common.errors import MissingExtraError, RunError, TraceError, UsageError

_HEAD_BYTES = 4096
_PACKET = b"\n"  # how the first packet of a trace begins: field 1, with a length
# A packet of 123 or 91 bytes begins like JSON behind an empty line, but does not go on so.
_JSON = re.compile(rb'\s*[\[{]\s*["{\]}]')
_CHUNK_BYTES = 1 << 22
_TIME = re.compile(rb'"ts":(\d+)\.(\d{3})')
# molprof's number among the writers of a trace, and its tracks: one for keys, a process, and its threads behind it.
_WRITER = 0x6D6F6C
_KEYS_TRACK = 0x6D6F6C70 << 32
_PROCESS_TRACK = _KEYS_TRACK + 1
_BEGIN, _END, _INSTANT = 1, 2, 3  # types of track events


class _Event(msgspec.Struct):
    """An event of Chrome JSON: a slice, or the name or the place of a process or thread."""

    ph: str
    name: str
    pid: int
    tid: int
    ts: msgspec.Raw
    args: dict[str, Any]
    dur: msgspec.Raw = msgspec.Raw(b"0")
    cat: str = ""


def json_blocks(raw: Path) -> Iterator[bytes]:
    """The trace as Chrome JSON, in blocks of whole events. Raises RunError where it is not whole."""
    from molprof.common.packets import chrome_text

    with raw.open("rb") as file:
        try:
            yield from chrome_text("the trace that torch exported", iter(partial(file.read, _CHUNK_BYTES), b""))
        except TraceError as problem:
            raise RunError(str(problem), "is the disk full, or the size of files limited?") from problem


def packets_of(events: Iterable[str], key: str, value: Any, raw: Path) -> Iterator[bytes]:
    """The packets that add events of Chrome JSON of one process, and a top-level key, to the trace `raw`.

    Each slice ends in the packet behind its begin, so that nothing but the order of the packets tells which end is
    whose. Raises RunError: `raw` is not whole, where there are no events.
    """
    decode = msgspec.json.Decoder(_Event).decode
    first = None
    for text in events:
        event = decode(text)
        start, lasting = (int(Decimal(bytes(time).decode()) * 1000) for time in (event.ts, event.dur))
        first = first or start
        if event.ph == "M":
            yield _packed(start, track_descriptor=_description(event))
            continue
        place = {"track_uuid": _PROCESS_TRACK + event.tid}
        args = [annotation(name, held) for name, held in event.args.items()]
        about = {"categories": [event.cat], "name": event.name, "debug_annotations": args}
        yield _packed(start, track_event={"type": _BEGIN, **place, **about})
        yield _packed(start + lasting, track_event={"type": _END, **place})
    yield from key_packets(key, value, _first_ns(raw) if first is None else first)


def key_packets(key: str, value: Any, time_ns: int) -> Iterator[bytes]:
    """The packets that hold a top-level key of Chrome JSON. The last one ends with the key."""
    yield _packed(time_ns, track_descriptor={"uuid": _KEYS_TRACK, "name": "molprof"})
    held = [{"name": "value", "legacy_json_value": json.dumps(value)}]
    about = {"categories": ["molprof.key"], "name": key, "debug_annotations": held}
    yield _packed(time_ns, track_event={"type": _INSTANT, "track_uuid": _KEYS_TRACK, **about})


def annotation(name: str, value: Any) -> dict[str, Any]:
    """A debug annotation, with its value as PyTorch writes it."""
    for kind, field in ((bool, "bool_value"), (int, "int_value"), (float, "double_value"), (str, "string_value")):
        if isinstance(value, kind):
            return {"name": name, field: value}
    return {"name": name, "legacy_json_value": json.dumps(value)}


def _description(event: _Event) -> dict[str, Any]:
    """A process or thread, with its name or its place among others, from `process_name`, `thread_sort_index`..."""
    kind, _, what = event.name.partition("_")
    (value,) = event.args.values()
    about = {"pid": event.pid, {"name": event.name}.get(what, "legacy_sort_index"): value}
    if kind == "thread":
        return {"uuid": _PROCESS_TRACK + event.tid, "parent_uuid": _PROCESS_TRACK, kind: about | {"tid": event.tid}}
    return {"uuid": _PROCESS_TRACK, kind: about}


def _packed(time_ns: int, **fields: Any) -> bytes:
    """One packet, as it stands in a trace."""
    # Imported on use: few captures need it.
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    packet = protos.TracePacket(timestamp=time_ns, trusted_packet_sequence_id=_WRITER, **fields)
    return bytes(protos.Trace(packet=[packet]).SerializeToString())


def _first_ns(raw: Path) -> int:
    """The time of the first event of a trace. Raises RunError where the trace is not whole."""
    times = [match for block in json_blocks(raw) if (match := _TIME.search(block))]
    return int(b"".join(times[0].groups()))


def check_native(output: Path) -> None:
    """Raises UsageError where no trace of Perfetto's own format can be written to `output`."""
    for package in ("isal", "perfetto"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "analysis", "writing .pftrace")
    if exports_native():
        return
    import torch

    what = f"torch {torch.__version__} does not write .pftrace: under that name it writes Chrome JSON too"
    stem = output.name[: output.name.lower().rindex(".pftrace")]
    raise UsageError(f"{output}: {what}", hint=f"-o {stem}.json.gz, which the Perfetto UI opens")


def exports_native() -> bool:
    """Whether torch.profiler writes packets, not JSON, to a file `x.pftrace`; exports a recording of nothing."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # as of a recorded pass: it writes two lines otherwise
    import torch

    with tempfile.TemporaryDirectory(prefix="molprof-") as folder:
        path = Path(folder, "x.pftrace")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            pass
        profiler.export_chrome_trace(str(path))
        with path.open("rb") as file:
            content = file.read(_HEAD_BYTES)
    if content.startswith(b"\x1f\x8b"):
        content = zlib.decompressobj(wbits=31).decompress(content, _HEAD_BYTES)
    return content.startswith(_PACKET) and not _JSON.match(content)
