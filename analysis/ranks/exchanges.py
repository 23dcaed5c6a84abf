"""Exchanges: collectives matched over ranks, the clocks aligned by them, and the cost of each.

They are matched by process group and order. One that needs all its ranks ends on all of them at nearly the same moment.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from molprof.analysis.ranks.read import PERHAPS, Collective, RankTrace
from molprof.analysis.union import Union
from molprof.common.values import Range

# In these not all ranks of the group take part, or perhaps none.
_PAIRWISE = ("send", "recv", "sendrecv", PERHAPS)
# No rank can end before every rank has begun. Of a broadcast or reduce the root may be long gone.
JOINT = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")


@dataclass(frozen=True)
class Exchange:
    """A collective of several ranks with files, by rank."""

    group: str  # name of the process group, or of the stream where groups are not recorded
    kernels: dict[int, Collective]

    @property
    def one(self) -> Collective:
        """The kernel of the lowest rank, for properties that all ranks share."""
        return self.kernels[min(self.kernels)]


@dataclass(frozen=True)
class EndSpread:
    """The spread of the ends of one collective over its ranks, over collectives, ns."""

    median_ns: int
    most_ns: int
    collectives: int


@dataclass(frozen=True)
class RankClocks:
    """Offsets to subtract from each rank's times; the lowest rank keeps its clock, also among the unaligned."""

    offsets_ns: dict[int, int]
    unaligned: tuple[int, ...]  # ranks that share no joint collective, directly or not, with the lowest
    recorded: EndSpread | None  # before; None: no joint collectives
    aligned: EndSpread | None  # after: the error of all that is read from two clocks


@dataclass(frozen=True)
class ExchangePart:
    """A rank's part of an exchange, ns, on the aligned clock."""

    start_ns: int
    end_ns: int
    waiting_ns: int  # until the last rank began
    hidden_ns: int  # behind other work of the rank

    @property
    def moving_ns(self) -> int:
        """The time of the exchange beyond waiting, ns."""
        return self.end_ns - self.start_ns - self.waiting_ns

    @property
    def exposed_ns(self) -> int:
        """The time of the exchange that no other work hides, ns."""
        return self.end_ns - self.start_ns - self.hidden_ns


@dataclass(frozen=True)
class Cost:
    """An exchange on the aligned clock."""

    exchange: Exchange
    parts: dict[int, ExchangePart]
    last_rank: int | None  # which began last; None if not all ranks wait for it
    late_ns: int  # by which it began after the median of the others
    apart_ns: int  # how far its ends are apart: the error of what is read from the clocks of two of its ranks
    moving_ns: int  # from the last start to the last end
    bus_bytes_per_s: Range | None  # lowest and highest; equal where the size of the group is recorded


