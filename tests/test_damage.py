"""Damage that leaves a trace readable: what it makes uncertain is never called exact, and is named."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from certificate_data import certified, needs_traces, real, whole
from damage import DAMAGE, TRACES

from molprof import api


@needs_traces
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(tmp_path: Path, name: str, trace: str) -> None:
    damage, path = DAMAGE[name], tmp_path / "damaged.json"
    path.write_text(json.dumps(damage.do(real(trace), Random(1))))
    groups = {group.group: group for group in certified(api.report(path)).groups}
    undamaged = {group.group: group.verdict for group in certified(whole(trace)).groups}
    for group in damage.doubted:
        if undamaged[group] != "not_to_be_had":
            assert groups[group].verdict != "exact", group
            assert groups[group].doubts, group
    assert any(damage.text in (group.reason or "") for group in groups.values())
