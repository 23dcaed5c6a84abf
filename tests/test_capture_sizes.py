"""Presets at other sizes: captured and labelled, and of random weights no word on drift."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_trace
from page_data import render, report_of

from molprof import api
from molprof.analysis.compare import compare
from molprof.analysis.documents.figures import reports_of
from molprof.analysis.documents.plots import NotRecordedError, plot_svg
from molprof.analysis.figures import Report
from molprof.common.settings import CaptureSettings
from molprof.profiler.capture.capture import capture
from molprof.profiler.capture.passes import Progress
from molprof.profiler.recording.tracefile import OutputFile

MEANINGLESS = "drift: not meaningful, the weights are random"
WIDE = "layers=5,hidden=256,heads=8,kv_heads=4,head_dim=64"


def captured(folder: Path, name: str, size: str, weights: str) -> tuple[Report, tuple[str, ...], list[Progress]]:
    molecules = folder / "in.smi"
    molecules.write_text("C\n")
    seen: list[Progress] = []
    asked = CaptureSettings(
        "qwen", smiles=str(molecules), repeats=1, warmup=0, processor="qwen", device="cpu", size=size,
        weights=weights, max_new_tokens=8,
    )  # fmt: skip
    result = capture(asked, OutputFile(folder / name), seen.append)
    return api.report(result.path), result.notes, seen


def test_captures(tmp_path: Path) -> None:
    wide, notes, seen = captured(tmp_path, "wide.json", WIDE, "trained")
    assert notes == ()
    assert [(item.number, item.of) for item in seen if item.stage == "weights"] == [(layer, 5) for layer in range(1, 6)]
    random, notes, _ = captured(tmp_path, "random.json", "layers=1", "random")
    assert notes == ("the weights are random: times and launches are real, tokens and drift are not meaningful",)
    assert wide.run is not None
    assert random.run is not None
    assert (wide.run.setup.size, wide.run.setup.weights, wide.run.setup.label) == (WIDE, "trained", "qwen 43m lp:qwen")
    assert (random.run.setup.size, random.run.setup.weights) == ("layers=1", "random")
    assert random.run.setup.label == "qwen 30m random lp:qwen"
    lines = [line.split() for line in render(wide).splitlines()]
    assert ["model", "size", WIDE] in lines
    assert MEANINGLESS not in render(wide)
    assert MEANINGLESS in render(random)
    notes = " ".join(compare([random, wide]).notes)
    assert f"qwen 43m lp:qwen differs from qwen 30m random lp:qwen in model size ({WIDE}, not layers=1)" in notes


@pytest.fixture
def junk(tmp_path: Path) -> tuple[Report, Report]:
    """The same run with junk in it, of trained and of random weights."""
    contents = tiny_trace.document(), tiny_trace.document()
    for content, weights in zip(contents, ("trained", "random"), strict=True):
        content["molprof"]["model"] |= {"size": "0.6b", "weights": weights}
    return report_of(tmp_path, contents[0], "trained"), report_of(tmp_path, contents[1], "random")


def test_random_weights_have_no_drift_to_report(junk: tuple[Report, Report]) -> None:
    trained, random = junk
    assert [item.id for item in trained.findings if item.id == "junk_tokens"] == ["junk_tokens"]
    assert [item.id for item in random.findings if item.id == "junk_tokens"] == []
    for title in ("Junk blocks by counting rule", "Junk in coordinate blocks"):
        assert title in render(trained)
        assert title not in render(random)
    assert MEANINGLESS in render(random)
    assert "Junk and filler tokens" in plot_svg("drift", reports_of(trained))
    with pytest.raises(NotRecordedError, match="drift of trained weights: the weights are random"):
        plot_svg("drift", reports_of(random))
    found = compare([trained, random])
    assert found.labels == ("llama 0.6b lp:generic", "llama 0.6b random lp:generic")
    expected = "random weights, so tokens, junk and drift are not meaningful: llama 0.6b random lp:generic"
    assert expected in found.notes
    assert "Junk and filler tokens" in plot_svg("drift", reports_of(found))