def match(ranks: Sequence[RankTrace]) -> tuple[list[Exchange], list[str]]:
    """Return all exchanges by their start on the lowest rank, and a remark for each group that does not match.

    Ranks of a group must have the same operations of the same sizes in the same order; else it is tried step by step.
    """
    groups: dict[tuple[str, str], dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for kernel in rank.collectives:
            group = f"group {kernel.group_name or ''}".strip(), kernel.group_ranks or ""
            if kernel.group_name is None and kernel.group_ranks is None:
                group = "stream not recorded" if kernel.stream is None else f"stream {kernel.stream}", ""
            if kernel.operation not in _PAIRWISE:
                groups[group][rank.rank].append(kernel)
    exchanges: list[Exchange] = []
    remarks: list[str] = []
    traces = {rank.rank: rank for rank in ranks}
    for (name, members), kernels in groups.items():
        if len(kernels) < 2:
            continue
        matched = list(_matched(name, kernels)) or list(_matched_by_step(name, kernels, traces))
        exchanges += matched
        if len(matched) < max(map(len, kernels.values())):
            shown = ", ".join(f"rank {rank} has {len(items)}" for rank, items in sorted(kernels.items())[:8])
            what = f"{len(matched)} of them are matched" if matched else "none is matched"
            remarks.append(f"collectives of {name}{f' {members}' if members else ''} differ ({shown}): {what}")
    return sorted(exchanges, key=lambda item: (item.one.start_ns, item.group)), remarks


def _matched(name: str, kernels: dict[int, list[Collective]]) -> Iterator[Exchange]:
    """Yield exchanges by number where every kernel has one, else by order if all ranks have the same ones."""
    lists = list(kernels.values())
    numbers = [[item.sequence for item in items] for items in lists]
    if all(None not in mine and len(set(mine)) == len(mine) for mine in numbers):
        by_number = {rank: {item.sequence: item for item in items} for rank, items in kernels.items()}
        for number in sorted(set().union(*by_number.values()), key=lambda value: value or 0):
            there = {rank: items[number] for rank, items in by_number.items() if number in items}
            if len(there) == len(kernels) and len({_kind(item) for item in there.values()}) == 1:
                yield Exchange(name, there)
    elif len({tuple(map(_kind, items)) for items in lists}) == 1:
        for items in zip(*lists, strict=True):
            yield Exchange(name, dict(zip(kernels, items, strict=True)))


def _matched_by_step(
    name: str, kernels: dict[int, list[Collective]], traces: dict[int, RankTrace]
) -> Iterator[Exchange]:
    """Yield the exchanges of the steps that all ranks have, where their order is the same."""
    steps = {rank: {step.name: step for step in traces[rank].steps} for rank in kernels}
    for name_of_step in next(iter(steps.values())):
        if all(name_of_step in mine for mine in steps.values()):
            spans = {rank: mine[name_of_step] for rank, mine in steps.items()}
            inside = {
                rank: [item for item in items if spans[rank].start_ns <= item.start_ns < spans[rank].end_ns]
                for rank, items in kernels.items()
            }
            if all(inside.values()):
                yield from _matched(name, inside)


def _kind(kernel: Collective) -> tuple[str, int | None]:
    return kernel.operation, kernel.bytes


def align(ranks: Sequence[int], exchanges: Sequence[Exchange]) -> RankClocks:
    """Return the clocks of ranks by the median distance of the ends of their joint collectives.

    Ranks that share none with the lowest are aligned with each other, as far as they share some.
    """
    joint = [item for item in exchanges if item.one.operation in JOINT]
    first = offsets = _connected(min(ranks), joint)
    while left := set(ranks) - offsets.keys():
        offsets = offsets | _connected(min(left), joint)
    unaligned = tuple(sorted(set(ranks) - first.keys()))
    return RankClocks(offsets, unaligned, _spread(joint, dict.fromkeys(ranks, 0)), _spread(joint, offsets))


def _connected(rank: int, joint: Sequence[Exchange]) -> dict[int, int]:
    """Return the clock offsets, from one rank's, of the ranks that joint collectives connect with it."""
    offsets = {rank: 0}
    while True:
        distances: dict[int, list[float]] = {}
        for item in joint:
            aligned, others = item.kernels.keys() & offsets.keys(), item.kernels.keys() - offsets.keys()
            if aligned and others:
                here = median(item.kernels[one].end_ns - offsets[one] for one in aligned)
                for other in others:
                    distances.setdefault(other, []).append(item.kernels[other].end_ns - here)
        if not distances:
            return offsets
        offsets |= {rank: round(median(values)) for rank, values in distances.items()}


def _spread(exchanges: Sequence[Exchange], offsets: dict[int, int]) -> EndSpread | None:
    if not exchanges:
        return None
    ends = [[kernel.end_ns - offsets[rank] for rank, kernel in item.kernels.items()] for item in exchanges]
    apart = [max(each) - min(each) for each in ends]
    return EndSpread(round(median(apart)), max(apart), len(apart))


def cost_of(item: Exchange, clocks: RankClocks, compute: Mapping[int, Union], world_size: int | None) -> Cost:
    """Return the cost of an exchange. compute: when each rank ran other work, on the clock of its file."""
    offsets = clocks.offsets_ns
    starts = {rank: kernel.start_ns - offsets[rank] for rank, kernel in item.kernels.items()}
    ends = {rank: kernel.end_ns - offsets[rank] for rank, kernel in item.kernels.items()}
    last = max(starts, key=lambda rank: (starts[rank], -rank))
    waits = item.one.operation in JOINT  # so its ranks are aligned with each other
    parts = {
        rank: ExchangePart(
            starts[rank],
            ends[rank],
            min(starts[last], ends[rank]) - starts[rank] if waits else 0,
            int(compute[rank].covered(kernel.start_ns, kernel.end_ns)),
        )
        for rank, kernel in item.kernels.items()
    }
    others = [start for rank, start in starts.items() if rank != last]
    late = round(starts[last] - median(others)) if waits else 0
    moving = max(0, max(ends.values()) - (starts[last] if waits else min(starts.values())))
    apart = max(ends.values()) - min(ends.values()) if waits else 0
    return Cost(item, parts, last if waits else None, late, apart, moving, _bandwidth(item, moving, world_size))


def _bandwidth(item: Exchange, moving_ns: int, world_size: int | None) -> Range | None:
    """Return bytes/s of the busiest link: see github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md, `busbw`."""
    one = item.one
    count = one.group_size
    if not count and one.group_ranks and "..." not in one.group_ranks:
        count = len(re.findall(r"\d+", one.group_ranks))
    fewest = count or len(item.kernels)
    most = count or max(fewest, world_size or fewest)
    low, high = bus_factor(one.operation, fewest), bus_factor(one.operation, most)
    if one.bytes is None or not moving_ns or low is None or high is None:
        return None
    return one.bytes * low * 1e9 / moving_ns, one.bytes * high * 1e9 / moving_ns


def bus_factor(operation: str, ranks: int) -> float | None:
    """Return bytes on the busiest link per byte of the collective, by nccl-tests; None for other operations."""
    if operation == "allreduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("allgather", "reducescatter", "alltoall"):
        return (ranks - 1) / ranks
    return 1.0 if operation in ("broadcast", "reduce") else None
