"""Damaged native traces: an error in one line, or exactly what the plain reference counts; never a traceback.

MOLPROF_FUZZ_RUNS sets how many (docs/reading.md says how many were run).
"""

from __future__ import annotations

import gzip
import random
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from test_fuzz import CORPUS, FIRST, RUNS, figures, figures_or_reason, mutated, oracle

from molprof import api
from molprof.analysis.reader.packets.stream import packets
from molprof.common.errors import MolprofError

__all__ = ["oracle"]
NAMES = ("cuda_graph.pftrace", "eager.pftrace")

pytestmark = pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real native traces to damage")

# What a broken writer may leave: tags of packets, track events, types and tracks; numbers at their ends.
PIECES = (
    *(b"\x0a", b"\x0a\x00", b"\x5a\x00", b"\x48\x01", b"\x48\x02", b"\x48\x63", b"\x58\x07", b"\x40\x01", b"\x12\xff"),
    *(b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\x7f", b"\x00", b"\xc2\x01\x00", b"\x0a\x05abcde", b"\x92\x03\x01\x00"),
)


def varint(value: int) -> bytes:
    result = b""
    while value > 0x7F:
        result += bytes([value & 0x7F | 0x80])
        value >>= 7
    return result + bytes([value])


def mutated_bytes(data: bytes, source: random.Random) -> bytes:
    return mutated(data, source, PIECES)


def mutated_packets(data: bytes, source: random.Random) -> bytes:
    """The packets with a few changes: some dropped, repeated, moved, or changed inside with lengths that still fit."""
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


@pytest.mark.parametrize("change", [mutated_bytes, mutated_packets])
@pytest.mark.parametrize("name", NAMES)
def test_damaged_packets(name: str, change: object, tmp_path: Path, oracle: ModuleType) -> None:
    data = Path(str(CORPUS), "native", name).read_bytes()
    path = tmp_path / "damaged.pftrace"
    for run in range(FIRST, FIRST + RUNS):
        path.write_bytes(change(data, random.Random(f"{name} {run}")))  # type: ignore[operator]
        seen = figures_or_reason(path)
        if isinstance(seen, str):
            assert "\n" not in seen, run
            continue
        try:
            expected = oracle.figures(str(path))
        except Exception:  # of the protobuf package too: the reference takes a whole file for granted
            continue
        assert seen == expected, f"{name} run {run}"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_whole_of_damaged_packets_is_read(name: str, tmp_path: Path) -> None:
    data = Path(str(CORPUS), "native", name).read_bytes()
    path = tmp_path / "damaged.pftrace"
    for run in range(FIRST, FIRST + RUNS):
        path.write_bytes(mutated_bytes(data, random.Random(f"partial {name} {run}")))
        with suppress(MolprofError):
            report = api.report(path, partial=True)
            assert all(check.holds for check in report.checks), run


def test_damaged_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(Path(str(CORPUS), "native", NAMES[0]).read_bytes(), mtime=0)
    whole = figures(Path(str(CORPUS), "native", NAMES[0]))
    path = tmp_path / "damaged.pftrace.gz"
    for run in range(FIRST, FIRST + RUNS):
        path.write_bytes(mutated_bytes(packed, random.Random(f"gzip {run}")))
        seen = figures_or_reason(path)
        if isinstance(seen, str):
            assert "\n" not in seen, run
            continue
        assert seen == whole, run
