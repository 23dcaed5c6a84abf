"""A trace in, a smaller one out, in bounded memory: one pass finds what belongs together, a second writes what is kept.

Each event belongs to the time at which it starts, GPU work to that of its call. Events are written as they were read.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from msgspec import to_builtins

from molprof.analysis.frame import read_frame
from molprof.analysis.reader.categories import fed_category
from molprof.analysis.reader.document import Document
from molprof.analysis.reader.events import ABSENT, FLOW_PHASES, STACK_CATEGORY
from molprof.analysis.reader.load import MANIFEST_HINT
from molprof.analysis.reader.open import open_trace
from molprof.analysis.reader.part import Part, or_zero, times_ns
from molprof.analysis.reader.pieces import Pieces
from molprof.analysis.reader.source import open_source
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.errors import TraceError, UsageError
from molprof.common.files import replacing_packed
from molprof.common.manifest import KEY, TRIMMED_KEY, Trimmed, from_json, trimmed_from_json
from molprof.common.text import whole_json

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
ANNOTATION = "user_annotation"
# Phases of events that start and end at a moment of their own.
_TIMED = frozenset("XiIRC")
_MAX_NUMBER = 2**63  # of an int64
Array = np.ndarray


@dataclass(frozen=True)
class Wish:
    """What to keep; by default all."""

    steps: tuple[int, int] | None = None  # first and last number
    batch: int | None = None  # of the steps; None: the first that is recorded
    phases: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()  # the only ones
    without: tuple[str, ...] = ()  # categories left out
    start_ns: int | None = None  # from the earliest event of the trace
    end_ns: int | None = None  # not in it

    def wants(self, category: str | int | None) -> bool:
        """Whether events of the category are among those to keep."""
        return str(category) not in self.without and (not self.categories or str(category) in self.categories)


@dataclass(frozen=True)
class Outcome:
    before: int  # complete events
    after: int
    unplaced: int  # events with a separate begin and end, all of which were kept


def trim(path: Path, output: Path, wish: Wish, force: bool = True) -> Outcome:
    """Writes what `wish` keeps of the trace at `path`, whole or not at all; gzip if `output` ends in `.gz`.

    Without `force`, a file that appears at `output` meanwhile is kept: see `replacing`.
    Reads the trace twice. Needs about 100 bytes of memory per call, piece of GPU work, flow and annotation.
    Raises TraceError, or UsageError where the steps or phases do not exist or nothing would be left.
    """
    try:
        found = _Scan(wish)
        _pass_over(path, found.read)
    except TraceError as problem:
        if "--partial" not in (problem.hint or ""):
            raise
        raise TraceError(str(problem), hint="copy or record the file again: only whole traces are trimmed") from problem
    steps, phases = _annotated(found, path)
    chosen = _chosen(path, steps, wish)
    plan = _Plan(found, path, chosen, phases, wish)
    last_ms = (found.last_ns - (found.origin_ns or 0)) / 1e6
    nothing = UsageError(f"no event of {path} would be left", hint=f"its events start within {last_ms:.3f} ms")
    if plan.start_ns > found.last_ns:  # a sequence's slice, which is cut, would remain
        raise nothing
    with replacing_packed(output, force) as out:
        keep = _Filter(plan, out)
        keys = _pass_over(path, keep.read)
        if not keep.kept:
            raise nothing
        trimmed = _record(path, wish, chosen, trimmed_from_json(keys.get(TRIMMED_KEY)))
        kept = [step for step in steps if plan.start_ns <= step.start_ns < plan.end_ns]
        if isinstance(keys.get(KEY), dict) and len(kept) < len(steps):
            keys[KEY] = _trimmed_manifest(path, keys[KEY], kept)
        keep.close({**keys, "traceName": output.name, TRIMMED_KEY: to_builtins(trimmed)})
    return Outcome(sum(found.events_by_category.values()), keep.kept, keep.unplaced)


class RecordedStep(NamedTuple):
    """A step of any trace: its number, and its batch if molprof captured it."""

    start_ns: int
    dur_ns: int
    number: int
    batch: int | None


def read_recorded_steps(engine: TraceProcessor, origin_ns: int = 0) -> list[RecordedStep]:
    """All steps in order of start, their times since the trace's earliest event and `origin_ns`."""
    rows = read_frame(engine, "steps", "ts dur number batch").rows()
    return [
        RecordedStep(origin_ns + ts, dur, place if number is None else number, batch)
        for place, (ts, dur, number, batch) in enumerate(rows)
    ]


