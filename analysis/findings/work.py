"""GPU work for rules: by name, and in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.facts import coverage, gaps
from molprof.analysis.facts.intervals import Coverage
from molprof.analysis.findings.around import is_of, of_pieces
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.places import location, placed
from molprof.analysis.findings.rule import FindingEvidence
from molprof.analysis.frame import Frame
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import time_text

# Below this share even attention that takes no time would gain little.
SMALL_SHARE = 0.1
# Work beside other work is told where that takes a share of a gain that can be read.
_TOLD = 0.995
# A run that takes so many times as long as most of so many that are alike.
_SLOW, _LEAST_ALIKE = 10, 3
# Classes whose kernels read and write each element once, and that one kernel can do together.
POINTWISE = ("elementwise", "copy", "cat", "fill", "reduce", "norm")
_WORK_BY_NAME = """
SELECT work.name, work.category, class.class, work.count, work.time_ns
FROM {work} AS work
JOIN molprof_work_class AS class USING (category, name)
ORDER BY work.time_ns DESC, work.name
"""
WORK = Query("kernel_classes", _WORK_BY_NAME.format(work="molprof_work_total"))
WORK_OF_STEPS = Query(
    "kernel_classes",
    "INCLUDE PERFETTO MODULE molprof.placement;"
    + _WORK_BY_NAME.format(
        work="""(
  SELECT work.category, work.name, COUNT() AS count, SUM(work.dur) AS time_ns
  FROM molprof_gpu_work AS work
  JOIN molprof_work_phase AS place ON place.id = work.id
  JOIN molprof_phase AS phase ON phase.id = place.phase_id AND phase.step IS NOT NULL
  GROUP BY work.category, work.name
)"""
    ),
)


class NamedWork(Struct, frozen=True):
    """Work of one name: in the recorded steps of a run, or in a whole foreign trace."""

    name: str
    category: str
    kind: str  # class
    count: int
    time_ns: int

    def is_named(self, patterns: tuple[str, ...]) -> bool:
        """Return True if a pattern matches the name in lower case."""
        return is_named(self.name, patterns)


def is_named(name: str, patterns: tuple[str, ...]) -> bool:
    """Return True if a pattern matches the name in lower case."""
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


def work_by_name(known: TraceFacts, *kinds: str) -> list[NamedWork]:
    """Return the work of these classes by name, the longest time first; of all classes if none is given."""
    rows = known.frame(WORK if known.report.run is None else WORK_OF_STEPS).rows()
    every = [_recorded(known, NamedWork(*row)) for row in rows]
    return [work for work in every if not kinds or work.kind in kinds]


def _recorded(known: TraceFacts, work: NamedWork) -> NamedWork:
    """Return the work without what a foreign trace has outside the recorded span.

    From before it, or with impossible times.
    """
    count, time_ns = known.outside.get((work.category, work.name), (0, 0))
    return replace(work, count=work.count - count, time_ns=work.time_ns - time_ns) if count else work


def summed(work: Iterable[NamedWork]) -> tuple[int, int]:
    """Return the count and the time of the work, ns."""
    items = list(work)
    return sum(item.count for item in items), sum(item.time_ns for item in items)


def gpu_share(known: TraceFacts, gpu_ns: float) -> float:
    """Return the share of wall time of work on all devices."""
    return known.scope.gpu_part(gpu_ns / known.scope.devices)


def located(
    known: TraceFacts,
    found: FindingEvidence,
    gain_ns: int,
    bounded_by: str,
    of: tuple[str, ...] | Sequence[NamedWork] | np.ndarray,
    alone: bool = True,
) -> FindingEvidence:
    """Return the finding with the GPU time that a fix could save, and the location that asks for that work.

    of: classes or names of the work, or the time that counts of each piece of work, ns. alone: nothing of it is gained
    while other work runs on its device.
    """
    times = of if isinstance(of, np.ndarray) else times_of(known, of)
    evidence = found.evidence
    if alone and (single_ns := alone_ns(known, _of_steps(known, times > 0))) < gain_ns:
        times = exposed_times(known, times)
        if single_ns < _TOLD * gain_ns:
            evidence += f", of which a fix saves at most {time_text(single_ns)}: the rest overlaps other work"
            bounded_by += ", while nothing else runs"
        gain_ns = single_ns
    gain = known.gain(gpu_share(known, gain_ns), bounded_by)
    return placed(replace(found, evidence=evidence, gain=gain), location(known, of_pieces(known, times)))


def alone_ns(known: TraceFacts, index: np.ndarray) -> int:
    """Return the time in which some of this work, by its index, runs on a device and nothing else does, ns."""
    chosen = np.zeros(len(known.facts.work.ts), dtype=bool)
    chosen[index] = True
    return coverage.alone_ns(known.facts.work, chosen, known.facts.overlaps)


def exposed_times(known: TraceFacts, times: np.ndarray) -> np.ndarray:
    """Return the part of each time in which no work without a time runs on the same device, ns."""
    work = known.facts.work
    others = known.facts.overlaps & (times == 0)
    beside = Coverage(work.device[others], work.ts[others], work.ts_end[others])
    alone = work.ts_end - work.ts - beside.covered(work.device, work.ts, work.ts_end)
    exposed: np.ndarray = np.minimum(times, alone)
    return exposed


def beyond_usual(times: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the excess of each run over the median of its key, ns: 0 for runs below 10 times the median.

    Three or more runs have the key, so that what is usual is known.
    """
    order = np.lexsort((times, keys))
    distinct, first, key, count = np.unique(keys[order], return_index=True, return_inverse=True, return_counts=True)
    if not len(distinct):
        return times
    median = times[order][first + (count - 1) // 2]
    beyond = np.zeros_like(times)
    beyond[order] = np.where(
        (count >= _LEAST_ALIKE)[key] & (times[order] >= _SLOW * median[key]), times[order] - median[key], 0
    )
    return beyond


def work_of(known: TraceFacts, of: Iterable[NamedWork]) -> np.ndarray:
    """Return the indices of all work of these names; of a run, only that of the recorded steps."""
    wanted = {(item.category, item.name) for item in of}
    is_named = np.array([(name.category, name.name) in wanted for name in known.facts.names], dtype=bool)
    return _of_steps(known, is_named[known.facts.name_of])


def _of_steps(known: TraceFacts, chosen: np.ndarray) -> np.ndarray:
    """Return the indices of the chosen work; of a run, only that of the recorded steps."""
    if known.report.run is not None:
        chosen = chosen & (np.append(known.facts.call_steps, gaps.NONE)[known.facts.work.call] != gaps.NONE)
    return np.flatnonzero(chosen)


def all_but_longest(duration: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the rows of each run of rows but its longest, of equal ones the first, each once."""
    run = np.repeat(np.arange(len(starts)), counts)
    rows = np.arange(len(run)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    order = np.lexsort((rows, -duration[rows], run))
    is_first = np.append(True, run[order][1:] != run[order][:-1])[: len(order)]
    return np.unique(rows[order[~is_first]])


def times_of(known: TraceFacts, of: tuple[str, ...] | Sequence[NamedWork]) -> np.ndarray:
    """Return the time of each piece of work that is of some classes or names, ns; 0 of others."""
    names = {item.name for item in of if isinstance(item, NamedWork)}
    classes = {item.kind if isinstance(item, NamedWork) else item for item in of}
    work = known.facts.work
    return np.where(is_of(known, known.facts.name_of, classes, names), work.ts_end - work.ts, 0)


def times_at(known: TraceFacts, index: np.ndarray) -> np.ndarray:
    """Return the time of each piece of work at these indices, ns; 0 of others."""
    work = known.facts.work
    times = np.zeros(len(work.ts), dtype=np.int64)
    times[index] = (work.ts_end - work.ts)[index]
    return times


def sequence(known: TraceFacts) -> Frame:
    """Return the work in order of device, stream and start, by the number of its name; that of the recorded time.

    Its column `index` is that of each piece in `known.facts.work`.
    """
    work = known.facts.work
    order = np.lexsort((work.id, work.ts, work.stream, work.device))
    columns = {"device": work.device, "stream": work.stream, "ts": work.ts, "ts_end": work.ts_end}
    columns |= {"dur": work.ts_end - work.ts, "name": known.facts.name_of, "index": np.arange(len(work.ts))}
    frame = Frame({name: column[order] for name, column in columns.items()})
    return frame.where(known.scope.spans.covered(frame["ts"], frame["ts"] + 1) > 0)


def runs_of(chosen: np.ndarray, alike: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield start and end of consecutive chosen rows on one stream. alike: True if on the stream of the row before."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], chosen.astype(np.int8), [0]))))
    for start, stop in edges.reshape(-1, 2).tolist():
        cuts = [start, *(index for index in range(start + 1, stop) if not alike[index]), stop]
        yield from pairwise(cuts)


def same_stream(work: Frame) -> np.ndarray:
    """Return True for each row that is on the stream of the row before: bool."""
    same = (work["device"][1:] == work["device"][:-1]) & (work["stream"][1:] == work["stream"][:-1])
    return np.concatenate(([False], same))
