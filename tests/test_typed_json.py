"""Typed JSON: what is wrong is named by its place, in one wording."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from molprof.common.errors import TraceError, UsageError
from molprof.common.typed_json import read_typed


@dataclass(frozen=True)
class Inner:
    name: str
    sizes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Outer:
    ratio: float
    inner: list[Inner]
    times: dict[str, int] | None = None

    def __post_init__(self) -> None:
        if self.ratio < 0:
            raise UsageError(f"ratio {self.ratio} is below 0", hint="a ratio from 0 on")


def test_values_come_typed_and_unknown_keys_are_left_out() -> None:
    raw = {"ratio": 1, "inner": [{"name": "a", "sizes": [1], "color": "red"}], "shape": None}
    read = read_typed(raw, Outer, "x.json")
    assert read == Outer(1.0, [Inner("a", [1])])
    assert isinstance(read.ratio, float)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "x.json: expected `object`, got `array`"),
        ({"ratio": 1}, "x.json: missing field `inner`"),
        ({"ratio": True, "inner": []}, "x.json: ratio: expected `float`, got `bool`"),
        ({"ratio": 1, "inner": [{"name": "a"}, {}]}, "x.json: inner[1]: missing field `name`"),
        (
            {"ratio": 1, "inner": [{"name": "a", "sizes": [0.5]}]},
            "x.json: inner[0].sizes[0]: expected `int`, got `float`",
        ),
        ({"ratio": 1, "inner": [], "times": {"a": "b"}}, "x.json: times[...]: expected `int`, got `str`"),
        ({"ratio": -1, "inner": []}, "x.json: ratio -1.0 is below 0"),
    ],
)
def test_what_is_wrong_is_named(raw: Any, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_typed(raw, Outer, "x.json")
    assert str(caught.value) == message


def test_the_caller_chooses_error_and_hint() -> None:
    with pytest.raises(UsageError) as caught:
        read_typed({}, Outer, "x.json", hint="a file that molprof wrote", error=UsageError)
    assert caught.value.hint == "a file that molprof wrote"
