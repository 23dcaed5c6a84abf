"""The second pass: writes the events that are kept as they are in the file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, BinaryIO

import msgspec
import numpy as np

from molprof.analysis.reader.events import FLOW_PHASES
from molprof.analysis.reader.part import Part
from molprof.analysis.trim.plan import Plan
from molprof.analysis.trim.scan import ANNOTATION, GPU_CATEGORIES, Block, flow_key

_SEQUENCE, _TOKEN = "molprof.sequence", "molprof.token"
_GPU_ANNOTATION = "gpu_user_annotation"
_OWN_ANNOTATION = "molprof."
# Phases of events that start and end at a moment of their own.
_TIMED = frozenset("XiIRC")


class Filter:
    """Writes the events that the plan keeps, block by block.

    kept: complete events written, by category. unplaced: events with a separate begin and end, all of which are kept.
    """

    def __init__(self, plan: Plan, out: BinaryIO) -> None:
        self.kept: Counter[str] = Counter()
        self.unplaced = 0
        self._plan = plan
        self._out = out
        self._before = b'{"traceEvents": [\n'

    def read(self, text: bytes) -> Part:
        """Takes a block of events, a JSON array."""
        block = Block(text)
        kept = self._kept(block)
        if kept:
            self._out.write(self._before + b",\n".join(kept))
            self._before = b",\n"
        return Part(events=len(block.events))

    def close(self, keys: Mapping[str, Any]) -> None:
        """Ends the events and writes `keys` behind them."""
        if self._before != b",\n":  # nothing was kept
            self._out.write(self._before)
        self._out.write(b"\n]")
        for key, value in keys.items():
            self._out.write(f",\n{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}".encode())
        self._out.write(b"\n}\n")

    def _kept(self, block: Block) -> list[bytes]:
        plan = self._plan
        events = block.events
        starts = block.starts_ns()
        ends = starts + block.durations_ns()
        numbers = np.array([-1 if event.correlation is None else event.correlation for event in events], dtype=np.int64)
        in_time, in_phases = plan.stretch.in_time(starts), plan.stretch.holds(starts)
        work = plan.keeps_work(numbers, starts)
        kept: list[bytes] = []
        for place, event in enumerate(events):
            raw = bytes(block.texts[place])
            if event.ph == "M":
                keep = True
            elif event.ph in FLOW_PHASES:
                keep = bool(plan.keeps_flows(np.array([flow_key(event)]))[0])
            elif event.ph not in _TIMED:
                keep = True
                self.unplaced += 1
            elif event.cat == _SEQUENCE:
                raw, keep = self._shortened(raw, int(starts[place]), int(ends[place])), True
            elif event.cat == _TOKEN or (event.cat == ANNOTATION and (event.name or "").startswith(_OWN_ANNOTATION)):
                keep = bool(in_time[place])
            elif not plan.categories.wants(event.cat):
                keep = False
            elif event.cat in GPU_CATEGORIES:
                keep = bool(work[place])
            elif event.cat == _GPU_ANNOTATION:  # spans GPU work of what it annotates on the CPU
                keep = plan.work_start_ns <= starts[place] and ends[place] <= plan.work_end_ns
            else:
                keep = bool(in_phases[place])
            if keep:
                kept.append(raw)
                if event.ph == "X":
                    self.kept[str(event.cat)] += 1
        return kept

    def _shortened(self, raw: bytes, start_ns: int, end_ns: int) -> bytes:
        """A sequence's slice, cut to the recorded steps that remain."""
        stretch = self._plan.stretch
        start = min(max(start_ns, stretch.start_ns), stretch.end_ns)
        end = max(start, min(end_ns, stretch.end_ns))
        event: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        event["ts"] = msgspec.Raw(_us(start))
        event["dur"] = msgspec.Raw(_us(end - start))
        return msgspec.json.encode(event)


def _us(ns: int) -> bytes:
    return b"%d.%03d" % divmod(ns, 1000)
