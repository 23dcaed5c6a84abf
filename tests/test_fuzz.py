"""Damaged traces: an error in one line, or exactly what the plain reference counts; never a traceback.

MOLPROF_FUZZ_RUNS sets how many of each kind.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from native_trace import varint

from molprof import api
from molprof.analysis.reader.packets.stream import packets
from molprof.common.errors import MolprofError

CORPUS = os.environ.get("MOLPROF_CORPUS")
RUNS = int(os.environ.get("MOLPROF_FUZZ_RUNS", "3"))
FIRST = int(os.environ.get("MOLPROF_FUZZ_FIRST", "0"))
TRITON, GRAPH = "traces/torch_compile_triton.json.gz", "traces/mi300x_vllm_decode_graph.json.gz"
EAGER, NATIVE_GRAPH = "native/eager.pftrace", "native/cuda_graph.pftrace"

pytestmark = pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to damage")

# What a broken disk, editor or writer does, and what JSON allows but traces rarely hold.
PIECES = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\x00", b"\xff", b"\xed\xa0\x80", b"0", b"-", b"1e400"),
    *(b"null", b"true", b"NaN", b"Infinity", b'"\\ud800"', b"18446744073709551616", b'"correlation": 1,'),
    b'{"ph":"X"},',
)
# Tags of packets, track events, types and tracks; numbers at their ends.
NATIVE_PIECES = (
    *(b"\x0a", b"\x0a\x00", b"\x5a\x00", b"\x48\x01", b"\x48\x02", b"\x48\x63", b"\x58\x07", b"\x40\x01", b"\x12\xff"),
    *(b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\x7f", b"\x00", b"\xc2\x01\x00", b"\x0a\x05abcde", b"\x92\x03\x01\x00"),
)


def mutated(text: bytes, source: random.Random, pieces: Sequence[bytes] = PIECES) -> bytes:
    """The text with a few changes: bytes replaced, dropped, repeated or put in, values swapped, or an early end.

    pieces: what is put in. Values are swapped in JSON alone.
    """
    result = bytearray(text)
    for _ in range(source.choice((1, 1, 2, 5))):
        place = source.randrange(len(result))
        length = source.choice((1, 1, 4, 30, 300))
        action = source.randrange(7 if pieces is PIECES else 6)
        if action == 0:
            result[place] = source.randrange(256)
        elif action == 1:
            del result[place : place + length]
        elif action == 2:
            result[place:place] = result[place : place + length]
        elif action == 3:
            result[place:place] = source.choice(pieces)
        elif action == 4:
            other = source.randrange(len(result))
            result[place : place + length] = result[other : other + length]
        elif action == 6:
            at = result.find(b": ", place) + 2
            end = min((p for p in (result.find(b",", at), result.find(b"}", at)) if p > 0), default=at)
            result[at:end] = source.choice(pieces)
        elif source.random() < 0.3:
            del result[place + 1 :]
    return bytes(result)


def mutated_packets(data: bytes, source: random.Random) -> bytes:
    """Packets that are dropped, repeated, moved, or changed inside with lengths that still fit."""
    found = [content for _, content in packets(iter([data]))]
    for _ in range(source.choice((1, 1, 2, 5))):
        place = source.randrange(len(found))
        action = source.randrange(5)
        if action == 0:
            del found[place]
        elif action == 1:
            found.insert(place, found[place])
        elif action == 2:
            found.insert(source.randrange(len(found)), found.pop(place))
        else:
            content = bytearray(found[place])
            content[source.randrange(len(content))] = source.randrange(256)
            found[place] = bytes(content)
    return b"".join(b"\x0a" + varint(len(content)) + content for content in found)


def mutated_native(data: bytes, source: random.Random) -> bytes:
    return mutated(data, source, NATIVE_PIECES)


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    spec = importlib.util.spec_from_file_location("oracle", Path(str(CORPUS), "oracle.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(path: Path) -> dict[str, Any]:
    """The reference's figures as molprof gives them."""
    report = api.report(path).to_json()
    counts = {name: count for name, count in report["counts"].items() if name != "kernels_with_call"}
    trace = {"events_by_category": report["trace"]["events_by_category"]}
    return {"trace": trace, "counts": counts, "devices": report["devices"]}


@pytest.mark.parametrize(
    ("name", "change", "packed"),
    [
        (TRITON, mutated, False), (GRAPH, mutated, False), (TRITON, mutated, True),
        (NATIVE_GRAPH, mutated_native, False), (EAGER, mutated_packets, False), (EAGER, mutated_native, True),
    ],
    ids=["text", "text of a graph", "gzip", "bytes of packets", "packets", "gzip of packets"],
)  # fmt: skip
def test_damaged_traces(
    name: str, change: Callable[[bytes, random.Random], bytes], packed: bool, tmp_path: Path, oracle: ModuleType
) -> None:
    data = Path(str(CORPUS), name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    whole, path = (
        figures(Path(str(CORPUS), name)),
        tmp_path / f"damaged{'.pftrace' if change is not mutated else '.json'}",
    )
    for run in range(FIRST, FIRST + RUNS):
        changed = change(gzip.compress(text, mtime=0) if packed else text, random.Random(f"{name} {packed} {run}"))
        path.write_bytes(changed)
        try:
            seen = figures(path)
        except MolprofError as error:
            assert "\n" not in str(error), run  # noqa: PT017
            with suppress(MolprofError):
                assert all(check.holds for check in api.report(path, partial=True).checks), run
            continue
        try:
            expected = whole if packed else oracle.figures(str(path))
        except Exception:  # the reference takes a whole file for granted
            continue
        assert seen == expected, f"{name} run {run}"
