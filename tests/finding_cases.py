"""Cases of findings: a trace in which a rule fires, with its figures and gain, and traces in which it does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny_trace
from decoding_trace import Event

from molprof import api
from molprof.analysis.figures.model import Finding

_findings: dict[str, dict[str, Finding]] = {}


def findings(tmp_path: Path, content: dict[str, Any]) -> dict[str, Finding]:
    """By id."""
    if (key := repr(content)) not in _findings:
        found = api.report(tiny_trace.write(tmp_path / "trace.json.gz", content)).findings
        assert [item.note for item in found] == sorted(item.note for item in found)
        assert all(0 <= item.gain.low <= item.gain.high <= 1 for item in found if item.gain is not None)
        assert all(item.figures and item.evidence and item.explanation and item.fix for item in found)
        _findings[key] = {item.id: item for item in found}
    return _findings[key]


def plain(*events: Event | list[Event]) -> dict[str, Any]:
    """A trace of another program."""
    return {"traceEvents": [item for event in events for item in (event if isinstance(event, list) else [event])]}


@dataclass(frozen=True)
class Case:
    """A trace in which a rule fires: its gain, some of its figures, words of its evidence or fix; where it does not."""

    rule: str
    content: dict[str, Any]
    gain: float | None
    figures: dict[str, float]
    words: tuple[str, ...] = ()
    quiet: tuple[dict[str, Any], ...] = ()

    def check(self, tmp_path: Path) -> None:
        every = findings(tmp_path, self.content)
        found = every[self.rule]
        assert self.gain is None or found.gain_ratio == pytest.approx(self.gain)
        assert found.figures.items() >= self.figures.items()
        assert len(self.figures) in (0, 1, 2, len(found.figures)), sorted(found.figures)
        assert all(words in found.evidence or words in found.fix for words in self.words)
        with api.load(tiny_trace.write(tmp_path / "trace.json.gz", self.content)) as trace:
            for item in every.values():
                assert trace.sql(item.query).rows(), f"the query of {item.id} shows nothing"
        for quiet in self.quiet:
            assert self.rule not in findings(tmp_path, quiet)
