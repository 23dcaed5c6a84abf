"""The ranks of a job as a document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from statistics import median

from molprof.analysis.documents.ranks_data import PARTS, ranks_data, totals
from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.ranks import Job
from molprof.analysis.ranks.exchanges import Cost
from molprof.analysis.ranks.stragglers import Straggler
from molprof.common.document import Column, Document, Plot, Row, Section, Table
from molprof.common.values import Range, counted, cut, percent_text, short_name, time_text

_PARTS = (
    Column("compute", "ns"),
    Column("exposed communication", "ns"),
    Column("waiting", "ns"),
    Column("idle", "ns"),
    Column("hidden communication", "ns"),
)
_CAPTION = "What each rank did when, on one clock"
# Columns of a kernel's name in a sentence.
_LONGEST = 60
_SUM = "wall time = compute + exposed communication + waiting + idle"


def ranks_document(job: Job) -> Document:
    """Return the ranks side by side: their time, their clocks, stragglers, collectives."""
    steps = _steps(job)
    of = "" if job.world_size is None else f" of {job.world_size}"
    sections = [
        Section("Ranks", notes=(_SUM, *_checks(job)), table=_ranks(job)),
        Section("", parts=(Section("Timeline", plot=Plot(_CAPTION, partial(_svg, job))),)),
        Section("Stragglers", notes=_straggler_notes(job), table=_stragglers(job)),
        Section("Collectives", notes=_collective_notes(job), table=_collectives(job)),
        Section("Clocks", notes=_clocks(job)),
        Section("Steps", notes=(_SUM,), table=steps, detail=True),
        Section("Files", notes=job.left_out, table=_files(job), detail=True),
    ]
    return Document(
        f"molprof ranks: {len(job.ranks)}{of} {'rank' if len(job.ranks) == 1 and not of else 'ranks'}",
        tuple(item for item in sections if item.notes or item.parts or (item.table and item.table.rows)),
        data=lambda: ranks_data(job),
        records=lambda: steps,
        warnings=job.remarks,
        summary=tuple(_summary(job)),
    )


def _svg(job: Job) -> str:
    from molprof.analysis.documents.plots.ranks import ranks_svg  # loads matplotlib

    return ranks_svg(job)


def _ranks(job: Job) -> Table:
    rows: list[Row] = []
    for rank in job.ranks:
        found = totals(job, rank.rank)
        parts = [found[name] for name in ("wall_ns", *PARTS, "hidden_ns")]
        kernels = sum(times.kernels for times in rank.times)
        rows.append((rank.rank, ", ".join(times.device for times in rank.times), kernels, *parts))
    columns = (Column("rank", "index"), Column("device"), Column("kernels", "count"), Column("wall", "ns"), *_PARTS)
    return Table(columns, rows)


def _steps(job: Job) -> Table:
    columns = (Column("step"), Column("rank", "index"), Column("wall", "ns"), *_PARTS)
    rows = [
        (name, step.rank, *(getattr(step, part) for part in ("wall_ns", *PARTS, "hidden_ns")))
        for (name, _), steps in job.steps.items()
        for step in steps
    ]
    return Table(columns, rows, keys=2)


def _checks(job: Job) -> Iterator[str]:
    broken = [check for check in job.checks if not check.holds]
    for check in broken:
        yield f"NOT EQUAL: rank {check.rank}, {check.text}: {check.left_ns} ns and {check.right_ns} ns"
    if job.checks and not broken:
        yield f"all {len(job.checks)} sums hold to the nanosecond"


def _stragglers(job: Job) -> Table:
    columns = (
        Column("step"),
        Column("rank", "index"),
        Column("late", "ns"),
        Column("last to"),
        Column("others waited", "ns"),
        Column("meanwhile compute", "ns"),
        Column("communication", "ns"),
        Column("idle", "ns"),
    )
    rows = [
        (
            item.step,
            item.rank,
            item.late_ns,
            f"{item.collectives} of {item.of_collectives}",
            item.waited_ns,
            item.compute_ns,
            item.exposed_ns,
            item.idle_ns,
        )
        for item in job.stragglers
    ]
    return Table(columns, rows)


def _straggler_notes(job: Job) -> tuple[str, ...]:
    if not job.stragglers:
        return ()
    late = "late: after the median of the other ranks, summed over the collectives to which the rank came last"
    worst = sorted(job.stragglers, key=lambda item: -item.late_ns)[:3]
    return (late, "others waited: summed over ranks", *(_instead(item) for item in worst))


def _instead(item: Straggler) -> str:
    """What a straggler did while it was late."""
    parts = []
    if item.kernels and item.compute_ns:
        names = ", ".join(f"{cut(short_name(name), _LONGEST)} {time_text(time)}" for name, time in item.kernels)
        parts.append(f"it computed for {time_text(item.compute_ns)} ({names})")
    if item.idle_ns:
        causes = ", ".join(f"{IDLE_CAUSES.get(cause, cause)} {time_text(time)}" for cause, time in item.causes)
        host = ", ".join(f"{name} {time_text(time)}" for name, time in item.host)
        parts.append(f"it was idle for {time_text(item.idle_ns)} ({causes or 'short gaps'})")
        if host:
            parts.append(f"its host was in {host}")
    return f"{item.step}, rank {item.rank}, while it was late: {'; '.join(parts) or 'it exchanged data'}"


def _collectives(job: Job) -> Table:
    """Exchanges of one operation, group and size in a row, longest first."""
    rows: dict[tuple[str, str, int | None], list[Cost]] = defaultdict(list)
    for cost in job.costs:
        one = cost.exchange.one
        rows[one.operation, cost.exchange.group, one.bytes].append(cost)
    columns = (
        Column("operation"),
        Column("group"),
        Column("size", "bytes"),
        Column("count", "count"),
        Column("waiting", "ns"),
        Column("moving data", "ns"),
        Column("exposed", "ns"),
        Column("hidden", "ns"),
        Column("one moves data for", "ns"),
        Column("bus bandwidth, GB/s", "speed"),
    )
    made: list[Row] = []
    for (operation, group, size), items in rows.items():
        parts = [part for cost in items for part in cost.parts.values()]
        made.append(
            (
                operation,
                group,
                size,
                len(items),
                sum(part.waiting_ns for part in parts),
                sum(part.moving_ns for part in parts),
                sum(part.exposed_ns for part in parts),
                sum(part.hidden_ns for part in parts),
                round(median(cost.moving_ns for cost in items)),
                _typical(items),
            )
        )
    longest = sorted(made, key=lambda row: -(row[4] + row[5]))  # type: ignore[operator]
    return Table(columns, longest, keys=3)


def _typical(items: list[Cost]) -> float | Range | None:
    """Median of the bandwidths in GB/s; two where the size of the group is between two numbers."""
    found = [cost.bus_bytes_per_s for cost in items if cost.bus_bytes_per_s is not None]
    if not found:
        return None
    low, high = (median(pair[end] for pair in found) / 1e9 for end in (0, 1))
    return low if low == high else (low, high)


def _collective_notes(job: Job) -> tuple[str, ...]:
    if not job.costs:
        return ("no collective of two ranks that are here is recorded",)
    return (
        "waiting: until the last rank began; waiting, moving, exposed and hidden are summed over ranks",
        "medians of one collective: from its last start to its last end; bus bandwidth as nccl-tests define it",
    )


def _clocks(job: Job) -> tuple[str, ...]:
    clocks = job.clocks
    if clocks.aligned is None or clocks.recorded is None:
        return ("not aligned: no collective in which all ranks take part is recorded by two ranks",)
    after = f"{time_text(clocks.aligned.median_ns)} apart (median; at most {time_text(clocks.aligned.most_ns)})"
    before = f"{time_text(clocks.recorded.median_ns)} (at most {time_text(clocks.recorded.most_ns)})"
    notes = [
        f"aligned by the ends of {counted(clocks.aligned.collectives, 'collective')}: they are {after}",
        f"as recorded: {before}",
        "that distance is the error of waiting and lateness; shorter ones tell nothing",
    ]
    if clocks.unaligned:
        notes.append(f"not aligned, for lack of a joint collective: ranks {', '.join(map(str, clocks.unaligned))}")
    return tuple(notes)


def _files(job: Job) -> Table:
    columns = (Column("rank", "index"), Column("file"), Column("steps"), Column("clock offset", "change_ns"))
    rows = [
        (
            rank.rank,
            rank.path,
            counted(len(rank.steps), "step"),
            None if rank.rank in job.clocks.unaligned else job.clocks.offsets_ns[rank.rank],
        )
        for rank in job.ranks
    ]
    return Table(columns, rows)


def _summary(job: Job) -> Iterator[str]:
    found = [totals(job, rank.rank) for rank in job.ranks]
    wall = sum(item["wall_ns"] for item in found)
    if wall:
        shares = [
            f"{label} {percent_text(sum(item[name] for item in found) / wall)}"
            for label, name in zip(("compute", "exposed communication", "waiting", "idle"), PARTS, strict=True)
        ]
        yield f"Time of all ranks: {', '.join(shares)}."
    if job.stragglers:
        late: dict[int, int] = defaultdict(int)
        waited: dict[int, int] = defaultdict(int)
        for item in job.stragglers:
            late[item.rank] += item.late_ns
            waited[item.rank] += item.waited_ns
        rank = max(late, key=lambda item: (late[item], -item))
        steps = [item for item in job.stragglers if item.rank == rank]
        of = f"{len(steps)} of {counted(len(job.stragglers), 'step')}"
        yield f"Rank {rank} was the straggler of {of}: the others waited {time_text(waited[rank])} in total for it."
