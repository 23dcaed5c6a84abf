"""Locations in the program: slices that enclose calls, operators and idle time, which is summed by location.

A place is where the names of all that is around are the same. Python functions are in the trace processor if it was
given them, else beside it (`Stacks`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from molprof.analysis.facts import GPU_CALLS
from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import NONE, Array, Windows
from molprof.analysis.facts.intervals import Coverage, Depth, key_sums, on_one_line, overlaps
from molprof.analysis.facts.nesting import Nesting
from molprof.analysis.facts.slices import TRACKS
from molprof.analysis.facts.stacks import Stacks

_KIND = "IIF(category = 'python_function', _molprof_function_kind!(name), category) AS kind, name"
_CLASS = "_molprof_module_class!(_molprof_module_name!(name)) AS class"
_SLICES = f"""
SELECT slice.stack_id, {_KIND}, {_CLASS}
FROM json_each('{{ids}}') AS one
CROSS JOIN slice
WHERE slice.id = one.value
ORDER BY slice.id
"""
# Slices and all that is around them.
_AROUND = f"""
SELECT slice.id, IFNULL(parent_id, {NONE}) AS parent_id, {_KIND}, {_CLASS}
FROM (
  SELECT value AS slice_id FROM json_each('{{ids}}')
  UNION
  SELECT around.id FROM json_each('{{ids}}') AS one CROSS JOIN ancestor_slice(one.value) AS around
) AS told
CROSS JOIN slice
WHERE slice.id = told.slice_id
ORDER BY depth
"""
_FUNCTIONS = f"SELECT _molprof_function_kind!(name) AS kind, name, {_CLASS} FROM ({{names}})"
# Kinds of functions in Python stacks.
_OF_STACKS = ("function", "library", "module", "molprof")
# Shorter calls do not wait.
_LONG_CALL_NS = 100_000
# Deeper nested slices are told of no more: all paths of a deep recursion would take the square of their number.
_MOST_LEVELS = 64
# Places that take less of the idle time are not shown, unless they are around others.
_LEAST_SHARE = 0.001
# Pairs of waits and what lies in them, for each of both, up to which all pairs are looked at.
_MOST_PAIRS = 20


class Level(NamedTuple):
    """An enclosing slice and its ancestors, which all slices inside it share."""

    kind: str  # cpu_op, user_annotation, function or module
    name: str  # of a module its class
    module: str | None  # class of the innermost module around it, or its own
    outer: Level | None


NO_LEVEL = Level("", "", None, None)


class Enclosing(NamedTuple):
    """The innermost enclosing slice of each kind, and all enclosing modules."""

    operator: str | None = None
    annotation: str | None = None
    function: str | None = None  # as file(line): name
    library: str | None = None  # function of a library
    module: str | None = None  # classes of the modules, the outermost first, with / between them
    level: Level | None = None  # the innermost, but for functions of libraries
    stack: Level | None = None  # the innermost function or module, where the stacks are not in the engine

    @property
    def source(self) -> str | None:
        """The innermost function; of a library only if there is no other."""
        return self.function or self.library

    def within(self, kind: str | None, name: str, module_class: str) -> Enclosing:
        """Return the enclosing slices of something that is in a slice of this kind, at this location."""
        if kind == "library":
            return self._replace(library=name)
        if kind == "module":
            path = f"{self.module}/{module_class}" if self.module else module_class
            return self._replace(module=path, level=Level(kind, module_class, module_class, self.level))
        if kind not in ("cpu_op", "user_annotation", "function"):
            return self
        inside = (self.module or "").rsplit("/", 1)[-1]
        level = Level(kind, name, inside or None, self.level)
        if kind == "cpu_op":
            return self._replace(operator=name, level=level)
        if kind == "user_annotation":
            return self._replace(annotation=name, level=level)
        return self._replace(function=name, level=level)

    def levels(self) -> Iterator[Level]:
        """Return the enclosing slices, the innermost first: of stacks before the rest, and at most so many."""
        for level in (self.stack, self.level):
            for _ in range(_MOST_LEVELS):
                if level is None:
                    break
                yield level
                level = level.outer


NOWHERE = Enclosing()
# Kind, name, and class of a module of that name.
Kind = tuple[str | None, str, str]


class IdlePlaces(Struct, frozen=True):
    """Idle time by location: one entry for each with any, the first for no recorded location if it has any."""

    places: Sequence[Enclosing]
    count: Array  # idle times with some of it
    time_ns: Array
    slice_id: Array  # its first slice; NONE for nothing recorded, and for functions that the engine does not have
    is_shown: Array  # it has at least a thousandth of the time, or is around one that does: bool
    is_call: Array  # a call of the GPU, which waits: bool


class EnclosingIndex:
    """Locations of the slices of one trace."""

    def __init__(self, facts: Facts, stacks: Stacks | None = None) -> None:
        """Prepare the index. stacks: Python stacks that the engine does not have."""
        self._facts, self._stacks = facts, stacks
        self._known: dict[int, Enclosing] = {NONE: NOWHERE}

    def added_up(
        self, ids: Array, numbers: Array, counts: Array | int, times: Array | int
    ) -> list[tuple[Enclosing, int, int]]:
        """Return each location of slices with the sums of their counts and of their times, ns.

        numbers: equal where all names around are, as the engine has them (`stack_id`).
        """
        stacks, slices = self._stacks, self._facts.slices
        _, first, numbers = np.unique(numbers, return_index=True, return_inverse=True)
        paths = np.full(len(ids), NONE)
        if stacks is not None:
            around = stacks.around(self._thread_numbers(slices.track[ids]), slices.ts[ids], slices.ts_end[ids])
            paths = stacks.nested.path[around]
        width = int(paths.max(initial=NONE)) + 2
        keys, which = np.unique(numbers * width + paths + 1, return_inverse=True)
        firsts = ids[first].tolist()
        engine_places = self.of_slices(firsts)
        rows = []
        sums = (key_sums(which, amounts, len(keys)).tolist() for amounts in (counts, times))
        for key, count, time_ns in zip(keys.tolist(), *sums, strict=True):
            number, path = divmod(key, width)
            enclosing = engine_places[firsts[number]]
            if stacks is not None:
                functions = self._functions[path - 1]
                enclosing = Enclosing(*enclosing[:2], *functions[2:5], level=enclosing.level, stack=functions.level)
            rows.append((enclosing, count, time_ns))
        return rows

    def of_slices(self, ids: Sequence[int]) -> dict[int, Enclosing]:
        """Return the enclosing slices of slices, themselves included, by the engine's tree; and of their ancestors."""
        enclosing = self._known
        if unknown := [number for number in ids if number not in enclosing]:
            for number, parent, *kind in self._facts.rows(_AROUND.format(ids=unknown), "python_functions"):
                enclosing[number] = enclosing[parent].within(*kind)
        return enclosing

    @cached_property
    def idle(self) -> IdlePlaces:
        """Long gaps in which nothing was queued, by the location of the awaited thread at each moment."""
        return self.idle_in(self._facts.long_waits)

    def idle_in(self, waits: Windows) -> IdlePlaces:
        """Return time in which devices wait for threads, by the location of the thread at each moment.

        A slice has the time that it shares with a wait, less that of the slices in it.
        """
        stacks, slices = self._stacks, self._facts.slices
        spans = Coverage(waits.track, waits.ts, waits.ts_end)
        ids = slices.touching(*spans.of_any_key)
        ids = ids[spans.covered(slices.track[ids], slices.ts[ids], slices.ts_end[ids]) > 0]
        rows = self._facts.rows(_SLICES.format(ids=ids.tolist()), "python_functions")
        kinds: list[Kind] = [row[1:] for row in rows]
        stack_ids = np.array([row[0] for row in rows], dtype=np.int64)
        if stacks is not None:  # which have the functions that mark phases too
            kept = np.array([kind[0] not in _OF_STACKS for kind in kinds], dtype=bool)
            ids, stack_ids = ids[kept], stack_ids[kept]
            kinds = [kind for kind in kinds if kind[0] not in _OF_STACKS]
        # Slices with the same names around them have the number of the first of them.
        _, first, same = np.unique(stack_ids, return_index=True, return_inverse=True)
        columns = [self._thread_numbers(slices.track[ids]), slices.ts[ids], slices.ts_end[ids], first[same]]
        if stacks is not None:
            of_thread = Coverage(self._thread_numbers(waits.track), waits.ts, waits.ts_end)
            calls = np.flatnonzero(of_thread.covered(stacks.threads, stacks.starts, stacks.ends))
            more = stacks.threads[calls], stacks.starts[calls], stacks.ends[calls], stacks.names[calls] + len(ids)
            columns = [np.concatenate(pair) for pair in zip(columns, more, strict=True)]
            kinds += self._function_kinds
        nesting = Nesting(*columns)
        _, _, outer, name = nesting.nested
        counts, times, first = _own_of_paths(nesting, self._thread_numbers(waits.track), waits)
        of_name = [kinds[number] for number in name.tolist()]
        is_call = np.append(False, [kind[0] in GPU_CALLS for kind in of_name]).astype(bool)
        is_long = np.append(nesting.ends - nesting.starts >= _LONG_CALL_NS, False)[first]
        # Slices of one track of the engine nest, so that none is left out.
        slice_ids = ids[np.lexsort((-columns[2], columns[1], columns[0]))] if stacks is None else ids[:0]
        slice_id = np.append(slice_ids, np.full(len(nesting.starts) + 1 - len(slice_ids), NONE))[first]
        path_places = _of_paths(outer, of_name)
        some = np.flatnonzero(counts)
        return IdlePlaces(
            [path_places[number - 1] for number in some.tolist()],
            *(column[some] for column in (counts, times, slice_id, _shown(outer, times), is_call & is_long)),
        )

    @cached_property
    def _functions(self) -> dict[int, Enclosing]:
        """Location of each path of the stacks."""
        assert self._stacks is not None
        _, _, outer, name = self._stacks.nested
        return _of_paths(outer, [self._function_kinds[number] for number in name.tolist()])

    @cached_property
    def _function_kinds(self) -> list[Kind]:
        """Kind, name and class of the functions whose names the stacks have."""
        assert self._stacks is not None
        texts = json.dumps(self._stacks.texts).replace("'", "''")
        names = f"SELECT value AS name FROM json_each('{texts}')"
        return [
            (kind, name, of) for kind, name, of in self._facts.rows(_FUNCTIONS.format(names=names), "python_functions")
        ]

    def _thread_numbers(self, tracks: Array) -> Array:
        """Return the number of each track's thread: those of the stacks, and others without."""
        numbers = {} if self._stacks is None else self._stacks.numbers
        number_of = {track: numbers[thread] for track, thread in self._threads.items() if thread in numbers}
        distinct, where = np.unique(tracks, return_inverse=True)
        threads = [number_of.get(track, len(numbers) + track) for track in distinct.tolist()]
        return np.array(threads, dtype=np.int64)[where]

    @cached_property
    def _threads(self) -> dict[int, tuple[int, int]]:
        """Process and thread number of each track."""
        return {track: (pid, tid) for track, pid, tid in self._facts.rows(TRACKS, None)}


