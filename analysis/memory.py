"""Memory of a trace: use over time by category and allocator; its growth; the need of a batch of N rows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from msgspec import to_builtins

from molprof.analysis.frame import Frame, read_frame
from molprof.analysis.reader import TraceInfo
from molprof.analysis.roofline.memory import Needs, needs_of
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import EngineError, TraceError
from molprof.common.manifest import Manifest, from_json
from molprof.common.values import class_names, counted

RECORD_MEMORY = "molprof capture --memory and torch.profiler.profile(profile_memory=True) record them"
# Categories, beside those of `molprof_memory_event`.
WEIGHTS, BEFORE, UNEXPLAINED = "weights", "before the recording", "not explained"
MEANINGS = {
    WEIGHTS: "parameters, by the model's size",
    "cache": "keys and values",
    "activations": "results of operators in the model",
    "logits": "scores of tokens, and what is made of them",
    "masks": "of attention and of constraints",
    BEFORE: "lived when the recording began, and was not freed up to then: weights, cache and inputs",
    UNEXPLAINED: "in the allocator's totals, but in no event",
}
HOST = "cpu"
# torch's allocators of GPUs round sizes up to a multiple of so many bytes.
_BLOCK_BYTES = 512
_MOST_BYTES = 1 << 60  # that memory events may allocate and free together
_BATCHES = tuple(1 << power for power in range(9))


@dataclass(frozen=True)
class AllocationSite:
    """Allocations of a phase, module or operator, with all inside it."""

    path: tuple[str, ...]  # the outermost first; modules of one class count together
    allocations: int
    bytes: int
    peak_bytes: int  # of these, live at the peak
    left_bytes: int  # and at the end


@dataclass(frozen=True)
class MemoryTimeline:
    """The memory of one device over time."""

    device: str  # its number, or cpu
    name: str | None
    capacity_bytes: int | None
    ts: np.ndarray  # of each event, int64, ns
    live: dict[str, np.ndarray]  # by category, bytes after each event, int64; they add up to what torch recorded
    reserved_bytes: int  # the most that torch held
    unexplained: int  # events that do not continue the recorded total
    places: tuple[AllocationSite, ...]  # parents before what is inside them
    growth: dict[str, int]  # by category, from the start of the second decode step to that of the last
    growth_steps: int  # the steps between; 0: fewer than three are recorded
    growth_tokens: int | None  # chosen meanwhile; None where steps do not tell

    @property
    def total(self) -> np.ndarray:
        """Bytes in use after each event."""
        return np.asarray(np.sum(list(self.live.values()), axis=0))

    @property
    def peak(self) -> int:
        """The event after which most bytes are in use."""
        return int(self.total.argmax())

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes in use at once."""
        return int(self.total[self.peak])

    @property
    def at_peak(self) -> dict[str, int]:
        """Bytes by category at the peak, the most first."""
        sizes = {name: int(live[self.peak]) for name, live in self.live.items()}
        return dict(sorted(((name, size) for name, size in sizes.items() if size), key=lambda item: -item[1]))


@dataclass(frozen=True)
class Model:
    """Memory needs of a captured model by its configuration, and the limit that it was given."""

    needs: Needs
    tokens: int  # of the longest sequence, prompt included
    rows: int  # of the largest batch


@dataclass(frozen=True)
class BatchMemory:
    """Memory of a batch of so many rows, bytes; `rows` counts recorded batches where their rows are not known."""

    rows: int
    fixed: int  # weights, or what was there before
    cache: int | None
    logits: int | None
    rest: int | None  # activations and masks, as recorded at the peak; None: no memory events

    @property
    def total(self) -> int:
        """The bytes of a batch."""
        return self.fixed + (self.cache or 0) + (self.logits or 0) + (self.rest or 0)


