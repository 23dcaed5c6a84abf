"""What is worth a look in a trace: strips of slices to show above it, and where to zoom."""

from __future__ import annotations

from dataclasses import dataclass

from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.figures.recorded_steps import read_recorded_steps
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_row, query_rows
from molprof.common.errors import UsageError

# Slices of a strip; of more, the longest are shown.
MAX_SLICES = 50_000
_STEPS = """
SELECT ts, dur, IIF(kind IS NULL OR number IS NULL, name, 'step ' || number || ' (' || kind || ')') AS name
FROM molprof_any_step
ORDER BY ts, id
"""
_PHASES = "SELECT ts, dur, phase FROM molprof_phase ORDER BY ts, id"
_SYNCS = "SELECT ts, dur, name || IFNULL(' in ' || operator, '') AS name FROM molprof_host_sync ORDER BY ts, id"
_JUNK = """
SELECT ts, dur, IFNULL(text, '') || ' (sequence ' || sequence || ')' AS name
FROM molprof_token
WHERE kind = 'junk' AND slice_id IS NOT NULL
ORDER BY ts, sequence, position
"""
_IDLE = "SELECT ts, dur, cause, device FROM molprof_idle_gap ORDER BY device, ts"
_MODULES = "SELECT ts, dur, name, class, depth FROM molprof_module ORDER BY ts, id"
_SEQUENCES = """
SELECT EXTRACT_ARG(slice.arg_set_id, 'args.sequence') AS sequence, EXTRACT_ARG(slice.arg_set_id, 'args.batch') AS batch,
  process.pid AS pid, thread.tid AS tid, slice.ts AS ts, slice.dur AS dur
FROM slice
JOIN thread_track
  ON thread_track.id = slice.track_id
JOIN thread
  USING (utid)
JOIN process
  USING (upid)
WHERE slice.category = 'molprof.sequence'
ORDER BY sequence, slice.id
"""
_TYPICAL = """
SELECT step.ts, step.dur, IFNULL(own.batch, -1) AS batch
FROM molprof_typical_step AS step
LEFT JOIN molprof_step AS own
  USING (id)
"""
_BOUNDS = "SELECT start_ts, end_ts - start_ts AS dur FROM trace_bounds"
_TOKENS = "SELECT sequence, position, ts, dur FROM molprof_token WHERE slice_id IS NOT NULL ORDER BY sequence, position"


@dataclass(frozen=True)
class Span:
    """A stretch of SQL time."""

    start_ns: int  # from the earliest event of the trace
    dur_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.dur_ns


@dataclass(frozen=True)
class Strip:
    """Slices to show above the trace."""

    title: str
    slices: tuple[tuple[int, int, str], ...]  # start and duration in ns, name
    left_out: int = 0  # slices beyond MAX_SLICES, the shortest


@dataclass(frozen=True)
class Sequence:
    """A token track, and what its recorded steps span."""

    number: int
    batch: int
    track: tuple[int, int]  # process and thread number
    span: Span


@dataclass(frozen=True)
class Place:
    """Where the user asked to look; None: not asked."""

    step: int | None = None  # number as the trace has it, else counted from 0
    token: int | None = None  # position in `molecule`, by default in the first
    molecule: int | None = None  # number of a sequence


@dataclass(frozen=True)
class Contents:
    """What there is to show of one file. Strips without slices are left out."""

    before: tuple[Strip, ...]  # above the token tracks: steps, phases, modules, host syncs
    tokens: tuple[Strip, ...]  # about tokens
    idle: tuple[Strip, ...]  # by device, below its streams
    sequences: tuple[Sequence, ...]  # token tracks to pin, the one that the user asked for first
    first_step_ns: int | None
    zoom: Span | None  # None: nothing to choose
    whole: Span  # from the first event to the end of the last


