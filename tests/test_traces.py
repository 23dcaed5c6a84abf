"""The recorded traces are small, and whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from molprof import api

ROOT = Path(__file__).parent.parent
# Beside a run whose graphs were captured lies the trace of their capture.
TRACES = sorted(path for path in (ROOT / "traces").glob("*.json.gz") if ".graphs." not in path.name)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_each_is_small_and_whole_and_its_sums_hold(path: Path) -> None:
    assert path.stat().st_size <= 3_000_000
    report = api.report(path, cached=True)  # as the pages read it
    assert report.run is not None
    assert report.trace.lost_events == 0
    assert all(check.holds for check in report.checks)