def _annotated(found: _Scan, path: Path) -> tuple[list[RecordedStep], list[tuple[int, int, str]]]:
    """Steps, and start, end and name of phases, as the SQL package finds them; times as in the file."""
    with tempfile.TemporaryDirectory(prefix="molprof-trim-") as folder:
        annotations = Path(folder, "annotations.json")
        with annotations.open("wb") as file:
            file.writelines((b'{"traceEvents":[', b",\n".join(found.annotations), b"]}"))
        with open_trace(annotations, all_args=False) as (engine, info):
            steps = read_recorded_steps(engine, info.origin_ns)
            _, phases = query_rows(engine, Query("phases", "SELECT ts, ts + dur, phase FROM molprof_phase ORDER BY ts"))
            origin = info.origin_ns
    return steps, [(start + origin, end + origin, name) for start, end, name in phases]


def _chosen(path: Path, steps: list[RecordedStep], wish: Wish) -> list[RecordedStep]:
    """The steps that are asked for by number."""
    if wish.steps is None:
        return []
    if not steps:
        raise UsageError(f"{path} has no annotated steps", hint="give a stretch of time with --from and --to")
    batch = steps[0].batch if wish.batch is None else wish.batch
    known = [step for step in steps if step.batch == batch]
    first, last = wish.steps
    chosen = [step for step in known if first <= step.number <= last]
    if not chosen:
        of = "" if batch is None else f" of batch {batch}"
        there = f"{min(step.number for step in known)}:{max(step.number for step in known)}" if known else "none"
        raise UsageError(f"{path} has no recorded steps {first}:{last}{of}", hint=f"those recorded are {there}")
    return chosen


def _record(path: Path, wish: Wish, chosen: list[RecordedStep], earlier: Trimmed | None) -> Trimmed:
    """What the new file records about the trim."""
    # No figure uses Python stacks.
    whole = not (wish.phases or wish.categories or set(wish.without) - {STACK_CATEGORY})
    whole = whole and wish.start_ns is None and wish.end_ns is None
    wished = {name: getattr(wish, name) for name in ("phases", "categories", "without", "start_ns", "end_ns")}
    return Trimmed(
        source=path.name,
        whole_steps=whole and (earlier is None or earlier.whole_steps),
        batch=chosen[0].batch if chosen else None,
        first_step=chosen[0].number if chosen else None,
        last_step=chosen[-1].number if chosen else None,
        **wished,
    )


def _trimmed_manifest(path: Path, raw: dict[str, Any], kept: Sequence[RecordedStep]) -> dict[str, Any]:
    """The manifest with window and step times of the steps `kept`; all else is of the whole run. Raises TraceError."""
    try:
        manifest = from_json(raw)
    except TraceError as error:
        raise TraceError(f"{path}: {error}", hint=error.hint or MANIFEST_HINT) from error
    steps = [(step.batch, step.number) for step in kept if step.batch is not None]
    window = raw["window"]
    if len({batch for batch, _ in steps}) == 1:
        numbers = [number for _, number in steps]
        window = {"full": False, "batch": steps[0][0], "first_step": min(numbers), "last_step": max(numbers)}
    same = [
        sum(repeat.steps_ns[batch][step] for batch, step in steps)
        for repeat in manifest.timings.repeats
        if all(batch < len(repeat.steps_ns) and step < len(repeat.steps_ns[batch]) for batch, step in steps)
    ]
    timings = {
        **raw["timings"],
        "profiled_steps_ns": sum(step.dur_ns for step in kept),
        "unprofiled_steps_ns": round(median(same)) if same else 0,
        "profiled_wall_ns": None,
    }
    return {**raw, "window": window, "timings": timings}


class _Args(msgspec.Struct, gc=False):
    correlation: Any = None


class _Event(msgspec.Struct, gc=False):
    ph: str | None = None
    cat: str | int | None = None
    name: str | None = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    args: _Args | None = None

    @property
    def read(self) -> str | None:
        """The category that SQL reads."""
        return fed_category(None if self.cat is None else str(self.cat), self.ph, self.name)

    @property
    def correlation(self) -> int:
        """The number that a call and the GPU work that it started have in common; -1 for none."""
        number = None if self.args is None else self.args.correlation
        return number if isinstance(number, int) and 0 <= number < _MAX_NUMBER else -1

    @property
    def flow_correlation(self) -> int:
        """The same of a flow from a call to its GPU work; -1 of any other flow."""
        digits = bytes(self.id)
        return int(digits) if self.cat == "ac2g" and digits.isdigit() and int(digits) < _MAX_NUMBER else -1


_decode_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_events = msgspec.json.Decoder(list[_Event]).decode


