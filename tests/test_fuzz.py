"""Damaged real traces: an error in one line, or exactly what the plain reference counts; never a traceback.

MOLPROF_FUZZ_RUNS sets how many (docs/reading.md says how many were run).
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import random
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from molprof import api
from molprof.common.errors import MolprofError

CORPUS = os.environ.get("MOLPROF_CORPUS")
RUNS = int(os.environ.get("MOLPROF_FUZZ_RUNS", "12"))
FIRST = int(os.environ.get("MOLPROF_FUZZ_FIRST", "0"))
NAMES = ("torch_compile_triton.json.gz", "mi300x_vllm_decode_graph.json.gz")

pytestmark = pytest.mark.skipif(not CORPUS, reason="MOLPROF_CORPUS is not set: no real traces to damage")

# What a broken disk, editor or writer does, and what JSON allows but traces rarely hold.
PIECES = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\x00", b"\xff", b"\xed\xa0\x80", b"0", b"-", b"1e400"),
    *(b"null", b"true", b"NaN", b"Infinity", b'"\\ud800"', b"18446744073709551616", b'"correlation": 1,'),
    b'{"ph":"X"},',
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
    counts = dict(report["counts"])
    del counts["kernels_with_call"]
    trace = {"events_by_category": report["trace"]["events_by_category"]}
    return {"trace": trace, "counts": counts, "devices": report["devices"]}


def figures_or_reason(path: Path) -> dict[str, Any] | str:
    """The figures, or what the error says."""
    try:
        return figures(path)
    except MolprofError as error:
        return str(error)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_traces(name: str, tmp_path: Path, oracle: ModuleType) -> None:
    whole = gzip.decompress(Path(str(CORPUS), "traces", name).read_bytes())
    for run in range(FIRST, FIRST + RUNS):
        text = mutated(whole, random.Random(f"{name} {run}"))
        path = tmp_path / "damaged.json"
        path.write_bytes(text)
        seen = figures_or_reason(path)
        if isinstance(seen, str):
            assert "\n" not in seen, run
            continue
        try:
            expected = oracle.figures(str(path))
        except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError) as error:
            # The reference takes for granted what the events lack; then it has no figures to be equal to.
            expected = error
        if not isinstance(expected, Exception):
            assert seen == expected, f"{name} run {run}"


@pytest.mark.parametrize("name", NAMES)
def test_damaged_gzip(name: str, tmp_path: Path) -> None:
    packed = Path(str(CORPUS), "traces", name).read_bytes()
    whole = figures(Path(str(CORPUS), "traces", name))
    for run in range(FIRST, FIRST + RUNS):
        path = tmp_path / "damaged.json.gz"
        path.write_bytes(mutated(packed, random.Random(f"gzip {name} {run}")))
        seen = figures_or_reason(path)
        if isinstance(seen, str):
            assert "\n" not in seen, run
            continue
        assert seen == whole, f"{name} run {run}"
