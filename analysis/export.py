"""Export of a trace for any Perfetto: the events as the reader places them, then the facts that molprof computes.

Derived events have the category `molprof.fact`, are in a process of their own, and are skipped by molprof's reader.
Each is a row of a table of facts: `args.fact` names the table, the other args are its columns. Rows of `idle_gap` are
slices at their time; the others are instants behind the end of the trace. `queries/facts.sql` makes the tables of them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import NONE
from molprof.analysis.facts.slices import Slices
from molprof.analysis.facts.tables import TABLES, columns_of, install
from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.reader import Reading
from molprof.analysis.reader.feeding import CLOSING
from molprof.analysis.reader.load import load_trace
from molprof.analysis.reader.places import HOME_TID
from molprof.analysis.reader.survey import EXPORT_KEY, ExportedOrder
from molprof.analysis.trace_processor import TraceProcessor, open_engine
from molprof.common.errors import EngineError
from molprof.common.files import replacing_packed
from molprof.common.manifest import KEY
from molprof.common.text import whole_json
from molprof.queries import FACT_CATEGORY

PROCESS = "molprof facts"
# The fact whose rows are slices that people see.
_SHOWN = "idle_gap"
_EVENTS = 1024
_MAX_PID = 2**31 - 2
_LANES = f"""
SELECT DISTINCT process.pid, thread.tid, EXTRACT_ARG(slice.arg_set_id, 'args.{HOME_TID}') AS home
FROM thread
JOIN thread_track
  USING (utid)
JOIN process
  USING (upid)
JOIN slice
  ON slice.track_id = thread_track.id
