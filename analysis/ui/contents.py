"""What is worth a look in a trace, asked of the engine: strips of slices to show above the trace, and where to zoom."""

from __future__ import annotations

from dataclasses import dataclass

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query, query_row, query_rows
from molprof.analysis.figures.recorded_steps import read_recorded_steps
from molprof.common.errors import UsageError
from molprof.queries import PACKAGE, modules

# Slices of a strip that the page gets; of more, the longest.
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
_CAUSES = {
    "cpu_waited": "the CPU waited for the GPU, nothing queued",
    "cpu_busy": "the CPU had queued nothing",
    "short": "between two pieces of work",
    "not_recorded": "cause not recorded",
    "other_stream": "waits for another stream",
    "other": "queued, not started",
}
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
    """A stretch of SQL time: ns from the earliest event of the trace."""

    start_ns: int
    dur_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.dur_ns


@dataclass(frozen=True)
class Strip:
    """Slices to show above the trace.

    Attributes:
        slices: start and duration in ns, name.
        left_out: slices that are too many, all shorter than those kept.
    """

    title: str
    slices: tuple[tuple[int, int, str], ...]
    left_out: int = 0


@dataclass(frozen=True)
class Sequence:
    """A token track: its sequence's number and batch, its process and thread, and what its recorded steps span."""

    number: int
    batch: int
    track: tuple[int, int]
    span: Span


@dataclass(frozen=True)
class Place:
    """Where the user asked to look; None: not asked.

    Attributes:
        step: number of a step as the trace has it, else counted from 0.
        token: position of a token of `molecule`, by default of the first one.
        molecule: number of a sequence.
    """

    step: int | None = None
    token: int | None = None
    molecule: int | None = None


@dataclass(frozen=True)
class Contents:
    """What there is to show of one file.

    Attributes:
        before: strips that stand above the token tracks (steps, phases, host syncs); tokens: about them; idle: by
            device, below its streams. Strips without slices are left out.
        sequences: token tracks to pin, first the one that the user asked for.
        first_step_ns: start of the first step; None without steps.
        zoom: what to look at; None where nothing tells.
        whole: from the first event to the end of the last.
    """

    before: tuple[Strip, ...]
    tokens: tuple[Strip, ...]
    idle: tuple[Strip, ...]
    sequences: tuple[Sequence, ...]
    first_step_ns: int | None
    zoom: Span | None
    whole: Span


def read_contents(engine: Engine, path: str, place: Place) -> Contents:
    """Reads what is worth a look in the trace that `engine` holds.

    Raises:
        UsageError: the trace does not hold the step, token or molecule that is asked for.
    """
    engine.register_package(PACKAGE, modules())
    before = (
        _strip(engine, "steps", "steps", _STEPS),
        _strip(engine, "phases", "phases", _PHASES),
        _strip(engine, "host syncs", "host_syncs", _SYNCS),
    )
    _, gaps = query_rows(engine, Query("idle_causes", _IDLE))
    idle = [
        _longest(
            f"GPU {device} idle",
            [(ts, dur, _CAUSES.get(cause, cause)) for ts, dur, cause, own in gaps if own == device],
        )
        for device in sorted({gap[3] for gap in gaps})
    ]
    _, rows = query_rows(engine, Query("tokens", _SEQUENCES))
    sequences = [Sequence(number, batch, (pid, tid), Span(ts, dur)) for number, batch, pid, tid, ts, dur in rows]
    zoom, batch = _zoom(engine, path, place, sequences)
    shown = [item for item in sequences if item.number == place.molecule]
    shown += [item for item in sequences if item not in shown and batch in (None, item.batch)]
    return Contents(
        before=_filled(before),
        tokens=_filled([_strip(engine, "junk tokens", "tokens", _JUNK)]),
        idle=_filled(idle),
        sequences=tuple(shown),
        first_step_ns=query_row(engine, Query("steps", "SELECT MIN(ts) AS ts FROM molprof_any_step"))["ts"],
        zoom=zoom,
        whole=Span(*(int(column[0]) for column in engine.query(_BOUNDS).values())),
    )


def _filled(strips: tuple[Strip, ...] | list[Strip]) -> tuple[Strip, ...]:
    return tuple(strip for strip in strips if strip.slices)


def _strip(engine: Engine, title: str, module: str, sql: str) -> Strip:
    _, rows = query_rows(engine, Query(module, sql))
    return _longest(title, [(ts, dur, name) for ts, dur, name in rows])


def _longest(title: str, slices: list[tuple[int, int, str]]) -> Strip:
    if len(slices) <= MAX_SLICES:
        return Strip(title, tuple(slices))
    longest = sorted(slices, key=lambda item: (-item[1], item[0]))[:MAX_SLICES]
    return Strip(f"{title} (longest {MAX_SLICES:,})", tuple(sorted(longest)), len(slices) - MAX_SLICES)


def _zoom(engine: Engine, path: str, place: Place, sequences: list[Sequence]) -> tuple[Span | None, int | None]:
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
    return UsageError(
        f"{path} has no recorded {what} {number}{of}", hint=f"give --{what} one from {min(known)} to {max(known)}"
    )
