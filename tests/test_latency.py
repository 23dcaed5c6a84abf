"""Latencies of requests that join a batch follow from the begin and end of steps, in every timed pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_trace

from molprof import api
from molprof.analysis.documents.figures import figure_values
from molprof.common.errors import TraceError

NAMES = ("queued_p50_ns", "first_token_p50_ns", "between_tokens_p50_ns", "request_p50_ns", "request_p99_ns")


def joined(*steps: int | None) -> dict[str, Any]:
    """The tiny run, whose second sequence gets its tokens in steps 1 and 2."""
    content = tiny_trace.document()
    first, second = content["molprof"]["molecules"]
    first["joined"], second["joined"] = steps
    second["step_tokens"] = [0, 1, 1]
    return content


def test_percentiles_of_requests(tmp_path: Path) -> None:
    """Set-up takes 15 ns, and the steps 30, 500 and 400 ns."""
    (tmp_path / "trace.json").write_text(json.dumps(joined(0, 1)))
    report = api.report(tmp_path / "trace.json")
    values = figure_values(report)
    assert [values[name] for name in NAMES] == [30, 295, 400, 945, None]  # of two requests the mean
    assert report.run is not None
    assert report.run.idle_row_steps == 1


@pytest.mark.parametrize("steps", [(None, None), (0, None)])
def test_batches_that_nothing_joins_have_none(tmp_path: Path, steps: tuple[int | None, int | None]) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(joined(*steps)))
    values = figure_values(api.report(tmp_path / "trace.json"))
    assert [values[name] for name in NAMES] == [None] * 5


def test_a_request_that_arrives_later(tmp_path: Path) -> None:
    """The second waits from the beginning of step 1, when the first has waited for 45 ns."""
    content = joined(0, 1)
    content["molprof"]["molecules"][1]["arrived"] = 1
    (tmp_path / "trace.json").write_text(json.dumps(content))
    values = figure_values(api.report(tmp_path / "trace.json"))
    assert [values[name] for name in NAMES] == [8, 272, 400, 922, None]


def test_a_request_that_joined_after_the_last_step(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(joined(0, 3)))
    with pytest.raises(TraceError, match="manifest: sequence 1 joined in step 3, of 3 steps of its batch"):
        api.report(tmp_path / "trace.json")
