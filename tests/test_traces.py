"""The recorded traces: small, whole, listed with their command, and the case study says what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_study import PAGES

from molprof import api

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "traces"
TRACES = sorted(FOLDER.glob("*.json.gz"))
MOST_BYTES, MOST_BYTES_OF_CPU = 3_000_000, 20_000_000


def test_there_are_runs_of_both_presets_with_and_without_a_processor() -> None:
    names = {path.name for path in TRACES}
    assert {f"cpu-{name}.json.gz" for name in ("llama", "llama-generic", "llama-grammar")} <= names
    assert {f"cpu-{name}.json.gz" for name in ("qwen", "qwen-qwen", "qwen-generic", "qwen-grammar")} <= names


def test_they_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in TRACES}
    assert max(sizes.values()) <= MOST_BYTES, sizes
    assert sum(size for name, size in sizes.items() if name.startswith("cpu-")) <= MOST_BYTES_OF_CPU


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_each_is_whole_and_its_sums_hold(path: Path) -> None:
    report = api.report(path, cached=True)  # as the pages read it
    assert report.run is not None
    assert report.trace.lost_events == 0
    assert [check for check in report.checks if not check.holds] == []


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_what_the_traces_say(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == PAGES[name](ROOT, False), "run python docs/case_study.py"