def _of_paths(outer: Array, kinds: Iterable[Kind]) -> dict[int, Enclosing]:
    """Return the location of each path, from the outermost to the innermost."""
    enclosing = {NONE: NOWHERE}
    for number, (inside, kind) in enumerate(zip(outer.tolist(), kinds, strict=True)):
        enclosing[number] = enclosing[inside].within(*kind)
    return enclosing


def _shown(outer: Array, times: Array) -> Array:
    """Return True for each path, after the entry of no slice, that is shown for its time or encloses one: bool."""
    shown: Array = times >= _LEAST_SHARE * times.sum()
    shown[0] = True
    for number in np.flatnonzero(shown).tolist():
        while number and not shown[outer[number - 1] + 1]:
            number = int(outer[number - 1]) + 1
            shown[number] = True
    return shown


def _own_of_paths(nesting: Nesting, threads: Array, waits: Windows) -> tuple[Array, Array, Array]:
    """Return by path: waits in which it has self time, that time, ns, and the first of its slices with any.

    The first entry is that of no slice, path NONE. threads: of each wait.
    """
    size, segments = len(nesting.nested.outer) + 1, nesting.segments
    path = nesting.nested.path[segments.owners] + 1
    windows = threads, waits.ts, waits.ts_end
    own_ns = Depth(*windows).time(*segments[:3])
    times = key_sums(path, own_ns, size)
    alone = waits.ts_end - waits.ts - Coverage(*segments[:3]).covered(*windows)
    times[0] = alone.sum()
    keys, moments = (threads, threads, *[segments.threads] * 2), (*windows[1:], segments.starts, segments.ends)
    starts, ends, begin, end = on_one_line(keys, moments)
    counts = _counts(starts, ends, begin, end, path, size)
    counts[0] = (alone > 0).sum()
    # By start, as slices of several threads may be in one place.
    order = np.append(np.argsort(nesting.starts, kind="stable"), len(nesting.starts))
    first = np.full(size, len(nesting.starts))
    np.minimum.at(first, path[own_ns > 0], np.argsort(order)[segments.owners[own_ns > 0]])
    return counts, times, order[first]


def _counts(starts: Array, ends: Array, begin: Array, end: Array, path: Array, size: int) -> Array:
    """Return the number of windows that overlap any segment of each path below `size`."""
    pairs = np.searchsorted(np.sort(starts), end, side="left") - np.searchsorted(np.sort(ends), begin, side="right")
    if pairs.sum() <= _MOST_PAIRS * (len(starts) + len(begin)):
        zero, none = (np.zeros(len(x), dtype=np.int64) for x in (starts, begin))
        window, segment = overlaps((zero, starts, ends), (none, begin, end))
        return np.bincount(np.unique(path[segment] * len(starts) + window) // max(1, len(starts)), minlength=size)
    # Many devices wait for one thread at the same time: each path is looked at alone.
    counts = np.zeros(size, dtype=np.int64)
    order = np.argsort(path, kind="stable")
    bounds = np.flatnonzero(np.diff(path[order])) + 1
    for rows in np.split(order, bounds):
        following = np.searchsorted(end[rows], starts, side="right")
        inside = following < len(rows)
        counts[path[rows[0]]] = int((begin[rows][following[inside]] < ends[inside]).sum())
    return counts