@dataclass(frozen=True)
class Memory:
    """The memory of a trace: of the device with the most complete record, and of the model."""

    info: TraceInfo
    courses: tuple[MemoryTimeline, ...]  # GPUs first, the highest peak first; empty: no memory events
    model: Model | None
    measured_bytes: int | None  # the peak of the timed passes of a capture
    measured_of: str | None
    capacity_bytes: int | None  # of the device
    notes: tuple[str, ...] = ()

    @property
    def batches(self) -> tuple[BatchMemory, ...]:
        """Batches by rows; of a foreign trace by multiples of the recorded one. Empty if a host's start is unknown."""
        course = self.courses[0] if self.courses else None
        at_peak = course.at_peak if course else {}
        if (model := self.model) is not None:
            needs, counts = model.needs, sorted({*_BATCHES, model.rows})
            moved = sum(at_peak.get(name, 0) for name in ("activations", "masks"))
            logits = max(sum(needs.logits_of_row), at_peak.get("logits", 0) // model.rows)
            return tuple(
                BatchMemory(
                    count,
                    needs.weights,
                    None if needs.cache_of_token is None else count * model.tokens * needs.cache_of_token,
                    count * logits,
                    moved * count // model.rows if course else None,
                )
                for count in counts
            )
        if course is None or course.device == HOST:
            return ()
        before = at_peak.get(BEFORE, 0) + at_peak.get(UNEXPLAINED, 0)
        cache, logits = (at_peak.get(name, 0) for name in ("cache", "logits"))
        rest = course.peak_bytes - before - cache - logits
        return tuple(BatchMemory(count, before, count * cache, count * logits, count * rest) for count in _BATCHES)

    @property
    def most_rows(self) -> int | None:
        """The most rows that fit into the device's memory; None where that is not known."""
        if self.capacity_bytes is None or not self.batches:
            return None
        one = next(batch for batch in self.batches if batch.rows == 1)
        each = one.total - one.fixed
        return (self.capacity_bytes - one.fixed) // each if each > 0 else None


def read_memory(engine: TraceProcessor, info: TraceInfo) -> Memory:
    """Return the memory of a trace that was loaded with Python stacks and all arguments.

    Raises TraceError where it has neither memory events nor a captured model; EngineError if sums do not hold.
    """
    manifest = None if info.manifest is None else from_json(info.manifest)
    model = None if manifest is None else _model(manifest)
    events = read_frame(engine, "memory")
    if not len(events) and model is None:
        raise TraceError(f"{info.path} has no memory events", hint=RECORD_MEMORY)
    _check(info, events)
    steps = read_frame(engine, "steps", "ts kind tokens")
    keys = list(zip(events["upid"].tolist(), events["device"].tolist(), strict=True))
    courses = []
    for key in dict.fromkeys(keys):
        of_device = events.where(np.array([other == key for other in keys]))
        courses.append(_course(info, key[1], of_device, steps, model))
    courses.sort(key=lambda course: (course.device == HOST, -course.peak_bytes))
    notes = [] if courses else [f"no memory events are recorded, so this is the model's configuration: {RECORD_MEMORY}"]
    for course in courses:
        if course.unexplained:
            what = f"{counted(course.unexplained, 'event')} of {len(course.ts):,} do not continue the allocator's total"
            notes.append(f"device {course.device}: {what}; the difference stands as {UNEXPLAINED!r}")
    on_gpu = manifest is not None and str(manifest.resolved.device).startswith("cuda")
    capacity = courses[0].capacity_bytes if courses else None
    if manifest is not None and on_gpu:
        capacity = manifest.environment.gpu_memory_bytes
    timings = None if manifest is None else manifest.timings
    return Memory(
        info,
        tuple(courses),
        model,
        None if timings is None else timings.peak_memory_bytes,
        None if timings is None else timings.peak_memory_of,
        capacity,
        tuple(notes),
    )


def _check(info: TraceInfo, events: Frame) -> None:
    """Raise TraceError where an amount is missing, or where their sums exceed 64 bits."""
    for name in ("bytes", "total_bytes", "reserved_bytes"):
        amounts = events[name].tolist()
        label = name.replace("_", " ")
        if missing := amounts.count(None):
            what = f"{missing:,} of {counted(len(amounts), 'memory event')}"
            raise TraceError(f"{info.path} records no {label} for {what}", hint=RECORD_MEMORY)
        sizes = list(map(abs, amounts))
        if (sum(sizes) if name == "bytes" else max(sizes, default=0)) > _MOST_BYTES:
            raise TraceError(f"{info.path}: memory events have up to {max(sizes):,} {label}, more than can be")


def _model(manifest: Manifest) -> Model | None:
    if (needs := needs_of(to_builtins(manifest.resolved))) is None:
        return None
    lengths = [run.prompt_tokens + len(run.token_ids) for run in manifest.molecules]
    rows = max((row.row + 1 for row in manifest.molecules), default=1)
    return Model(needs, max(lengths, default=0), rows)


def _course(info: TraceInfo, device: str, events: Frame, steps: Frame, model: Model | None) -> MemoryTimeline:
    size, total = events["bytes"], events["total_bytes"]
    row_of = {number: row for row, number in enumerate(events["id"].tolist())}
    allocations = [None if item is None else row_of[item] for item in events["allocation_id"].tolist()]
    category = _categories(events, allocations, device, model)
    zero = np.zeros(len(events), dtype=np.int64)
    live = {name: np.cumsum(np.where(category == name, size, 0)) for name in dict.fromkeys(category.tolist())}
    start = int(total[0] - size[0])
    if start or BEFORE in live:
        live[BEFORE] = live.get(BEFORE, zero) + start
    held = live.get(BEFORE)
    if model is not None and device != HOST and held is not None and held.min() >= model.needs.weights:
        live = {WEIGHTS: zero + model.needs.weights, **live, BEFORE: held - model.needs.weights}
    jumps = np.array([item or 0 for item in events["unexplained_bytes"].tolist()], dtype=np.int64)
    if jumps.any():
        live[UNEXPLAINED] = np.cumsum(jumps)
    properties = next((item for item in info.devices if str(item.get("id")) == device), {})
    peak = int(total.argmax())
    sites = _places(events, allocations, peak)
    ours = sum(int(each[peak]) for name, each in live.items() if name not in (WEIGHTS, BEFORE, UNEXPLAINED))
    # What lives at the peak is counted twice: by what is freed when, and by the bytes of all events up to there.
    if not np.array_equal(np.sum(list(live.values()), axis=0), total) or ours != sum(
        site.peak_bytes for site in sites if len(site.path) == 1
    ):
        raise EngineError(f"{info.path}: live memory by category or place does not add up to the recorded total")
    return MemoryTimeline(
        device,
        None if device == HOST else properties.get("name"),
        None if device == HOST else properties.get("totalGlobalMem"),
        events["ts"],
        live,
        int(events["reserved_bytes"].max()),
        int((jumps != 0).sum()),
        sites,
        *_growth(events["ts"], live, steps),
    )


def _categories(events: Frame, allocations: list[int | None], device: str, model: Model | None) -> np.ndarray:
    """Return the category of each event, for frees that of their allocation; tensors of logits' size are logits."""
    category = events["category"].copy()
    rows = range(1, model.rows + 1) if model else ()
    block = 1 if device == HOST else _BLOCK_BYTES
    widths = {row * width for row in rows for width in (model.needs.logits_of_row if model else ())}
    sizes = [-(-size // block) * block for size in widths]
    category[(category == "activations") & np.isin(events["bytes"], sizes)] = "logits"
    for index, at in enumerate(allocations):
        if category[index] is None:
            category[index] = BEFORE if at is None else category[at]
    return np.asarray(category)


def _places(events: Frame, allocations: list[int | None], peak: int) -> tuple[AllocationSite, ...]:
    """Return the allocations of phases, modules and operators, in the order of their first allocation."""
    freed = {at: index for index, at in enumerate(allocations) if at is not None}
    sums: defaultdict[tuple[str, ...], np.ndarray] = defaultdict(lambda: np.zeros(4, dtype=np.int64))
    columns = events.select("bytes", "phase", "module", "source", "operator").rows()
    for index, (size, phase, module, source, operator) in enumerate(columns):
        if size < 0:
            continue
        inside = class_names(module).split("/") if module else [source] if source else []
        path = tuple(filter(None, (phase, *inside, operator))) or ("(no operator)",)
        end = freed.get(index, len(events))
        amounts = 1, size, size * (index <= peak < end), size * (end == len(events))
        for depth in range(len(path)):
            sums[path[: depth + 1]] += amounts
    order: dict[tuple[str, ...], int] = {}
    for path in sums:
        order[path] = len(order)
    keys = {path: tuple(order[path[: depth + 1]] for depth in range(len(path))) for path in sums}
    return tuple(AllocationSite(path, *sums[path].tolist()) for path in sorted(sums, key=keys.__getitem__))


def _growth(ts: np.ndarray, live: dict[str, np.ndarray], steps: Frame) -> tuple[dict[str, int], int, int | None]:
    """Return the growth of live memory from the second decode step to the last, the steps between, and their tokens.

    The first one may free what was allocated before the recording, which a CPU does not tell.
    """
    decode = steps.where(np.array([kind not in ("prefill", "mixed") for kind in steps["kind"].tolist()], dtype=bool))
    if len(decode) < 3:
        return {}, 0, None
    first, last = (max(0, int(np.searchsorted(ts, moment)) - 1) for moment in decode["ts"][[1, -1]])
    tokens = decode["tokens"].tolist()[1:-1]
    grown = {name: int(each[last] - each[first]) for name, each in live.items()}
    return grown, len(tokens), None if None in tokens else sum(tokens)
