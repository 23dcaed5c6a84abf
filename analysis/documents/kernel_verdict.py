"""What two traces kernel by kernel differ in, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from molprof.analysis.compare.kernels.pairing import DELETED, INSERTED, MOVED, Change
from molprof.analysis.compare.kernels.read import Row as Work
from molprof.analysis.compare.kernels.sums import Hunk, Location, Summed, location_of
from molprof.common.values import (
    counted,
    cut,
    factor_text,
    number_text,
    numbered,
    short_name,
    short_source,
    signed_time_text,
    time_text,
)

PART_WORDS = {
    "slower": "matched and slower",
    "faster": "matched and faster",
    "equal": "matched and equal",
    "inserted": "only in the second",
    "deleted": "only in the first",
    "moved": "moved",
    "idle": "idle between",
}
_VERBS = {INSERTED: "adds", DELETED: "leaves out", MOVED: "moves"}
# In a sentence about kernels.
_MOST_PLACES, _MOST_NAMES = 3, 3
_LONGEST = 60


def kernel_verdict(result: Summed, labels: tuple[str, str]) -> tuple[str, ...]:
    """How much longer the second takes, what it adds, leaves out and moves, and where matched work differs most."""
    if not result.span_ns and not any(result.whole.parts.values()) and not result.hunks:
        return (f"{labels[1]} and {labels[0]} ran the same {noun(result)}s in the same time.",)
    lines = (
        _kernel_total(result, labels),
        *(_only(result, labels[1], kind, verb) for kind, verb in _VERBS.items()),
        *(_most(result, part) for part in ("slower", "faster")),
    )
    return tuple(filter(None, lines))


def noun(result: Summed) -> str:
    """What sequences are made of."""
    return "kernel" if result.pairing.first.trace.has_gpu else "operator"


def _kernel_total(result: Summed, labels: tuple[str, str]) -> str:
    first_ns, other_ns = result.pairing.first.span_ns, result.pairing.other.span_ns
    ratio = f", {factor_text(other_ns / first_ns)}" if first_ns else ""
    counts = {kind: result.whole.counts[kind] for kind in (INSERTED, DELETED, MOVED)}
    parts = sorted(
        (part for part, ns in result.whole.parts.items() if ns), key=lambda part: -abs(result.whole.parts[part])
    )
    said = ", ".join(
        f"{PART_WORDS[part]} {signed_time_text(result.whole.parts[part])}"
        + (f" ({counted(counts[part], noun(result))})" if part in counts else "")
        for part in parts
    )
    total = f"{labels[1]} takes {time_text(other_ns)} against {time_text(first_ns)} of {labels[0]}"
    return f"{total} ({signed_time_text(result.span_ns)}{ratio}): {said}." if said else f"{total}."


def _only(result: Summed, label: str, kind: str, verb: str) -> str:
    """What is of one kind, by where it is and who asks for it."""
    changes = [change for change in result.pairing.changes if change.kind == kind]
    if not changes:
        return ""
    steps = len((result.pairing.first if kind == DELETED else result.pairing.other).steps)
    number, each = (len(changes) / steps, " per step") if steps else (float(len(changes)), "")
    around = _around(result.hunks, kind)
    by_place: dict[Location, list[Change]] = {}
    for change in changes:
        by_place.setdefault(location_of(change.row), []).append(change)
    places = sorted(by_place.items(), key=lambda item: -len(item[1]))
    said = [
        f"{_number(len(found), steps)} {_where(place, around.get(place))}: {_work_names(found, steps)}"
        for place, found in places
    ]
    more = f"; and {counted(len(said) - _MOST_PLACES, 'more place')}" if len(said) > _MOST_PLACES else ""
    time_ns = sum(change.time_ns for change in changes)
    text = f"{label} {verb} {numbered(number, noun(result))}{each} ({signed_time_text(time_ns)}): "
    return text + "; ".join(said[:_MOST_PLACES]) + more + "."


def _number(count: int, steps: int) -> str:
    """A count, or its mean per step."""
    return number_text(count / steps if steps else count)


def _around(hunks: Iterable[Hunk], kind: str) -> dict[Location, tuple[Work | None, Work | None]]:
    """The matched work around the first hunk of each location that has such changes."""
    found: dict[Location, tuple[Work | None, Work | None]] = {}
    for hunk in hunks:
        if any(change.kind == kind for change in hunk.example):
            before, after = hunk.around
            found.setdefault(hunk.location, (before.row if before else None, after.row if after else None))
    return found


def _where(place: Location, around: tuple[Work | None, Work | None] | None) -> str:
    """In which phase and module, or between what."""
    inside = [f"in the {place.phase} phase"] if place.phase else []
    inside += [f"in {place.inner}"] if place.module else []
    before, after = around or (None, None)
    if place.phase and before and after and place.phase not in (before.phase, after.phase):
        inside.append(f"between {before.phase} and {after.phase}")
    elif not inside:
        names = [_work_name(row) if row else None for row in (before, after)]
        start, end = names[0] or "the start", names[1] or "the end"
        inside.append(f"between {start} and {end}")
    return ", ".join(inside)


def _work_names(changes: Sequence[Change], steps: int) -> str:
    """The most frequent operators, and the functions that ask for them."""
    groups = Counter((_work_name(change.row), change.row.source) for change in changes)
    most = groups.most_common(_MOST_NAMES)
    sources = {source for _, source in groups}
    found = [
        f"{_number(number, steps)} {name}" + (f" from {short_source(source)}" if source and len(sources) > 1 else "")
        for (name, source), number in most
    ]
    more = len(groups) - len(most)
    text = ", ".join(found) + (f" and {counted(more, 'other')}" if more > 0 else "")
    source = sources.pop() if len(sources) == 1 else None
    return text + (f" from {short_source(source)}" if source else "")


def _work_name(row: Work) -> str:
    return cut(row.operator or short_name(row.name), _LONGEST)


def _most(result: Summed, part: str) -> str:
    places = sorted(
        ((place, item) for place, item in result.locations.items() if item.parts[part]),
        key=lambda pair: -abs(pair[1].parts[part]),
    )
    if not places:
        return ""
    said = ", ".join(f"{place.short} {signed_time_text(item.parts[part])}" for place, item in places[:_MOST_PLACES])
    more = f" and {counted(len(places) - _MOST_PLACES, 'more place')}" if len(places) > _MOST_PLACES else ""
    return f"Matched {noun(result)}s are {part} most in {said}{more}."
