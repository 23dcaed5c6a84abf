"""Which collectives of different ranks are one exchange: matched by process group and order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from molprof.analysis.ranks.model import Collective, RankTrace, Step

# In these not all ranks of the group take part.
_PAIRWISE = ("send", "recv", "sendrecv")


@dataclass(frozen=True)
class Exchange:
    """A collective of several ranks that are here, by rank."""

    group: str  # name of the process group, or of the stream where groups are not recorded
    kernels: dict[int, Collective]

    @property
    def one(self) -> Collective:
        """The kernel of the lowest rank, for what all have in common."""
        return self.kernels[min(self.kernels)]


def match(ranks: Sequence[RankTrace]) -> tuple[list[Exchange], list[str]]:
    """All exchanges in order of their start on the lowest rank, and a remark for each group that does not match.

    Ranks of a group must have the same operations of the same sizes in the same order; else it is tried step by step.
    """
    groups: dict[tuple[str, str], dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for kernel in rank.collectives:
            if kernel.operation not in _PAIRWISE:
                groups[_group(kernel)][rank.rank].append(kernel)
    found: list[Exchange] = []
    remarks: list[str] = []
    traces = {rank.rank: rank for rank in ranks}
    for (name, members), kernels in groups.items():
        if len(kernels) < 2:
            continue
        made = list(_matched(name, kernels)) or list(_matched_by_step(name, kernels, traces))
        found += made
        counts = {len(items) for items in kernels.values()}
        if len(made) < max(counts):
            shown = ", ".join(f"rank {rank} has {len(items)}" for rank, items in sorted(kernels.items())[:8])
            what = f"{len(made)} of them are matched" if made else "none is matched"
            remarks.append(f"collectives of {name}{f' {members}' if members else ''} differ ({shown}): {what}")
    return sorted(found, key=lambda item: (item.one.start_ns, item.group)), remarks


def member_count(kernel: Collective) -> int | None:
    """How many ranks its process group has; None if not recorded."""
    if kernel.group_size:
        return kernel.group_size
    if kernel.group_ranks and "..." not in kernel.group_ranks:
        return len(re.findall(r"\d+", kernel.group_ranks)) or None
    return None


def _group(kernel: Collective) -> tuple[str, str]:
    if kernel.group_name is None and kernel.group_ranks is None:
        return "stream not recorded" if kernel.stream is None else f"stream {kernel.stream}", ""
    return f"group {kernel.group_name or ''}".strip(), kernel.group_ranks or ""


def _matched(name: str, kernels: dict[int, list[Collective]]) -> Iterator[Exchange]:
    """Exchanges by number where every kernel has one, else by order if all ranks have the same ones."""
    lists = list(kernels.values())
    numbers = [[item.sequence for item in items] for items in lists]
    if all(None not in mine and len(set(mine)) == len(mine) for mine in numbers):
        by_number = {rank: {item.sequence: item for item in items} for rank, items in kernels.items()}
        for number in sorted(set().union(*by_number.values()), key=lambda value: value or 0):
            there = {rank: items[number] for rank, items in by_number.items() if number in items}
            if len(there) == len(kernels) and len({_kind(item) for item in there.values()}) == 1:
                yield Exchange(name, there)
        return
    if len({tuple(map(_kind, items)) for items in lists}) == 1:
        for place in range(len(lists[0])):
            yield Exchange(name, {rank: items[place] for rank, items in kernels.items()})


def _matched_by_step(
    name: str, kernels: dict[int, list[Collective]], traces: dict[int, RankTrace]
) -> Iterator[Exchange]:
    """Exchanges of the steps that all ranks have, where their order is the same."""
    steps = {rank: {step.name: step for step in traces[rank].steps} for rank in kernels}
    for step in [item for item in next(iter(steps.values())) if all(item in mine for mine in steps.values())]:
        mine = {rank: [item for item in items if _inside(item, steps[rank][step])] for rank, items in kernels.items()}
        if all(mine.values()):
            yield from _matched(name, mine)


def _inside(kernel: Collective, step: Step) -> bool:
    return step.start_ns <= kernel.start_ns < step.end_ns


def _kind(kernel: Collective) -> tuple[str, int | None]:
    return kernel.operation, kernel.bytes
