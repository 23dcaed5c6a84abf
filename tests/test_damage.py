"""Damage that leaves a trace readable: what it makes uncertain is never called exact, and is named."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from certificate_data import certified, needs_traces, real, whole
from damage import DAMAGE, TRACES, cut_out

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


@needs_traces
@pytest.mark.parametrize("trace", ["pairs/h100_bert_small", "pairs/mi300_vit_base"])
def test_what_ran_around_a_step_that_was_cut_out_is_not_idle(tmp_path: Path, trace: str) -> None:
    path = tmp_path / "step.json"
    path.write_text(json.dumps(cut_out(real(trace))))
    report = api.report(path)
    assert report.trace.cut_out
    assert not whole(trace).trace.cut_out
    (parts,) = (finding.figures for finding in report.findings if finding.id == "limits")
    assert sum(parts.values()) == sum(device.span_ns for device in report.devices.values())