class _Block:
    """A block of events: each as text, and decoded as far as needed."""

    def __init__(self, text: bytes) -> None:
        if not text.isascii():
            text.decode()  # the decoder does not check what is copied
        self.texts = _decode_texts(text)
        self.events = _decode_events(text)
        # ns, int64; 0 for events without a time, such as metadata.
        self.starts = times_ns(self.events, or_zero([event.ts for event in self.events]), "ts")
        self.ends = self.starts + times_ns(self.events, or_zero([event.dur for event in self.events]), "dur")


def _flow_key(event: Any) -> int:
    """What the ends of one flow have in common, as a number of 63 bits."""
    text = f"{event.cat}\0{event.name}\0".encode() + bytes(event.id)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class _Scan:
    """What the first pass has found. Times are ns as in the file."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self.origin_ns: int | None = None  # start of the earliest event
        self.last_ns = 0  # start of the latest
        self.annotations: list[bytes] = []  # annotations and metadata, as text
        self.events_by_category: Counter[str] = Counter()  # complete events
        # Calls and work with a correlation: it, start, end, whether the category is wanted. Flows, each end: key,
        # start, correlation or -1.
        self._tables = {"calls": array("q"), "work": array("q"), "flows": array("q")}

    def read(self, text: bytes) -> Part:
        """Takes a block of events, a JSON array."""
        block = _Block(text)
        starts, ends = block.starts, block.ends
        timed = np.array([event.ph != "M" for event in block.events], dtype=np.bool_)
        if timed.any():
            first = int(starts[timed].min())
            self.origin_ns = first if self.origin_ns is None else min(first, self.origin_ns)
            self.last_ns = max(self.last_ns, int(starts[timed].max()))
        for place, (event, start, end) in enumerate(zip(block.events, starts.tolist(), ends.tolist(), strict=True)):
            if event.ph == "M":
                self.annotations.append(bytes(block.texts[place]))
            elif event.ph in FLOW_PHASES:
                self._tables["flows"].extend((_flow_key(event), start, event.flow_correlation))
            elif event.ph == "X":
                self.events_by_category[str(event.cat)] += 1
                if event.read == ANNOTATION:
                    self.annotations.append(bytes(block.texts[place]))
                if (number := event.correlation) >= 0:
                    target = "work" if event.read in GPU_CATEGORIES else "calls"
                    self._tables[target].extend((number, start, end, self._wish.wants(event.cat)))
        return Part(events=len(block.events))

    def table(self, name: str) -> Array:
        """int64, a row per event."""
        return np.array(self._tables[name], dtype=np.int64).reshape(-1, 3 if name == "flows" else 4)


def _pass_over(path: Path, read: Any) -> dict[str, Any]:
    """Gives every block of events to `read`; returns the other top-level keys. Raises TraceError."""
    with open_source(path) as source:
        document = Document(source.name, source.blocks, Pieces(read), partial=False)
        deque(document.parts(), maxlen=0)
        return document.keys


class _Plan:
    """What is kept: the events of a stretch of time, ns as in the file, and of phases, with the GPU work of its calls.

    Raises UsageError for a phase or category that is not recorded.
    """

    def __init__(
        self, found: _Scan, path: Path, steps: list[RecordedStep], phases: list[tuple[int, int, str]], wish: Wish
    ) -> None:
        self.wish = wish
        origin = found.origin_ns or 0
        self.start_ns = origin + (wish.start_ns or 0)
        self.end_ns = _MAX_NUMBER - 1 if wish.end_ns is None else origin + wish.end_ns  # not in it
        if steps:
            self.start_ns = max(self.start_ns, min(step.start_ns for step in steps))
            self.end_ns = min(self.end_ns, max(step.start_ns + step.dur_ns for step in steps))
        names = sorted({name for _, _, name in phases})
        if unknown := [name for name in wish.phases if name not in names]:
            hint = f"those recorded are {', '.join(names)}" if names else "only molprof's own traces have phases"
            raise UsageError(f"{path} has no recorded phase {unknown[0]!r}", hint=hint)
        # Sorted and disjoint.
        self._phases = np.array([phase[:2] for phase in phases if phase[2] in wish.phases], np.int64).reshape(-1, 2)
        known = sorted(found.events_by_category)
        if unknown := [name for name in (*wish.categories, *wish.without) if name not in known]:
            raise UsageError(f"{path} has no category {unknown[0]!r}", hint=f"it has {', '.join(known)}")
        calls, work, flows = (found.table(name) for name in ("calls", "work", "flows"))
        in_time = self.holds(calls[:, 1])
        # Correlations of GPU work whose call is recorded, and of calls that are kept.
        self._linked = np.intersect1d(calls[:, 0], work[:, 0])
        self._started = np.unique(calls[in_time, 0])
        kept_work = self.keeps_work(work[:, 0], work[:, 1])
        # A flow from a call to what it started has both ends where both are kept; others bind operators.
        both = np.intersect1d(
            calls[in_time & calls[:, 3].astype(bool), 0], work[kept_work & work[:, 3].astype(bool), 0]
        )
        operators = self.holds(flows[:, 1]) & wish.wants("cpu_op")
        remains = np.where(flows[:, 2] >= 0, _among(flows[:, 2], both), operators)
        self.flows = np.setdiff1d(flows[:, 0], flows[~remains, 0])  # keys of those all of whose ends are kept
        self.work_start_ns = int(work[kept_work, 1].min(initial=self.end_ns))
        self.work_end_ns = int(work[kept_work, 2].max(initial=self.start_ns))

    def in_time(self, starts_ns: Array) -> Array:
        """Which events start in it, in whatever phase."""
        return np.asarray((starts_ns >= self.start_ns) & (starts_ns < self.end_ns))

    def holds(self, starts_ns: Array) -> Array:
        """Which events start in it, and in a phase that is kept."""
        inside = self.in_time(starts_ns)
        if not self.wish.phases:
            return inside
        begins, ends = self._phases.T
        place = np.searchsorted(begins, starts_ns, side="right") - 1
        return np.asarray(inside & (place >= 0) & (starts_ns < ends[place]))

    def keeps_work(self, numbers: Array, starts_ns: Array) -> Array:
        """Which GPU work is kept: by its call where that is recorded, else by its own start; -1 for no correlation."""
        return np.where(_among(numbers, self._linked), _among(numbers, self._started), self.holds(starts_ns))


def _among(values: Array, sorted_values: Array) -> Array:
    """Which values are among others, which are sorted."""
    if not len(sorted_values):
        return np.zeros(len(values), dtype=np.bool_)
    place = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return np.asarray(sorted_values[place] == values)


class _Filter:
    """Writes the events that the plan keeps, block by block."""

    def __init__(self, plan: _Plan, out: BinaryIO) -> None:
        self.kept = 0  # complete events written
        self.unplaced = 0  # events with a separate begin and end, all of which are kept
        self._plan = plan
        self._out = out
        self._before = b'{"traceEvents": [\n'

    def read(self, text: bytes) -> Part:
        """Takes a block of events, a JSON array."""
        block = _Block(text)
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
            self._out.write(whole_json(f",\n{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}").encode())
        self._out.write(b"\n}\n")

    def _kept(self, block: _Block) -> list[bytes]:
        plan = self._plan
        events = block.events
        starts, ends = block.starts, block.ends
        numbers = np.array([event.correlation for event in events], dtype=np.int64)
        in_time, in_phases = plan.in_time(starts), plan.holds(starts)
        work = plan.keeps_work(numbers, starts)
        kept: list[bytes] = []
        for place, event in enumerate(events):
            raw = bytes(block.texts[place])
            if event.ph in FLOW_PHASES:
                keep = bool(_among(np.array([_flow_key(event)]), plan.flows)[0])
            elif event.ph not in _TIMED:
                keep = True
                self.unplaced += event.ph != "M"
            elif event.cat == "molprof.sequence":
                raw, keep = self._shortened(raw, int(starts[place]), int(ends[place])), True
            elif event.cat == "molprof.token" or (event.cat == ANNOTATION and str(event.name).startswith("molprof.")):
                keep = bool(in_time[place])
            elif not plan.wish.wants(event.cat):
                keep = False
            elif event.read in GPU_CATEGORIES:
                keep = bool(work[place])
            elif event.read == "gpu_user_annotation":  # spans GPU work of what it annotates on the CPU
                keep = plan.work_start_ns <= starts[place] and ends[place] <= plan.work_end_ns
            else:
                keep = bool(in_phases[place])
            if keep:
                kept.append(raw)
                self.kept += event.ph == "X"
        return kept

    def _shortened(self, raw: bytes, start_ns: int, end_ns: int) -> bytes:
        """A sequence's slice, cut to the recorded steps that remain."""
        start = min(max(start_ns, self._plan.start_ns), self._plan.end_ns)
        end = max(start, min(end_ns, self._plan.end_ns))
        event: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        for name, ns in (("ts", start), ("dur", end - start)):
            event[name] = msgspec.Raw(b"%d.%03d" % divmod(ns, 1000))
        return msgspec.json.encode(event)
