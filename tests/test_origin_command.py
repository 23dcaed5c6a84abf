"""`molprof report --by` as a process, and its files for speedscope."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

from conftest import Cli
from origin_trace import EVENTS, origins_in
from tiny_trace import cpu_document, write

from molprof.analysis.documents.origin import origin_document
from molprof.analysis.origin.tree import BYS, speedscope_text
from molprof.analysis.render import render


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


def test_speedscope_stacks_by_module(tmp_path: Path) -> None:
    origins = origins_in(write(tmp_path / "trace.json", {"traceEvents": EVENTS}))
    content = json.loads(speedscope_text(origins, "module", "molprof"))
    names = [frame["name"] for frame in content["shared"]["frames"]]
    together, each = (
        [[names[number] for number in sample] for sample in profile["samples"]] for profile in content["profiles"][:2]
    )
    assert together[:2] == [["Model", "Layer", "Linear", "aten::mm", "gemm"]] * 2
    assert each[1] == ["Model_0", "Layer_1", "Linear_1", "aten::mm", "gemm"]
    assert each[3:] == [
        ["Model_0", "(graph)", "in_graph"],
        ["Model_0", "(graph)", "in_graph"],
        ["(backward)", "aten::mm", "gemm"],
        ["(launch not recorded)", "alone"],
    ]


def test_every_format_of_a_trace_without_a_gpu(tmp_path: Path) -> None:
    origins = origins_in(write(tmp_path / "cpu.json", cpu_document()))
    for by in BYS[:3]:
        document = origin_document(origins, by)
        assert "records no GPU" in render(document, "table")
        tree = json.loads(render(document, "json"))["tree"]
        assert tree["inclusive"]["operator_ns"] == sum(node["inclusive"]["operator_ns"] for node in tree["children"])
        assert tree["inclusive"]["operator_ns"] > 0


def test_a_page_indents_every_level(tmp_path: Path) -> None:
    origins = origins_in(write(tmp_path / "trace.json", {"traceEvents": EVENTS}))
    page = render(origin_document(origins, "module"), "html")
    levels = ['<td data-value="Model_0">Model_0<', 'value="  Layer">Layer<', 'value="    Linear">&emsp;Linear<']
    assert all(level in page for level in levels)


def test_command(molprof: Cli, tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"traceEvents": EVENTS})
    shown = molprof("report", "a.json", "--by", "module")
    assert shown.returncode == 0, shown.stderr
    result = molprof("report", "a.json", "--by", "source", "-o", "a.speedscope.json")
    assert result.stderr == "wrote a.speedscope.json\n"
    check_speedscope(json.loads((tmp_path / "a.speedscope.json").read_text()))
    data = json.loads(molprof("report", "a.json", "--by", "module", "--format", "json").stdout)
    assert data["tree"]["inclusive"]["gpu_ns"] == 33_000
    assert data["without_call"] == {"name": "(launch not recorded)", "count": 1, "gpu_ns": 7_000}
    molprof("report", "a.json", "a.json", "--by", "kernel", "--format", "csv", "-o", "out")
    wrong = molprof("report", "a.json", "-o", "b.speedscope.json")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 2)
    wrong = molprof("report", "a.json", "--by", "module", "--fail-if", "launches>1")
    assert wrong.returncode == 2
    assert "--by takes no --fail-if" in wrong.stderr
