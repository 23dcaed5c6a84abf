"""A trace file into the engine, with proof that nothing was lost on the way."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molprof.analysis.engine import Engine
from molprof.analysis.reader.feeding import feed_events
from molprof.analysis.reader.survey import STACK_CATEGORY, Survey, survey
from molprof.analysis.reader.text import plain_text
from molprof.errors import EngineError, TraceError


@dataclass(frozen=True)
class TraceInfo:
    """What is known of a loaded trace besides what SQL shows.

    path, bytes: the file and its size as it is stored. events_by_category: complete events (ph X)
    in the file by category, 'None' for those without. lost_events: slices that the engine should
    show and does not, counted by querying it. lanes: slices that needed a lane of their own.
    complete: the whole file could be read; else problem says where it is damaged. stacks: python
    stacks are in the engine (they are in events_by_category in any case). unread_events: events of
    kinds that the trace processor does not know. origin_ns: file time = SQL time + origin_ns, in
    exact ns. manifest: the `molprof` key or None. devices: torch's `deviceProperties`, empty when
    not recorded. keys: all other top-level keys, as parsed.
    """

    path: str
    bytes: int
    events_by_category: dict[str, int]
    lost_events: int
    lanes: int
    complete: bool
    problem: str | None
    stacks: bool
    unread_events: int
    origin_ns: int
    manifest: dict[str, Any] | None
    devices: list[dict[str, Any]]
    keys: dict[str, Any]


def load_trace(
    path: str | os.PathLike[str], engine: Engine, *, stacks: bool = True, partial: bool = False
) -> TraceInfo:
    """Feeds a Chrome-format trace (.json, .json.gz, by content) to an engine that holds none yet.

    stacks: keep python stacks (category `python_function`), often most of a trace's events.
    partial: of a damaged file, take what is whole before the damage.

    The file is read twice, in blocks: times and tracks of all events must be known before the
    first can be placed. Memory is 24 bytes per event, and as much again for a moment,
    besides what the engine holds.

    Raises TraceError (what is wrong and at which byte), EngineError.
    """
    file = Path(path)
    if file.is_dir():
        raise TraceError(f"{file} is a directory", hint="give the trace file in it")
    found = survey(file, stacks, partial)
    manifest = found.keys.pop("molprof", None)
    if manifest is not None and not isinstance(manifest, dict):
        raise TraceError(f"{file}: the key 'molprof' is {type(manifest).__name__}, not an object")
    devices = found.keys.get("deviceProperties")
    feed_events(file, engine, found, stacks)
    return TraceInfo(
        path=str(file),
        bytes=file.stat().st_size,
        events_by_category=found.events_by_category,
        lost_events=_lost_events(engine, found, file),
        lanes=int((found.lanes > 0).sum()),
        complete=found.problem is None,
        problem=None if found.problem is None else str(found.problem),
        stacks=stacks or STACK_CATEGORY not in found.events_by_category,
        unread_events=found.unread_events,
        origin_ns=found.origin_ns,
        manifest=manifest,
        devices=[item for item in devices if isinstance(item, dict)] if isinstance(devices, list) else [],
        keys=found.keys,
    )


def _lost_events(engine: Engine, found: Survey, file: Path) -> int:
    """Slices that are missing in the engine; raises EngineError when one that is there was changed."""
    rows = engine.query("SELECT category, COUNT(*) AS slices, SUM(MAX(dur, 0)) AS dur_ns FROM slice GROUP BY category")
    shown: Counter[str] = Counter()
    for category, count in zip(rows["category"].tolist(), rows["slices"].tolist(), strict=True):
        shown[_shown_category(category)] += count
    expected: Counter[str] = Counter()
    for category, count in found.expected_slices.items():
        expected[_shown_category(category)] += count
    if surplus := shown - expected:
        raise EngineError(f"{file}: the engine shows slices that the file does not have: {dict(surplus)}")
    lost = (expected - shown).total()
    duration_ns = sum(rows["dur_ns"].tolist())
    if not lost and not found.has_open_slices and duration_ns != int(found.durations_ns.sum()):
        raise EngineError(
            f"{file}: slices last {duration_ns} ns in the engine, {found.durations_ns.sum()} ns in the file"
        )
    return lost


def _shown_category(category: str | None) -> str:
    """The engine has no empty text: '' reads as NULL."""
    return plain_text(category) if category else "None"
