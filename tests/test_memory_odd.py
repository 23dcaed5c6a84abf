"""Memory events with impossible amounts give one line of error, never a wrong number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_trace import memory_event, slice_, write

from molprof import api
from molprof.common.errors import TraceError

AMOUNTS = ("Bytes", "Total Allocated", "Total Reserved")


def events(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    """10 bytes allocated by each, and the last of them freed."""
    made = []
    for number, change in enumerate(changes, 1):
        event = memory_event(10, 5 + number, number, 10 * number, 100)
        event["args"] |= change
        made.append(event)
    freed = memory_event(-10, 20, len(changes), 10 * len(changes) - 10, 100)
    return [slice_("cpu_op", "aten::mm", 0, 50), *made, freed]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "value", [1e300, -1e300, 1.5, 2.0**53, None, [1], {"a": 1}, 2**61, -(2**63), 2**64, "x", "9" * 5000]
)
@pytest.mark.parametrize("name", AMOUNTS)
def test_an_amount_that_cannot_be_is_one_line(name: str, value: object, place: int, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{}, {}]
    changes[place] = {name: value}
    path = write(tmp_path / "a.json", {"traceEvents": events(*changes)})
    with pytest.raises(TraceError) as problem:
        api.memory(path)
    assert len(str(problem.value)) < 300 + len(str(path))
    assert "\n" not in str(problem.value)
    if isinstance(value, float):
        assert f"have {value!r} as " in str(problem.value)


def test_sums_that_64_bits_do_not_hold_are_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"traceEvents": events(*[{"Bytes": 1 << 59}] * 16)})
    with pytest.raises(TraceError, match="have up to 576,460,752,303,423,488 bytes, more than can be"):
        api.memory(path)
    assert all(check.holds for check in api.report(path).checks)


def test_whole_numbers_written_as_floats_count(tmp_path: Path) -> None:
    floats = {"Bytes": 10.0, "Total Allocated": 20.0, "Total Reserved": 100.0, "Addr": 2.0}
    plain, written = (
        api.memory(write(tmp_path / "a.json", {"traceEvents": events({}, change)}))[0].courses[0]
        for change in ({}, floats)
    )
    assert plain.peak_bytes == written.peak_bytes == 20
    assert plain.at_peak == written.at_peak
    assert (plain.reserved_bytes, plain.unexplained) == (written.reserved_bytes, written.unexplained) == (100, 0)