WHERE thread.tid > {_MAX_PID} AND EXTRACT_ARG(slice.arg_set_id, 'args.{HOME_TID}') IS NOT NULL
ORDER BY process.pid, thread.tid
"""
_PIDS = f"SELECT DISTINCT pid FROM process WHERE pid BETWEEN 1 AND {_MAX_PID} ORDER BY pid"
_encode = msgspec.json.Encoder().encode


class ExportResult(Struct, frozen=True):
    """Counts of an export."""

    slices: int  # of the trace
    derived: int  # events that molprof added
    notes: list[str]  # why less may be there than expected


def export(
    path: Path, output: Path, *, stacks: bool = True, native_path: str | None = None, force: bool = True
) -> ExportResult:
    """Write the trace at `path` with its facts, whole or not at all; gzip if `output` ends in `.gz`.

    Without `force`, a file that appears at `output` meanwhile is kept: see `replacing`. All args are written.

    stacks: write Python stacks too. native_path: see `Reading`. Raises TraceError, EngineError.
    """
    with ExitStack() as stack:
        out = stack.enter_context(replacing_packed(output, force))
        engines: list[TraceProcessor] = []

        def start(large: bool) -> TraceProcessor:
            engines.append(stack.enter_context(open_engine(native_path, memory64=large)))
            return engines[0]

        def write(chunk: bytes) -> None:
            if chunk != CLOSING:
                out.write(chunk)

        info = load_trace(path, start, Reading(stacks=stacks, native_path=native_path), copied=write)
        (engine,) = engines
        if info.lost_events:
            raise EngineError(f"{path}: the trace processor does not show {info.lost_events:,} events of the file")
        install(engine)
        facts: Facts = engine.facts
        lanes = list(zip(*(column.tolist() for column in engine.query(_LANES).values()), strict=True))
        # Where a slice with a separate end stands among those of one moment is not known.
        is_shown = info.slices_ns is not None
        notes = info.notes()
        if not is_shown:
            notes.append(f"{path} has events with separate begin and end, so idle gaps are rows of a table alone")
        derived = 0
        for events in _batches(_derived(engine, facts, is_shown)):
            derived += len(events)
            out.write(b",\n" + b",\n".join(map(_encode, events)))
        keys = {
            **info.keys,
            KEY: info.manifest,
            EXPORT_KEY: msgspec.to_builtins(ExportedOrder(info.origin_ns, lanes, info.native)),
        }
        out.write(b"\n]")
        for key, value in keys.items():
            if value is not None:
                out.write(whole_json(f",\n{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}").encode())
        out.write(b"\n}\n")
    return ExportResult(len(facts.slices.ts), derived, notes)


def _batches(events: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(itertools.islice(events, _EVENTS)):
        yield batch


def _derived(engine: TraceProcessor, facts: Facts, is_shown: bool) -> Iterator[dict[str, Any]]:
    """Yield the derived events: names of their tracks, slices, then instants in time."""
    pid = _free(engine.query(_PIDS)["pid"].tolist())
    common = {"cat": FACT_CATEGORY, "pid": pid}
    titles = [*(f"GPU {device} idle" for device in facts.devices), *TABLES]
    yield {**common, "ph": "M", "name": "process_name", "tid": pid, "ts": 0, "args": {"name": PROCESS}}
    tids = {title: pid + number for number, title in enumerate(titles, 1)}
    for title, tid in tids.items():
        yield {**common, "ph": "M", "name": "thread_name", "tid": tid, "ts": 0, "args": {"name": title}}
    idle = facts.idle
    starts, ends = (idle.ts, idle.ts_end) if is_shown else (idle.ts[:0], idle.ts_end[:0])
    new_ids = _new_ids(facts.slices, starts, ends, idle.device[: len(starts)])
    # Behind all slices, so that these keep their ids; each at a moment of its own, so that none is inside another.
    last_ns = max(int(times.max(initial=0)) for times in (facts.slices.ts, facts.slices.ts_end, idle.ts_end))
    moments = itertools.count(last_ns + 1)
    for name in TABLES:
        for row in _rows(name, facts, new_ids):
            args = {"fact": name, **{column: value for column, value in row.items() if value is not None}}
            if name == _SHOWN and is_shown:
                title, ts, dur = IDLE_CAUSES[row["cause"]], row["ts"], row["ts_end"] - row["ts"]
                tid = tids[f"GPU {row['device']} idle"]
                yield {**common, "ph": "X", "name": title, "tid": tid, "ts": _us(ts), "dur": _us(dur), "args": args}
            else:
                ts = next(moments)
                yield {**common, "ph": "i", "s": "t", "name": name, "tid": tids[name], "ts": _us(ts), "args": args}


def _rows(name: str, facts: Facts, new_ids: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table of facts, with the ids that slices and tracks have in the exported trace."""
    names, columns = [], []
    for declared, column in zip(TABLES[name].columns, columns_of(name, facts), strict=True):
        names.append(declared.split()[0])
        ids = new_ids.get(declared.split()[1])
        if ids is not None:
            column = [None if number in (None, NONE) else int(ids[number]) for number in column]
        columns.append(column)
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _new_ids(slices: Slices, starts: np.ndarray, ends: np.ndarray, devices: np.ndarray) -> dict[str, np.ndarray]:
    """Return the id of each slice and track, by type of the column, when others follow all in the file.

    These have starts and ends, and are on a track per device. The trace processor numbers complete events by start, the
    longest first, then as they stand in the file; and tracks by their first slice.
    """
    count = len(slices.ts)
    ts, ts_end = np.append(slices.ts, starts), np.append(slices.ts_end, ends)
    ids = np.argsort(np.lexsort((ts - ts_end, ts))) if len(starts) else np.arange(count)
    slice_ids, added_ids = ids[:count], ids[count:]
    if np.any(np.diff(slice_ids) < 0):
        raise EngineError("the trace processor does not number slices in the order in which they start")
    tracks, first = np.unique(slices.track, return_index=True)
    added = np.sort([added_ids[devices == device].min() for device in np.unique(devices)])
    track_ids = np.arange(int(tracks.max(initial=-1)) + 1)
    is_used = tracks >= 0
    track_ids[tracks[is_used]] += np.searchsorted(added, slice_ids[first[is_used]])
    return {"JOINID(slice.id)": slice_ids, "JOINID(track.id)": track_ids}


def _free(pids: list[int]) -> int:
    """Return a process number behind all others, or the lowest that is free."""
    taken = set(pids)
    return next(
        number
        for number in itertools.chain((max(taken, default=0) + 1,), itertools.count(1))
        if number not in taken and number <= _MAX_PID
    )


def _us(time_ns: int) -> msgspec.Raw:
    return msgspec.Raw(b"%d.%03d" % divmod(time_ns, 1000))
