"""`molprof report --by` as a process, and its files for speedscope."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

from origin_trace import EVENTS, origins_in
from tiny_trace import write

from molprof.analysis.origin.tree import BYS, speedscope_text


def check_speedscope(content: dict[str, Any]) -> None:
    """What the viewer's importer requires of sampled profiles."""
    assert content["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = content["shared"]["frames"]
    assert all(frame["name"] for frame in frames)
    assert 0 <= content["activeProfileIndex"] < len(content["profiles"])
    for profile in content["profiles"]:
        assert profile["type"] == "sampled"
        assert profile["unit"] in ("none", "nanoseconds")
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        assert all(0 <= number < len(frames) for sample in profile["samples"] for number in sample)
        assert list(accumulate(profile["weights"])) == sorted(accumulate(profile["weights"]))


def test_speedscope_holds_all_gpu_time(tmp_path: Path) -> None:
    origins = origins_in(write(tmp_path / "trace.json", {"traceEvents": EVENTS}))
    for by in BYS:
        content = json.loads(speedscope_text(origins, by, "molprof"))
        check_speedscope(content)
        totals = {profile["name"]: profile["endValue"] for profile in content["profiles"]}
        assert totals["GPU time, layers together"] == totals["GPU time, each layer"] == 33_000
        assert totals["launches"] == 5
    content = json.loads(speedscope_text(origins, "source", "molprof"))
    assert {"name": "main.py(3): main", "file": "main.py", "line": 3} in content["shared"]["frames"]