def read_contents(engine: TraceProcessor, path: str, place: Place) -> Contents:
    """What is worth a look. Raises UsageError where the trace lacks the step, token or molecule of `place`."""
    _, gaps = query_rows(engine, Query("idle_causes", _IDLE))
    named: dict[str, list[tuple[int, int, str]]] = {}
    for ts, dur, cause, device in gaps:  # sorted by device
        named.setdefault(device, []).append((ts, dur, IDLE_CAUSES.get(cause, cause)))
    _, rows = query_rows(engine, Query("tokens", _SEQUENCES))
    sequences = [Sequence(number, batch, (pid, tid), Span(ts, dur)) for number, batch, pid, tid, ts, dur in rows]
    zoom, batch = _zoom(engine, path, place, sequences)
    shown = [item for item in sequences if item.number == place.molecule]
    shown += [item for item in sequences if item not in shown and batch in (None, item.batch)]
    return Contents(
        before=(
            *_strips(engine, "steps", Query("steps", _STEPS)),
            *_strips(engine, "phases", Query("phases", _PHASES)),
            *_layers(engine),
            *_strips(engine, "host syncs", Query("host_syncs", _SYNCS)),
        ),
        tokens=_strips(engine, "junk tokens", Query("tokens", _JUNK)),
        idle=tuple(_longest(f"GPU {device} idle", slices) for device, slices in named.items()),
        sequences=tuple(shown),
        first_step_ns=query_row(engine, Query("steps", "SELECT MIN(ts) AS ts FROM molprof_any_step"))["ts"],
        zoom=zoom,
        whole=Span(*(int(column[0]) for column in engine.query(_BOUNDS).values())),
    )


def _strips(engine: TraceProcessor, title: str, query: Query) -> tuple[Strip, ...]:
    """The strip of what the query gives; none where it gives no slice."""
    slices = [(ts, dur, name) for ts, dur, name in query_rows(engine, query)[1]]
    return (_longest(title, slices),) if slices else ()


def _layers(engine: TraceProcessor) -> tuple[Strip, ...]:
    """The strip of the modules beside each other at the outermost depth where a class has several, such as layers."""
    _, rows = query_rows(engine, Query("modules", _MODULES))
    names: dict[tuple[int, str], set[str]] = {}
    for _, _, name, cls, depth in rows:
        names.setdefault((depth, cls), set()).add(name)
    depths = [depth for (depth, _), same in names.items() if len(same) > 1]
    if not depths:
        return ()
    return (_longest("modules", [(ts, dur, name) for ts, dur, name, _, depth in rows if depth == min(depths)]),)


def _longest(title: str, slices: list[tuple[int, int, str]]) -> Strip:
    if len(slices) <= MAX_SLICES:
        return Strip(title, tuple(slices))
    longest = sorted(slices, key=lambda item: (-item[1], item[0]))[:MAX_SLICES]
    return Strip(f"{title} (longest {MAX_SLICES:,})", tuple(sorted(longest)), len(slices) - MAX_SLICES)


def _zoom(engine: TraceProcessor, path: str, place: Place, sequences: list[Sequence]) -> tuple[Span | None, int | None]:
    """What to look at, and the batch that it is of."""
    chosen = None
    if place.molecule is not None or place.token is not None:
        # Without a number the first of which anything was recorded.
        known = [item for item in sequences if item.number == place.molecule or place.molecule is None]
        chosen = next((item for item in known if item.span.dur_ns), known[0] if known else None)
        if chosen is None:
            raise _missing(path, "molecule", place.molecule or 0, [item.number for item in sequences])
    if place.token is not None:
        assert chosen is not None
        _, tokens = query_rows(engine, Query("tokens", _TOKENS))
        spans = {position: Span(ts, dur) for number, position, ts, dur in tokens if number == chosen.number}
        if place.token not in spans:
            raise _missing(path, "token", place.token, list(spans), f" of molecule {chosen.number}")
        return spans[place.token], chosen.batch
    if place.step is not None:
        batch = None if chosen is None else chosen.batch
        steps = [step for step in read_recorded_steps(engine) if batch in (None, step.batch)]
        step = next((step for step in steps if step.number == place.step), None)
        if step is None:
            raise _missing(path, "step", place.step, [step.number for step in steps])
        return Span(step.start_ns, step.dur_ns), step.batch
    if chosen is not None:
        return chosen.span if chosen.span.dur_ns else None, chosen.batch
    _, typical = query_rows(engine, Query("typical_step", _TYPICAL))
    if not typical:
        return None, None
    ts, dur, batch = typical[0]
    return Span(ts, dur), None if batch < 0 else batch


def _missing(path: str, what: str, number: int, known: list[int], of: str = "") -> UsageError:
    if not known:
        return UsageError(f"{path} has no recorded {what}s{of} to zoom to", hint=f"leave --{what} out")
    hint = f"give --{what} one from {min(known)} to {max(known)}"
    return UsageError(f"{path} has no recorded {what} {number}{of}", hint)
