"""What the GPU ran: its work by name, and in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from molprof.analysis.findings.around import of_work
from molprof.analysis.findings.known import Known
from molprof.analysis.findings.places import first_place, listed, places_of
from molprof.analysis.findings.rule import Found
from molprof.analysis.frame import Frame
from molprof.analysis.trace_processor.package import Query

# Below this share even attention that takes no time would gain little.
SMALL_SHARE = 0.1
# Classes whose kernels read and write each element once, and that one kernel can do together.
POINTWISE = ("elementwise", "copy", "cat", "fill", "reduce", "norm")
_WORK_BY_NAME = """
INCLUDE PERFETTO MODULE molprof.placement;
SELECT work.name, work.category, class.class, work.count, work.time_ns
FROM {work} AS work
JOIN molprof_work_class AS class USING (category, name)
ORDER BY work.time_ns DESC, work.name
"""
WORK = Query("kernel_classes", _WORK_BY_NAME.format(work="molprof_work_total"))
WORK_OF_STEPS = Query(
    "kernel_classes",
    _WORK_BY_NAME.format(
        work="""(
  SELECT work.category, work.name, COUNT() AS count, SUM(work.dur) AS time_ns
  FROM molprof_gpu_work AS work
  JOIN molprof_work_phase AS place ON place.id = work.id
  JOIN molprof_phase AS phase ON phase.id = place.phase_id AND phase.step IS NOT NULL
  GROUP BY work.category, work.name
)"""
    ),
)


class Work(Struct, frozen=True):
    """Work of one name: of a whole foreign trace, of the recorded steps of a run. The longest time first."""

    name: str
    category: str
    kind: str  # class
    count: int
    time_ns: int

    def is_named(self, patterns: tuple[str, ...]) -> bool:
        """By patterns for its name in lower case."""
        return is_named(self.name, patterns)


def is_named(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name, in lower case, is of one of the patterns."""
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


def work_by_name(known: Known, *kinds: str) -> list[Work]:
    """Of these classes; of all without any."""
    rows = known.frame(WORK if known.report.run is None else WORK_OF_STEPS).rows()
    return [work for work in (Work(*row) for row in rows) if not kinds or work.kind in kinds]


def summed(work: Iterable[Work]) -> tuple[int, int]:
    """Count and time, ns."""
    found = list(work)
    return sum(item.count for item in found), sum(item.time_ns for item in found)


def gpu_share(known: Known, gpu_ns: float) -> float:
    """Of the wall time, of work on all devices."""
    return known.scope.gpu_part(gpu_ns / known.scope.devices)


def located(known: Known, found: Found, gain_ns: int, bounded_by: str, of: tuple[str, ...] | Sequence[Work]) -> Found:
    """What was found, with GPU time that a fix could save, and where work of these classes or names is asked for."""
    names = {item.name for item in of if isinstance(item, Work)}
    places = places_of(of_work(known, {item.kind if isinstance(item, Work) else item for item in of}, names))
    return replace(
        found,
        evidence=found.evidence + listed(places),
        gain=known.gain(gpu_share(known, gain_ns), bounded_by),
        place=first_place(places),
    )


def sequence(known: Known) -> Frame:
    """Work in order of device, stream and start, by the number of its name; of a run that of its recorded steps.

    Its column `index` is that of each piece in `known.facts.work`.
    """
    work = known.facts.work
    order = np.lexsort((work.id, work.ts, work.stream, work.device))
    columns = {"device": work.device, "stream": work.stream, "ts": work.ts, "ts_end": work.ts_end}
    columns |= {"dur": work.ts_end - work.ts, "name": known.facts.name_of, "index": np.arange(len(work.ts))}
    found = Frame({name: column[order] for name, column in columns.items()})
    if known.report.run is None:
        return found
    return found.where(known.scope.stretches.covered(found["ts"], found["ts"] + 1) > 0)


def runs_of(chosen: np.ndarray, alike: np.ndarray) -> Iterator[tuple[int, int]]:
    """From where to where rows are chosen one after the other, on one stream."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], chosen.astype(np.int8), [0]))))
    for start, stop in edges.reshape(-1, 2).tolist():
        cuts = [start, *(place for place in range(start + 1, stop) if not alike[place]), stop]
        yield from pairwise(cuts)


def same_stream(work: Frame) -> np.ndarray:
    """Whether each row is on the stream of the row before."""
    same = (work["device"][1:] == work["device"][:-1]) & (work["stream"][1:] == work["stream"][:-1])
    return np.concatenate(([False], same))
