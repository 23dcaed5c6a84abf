"""The ranks of a job as a document. Names of its JSON are documented in docs/ranks.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from statistics import median
from typing import Any

from msgspec import to_builtins

from molprof.analysis.documents.plots import plot_section
from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.analysis.frame import Frame
from molprof.analysis.ranks import RankedJob
from molprof.analysis.ranks.path import Crossing, PathSpan
from molprof.analysis.ranks.split import Straggler
from molprof.common.document import Document, Name, Section, Table, named, objects, table_of
from molprof.common.values import Range, Unit, counted, cut, percent_text, short_name, time_text

SCHEMA = 1
# The parts of the wall time are between it and what of the communication is hidden.
_TIMES: tuple[tuple[str, Unit, str], ...] = (
    ("wall", "ns", "wall_ns"), ("compute", "ns", "compute_ns"), ("exposed communication", "ns", "exposed_ns"),
    ("waiting", "ns", "waiting_ns"), ("idle", "ns", "idle_ns"), ("hidden communication", "ns", "hidden_ns"),
)  # fmt: skip
_TIME_NAMES = [name for _, _, name in _TIMES]
_PATH = ("wall_ns", "compute_ns", "exposed_ns", "waiting_ns", "idle_ns")
_OF_EXCHANGE = ("waiting_ns", "moving_ns", "exposed_ns", "hidden_ns")
# A collective in JSON.
_COST: tuple[Name, ...] = (
    ("group", "exchange.group"), ("operation", "exchange.one.operation"), ("dtype", "exchange.one.dtype"),
    ("bytes", "exchange.one.bytes"), ("ranks", lambda cost: sorted(cost.parts)),
    ("start_ns", lambda cost: min(part.start_ns for part in cost.parts.values())),
    ("end_ns", lambda cost: max(part.end_ns for part in cost.parts.values())),
    "last_rank", "late_ns", ("data_ns", "moving_ns"),
    *((name, lambda cost, name=name: _added(cost.parts.values(), [name])[name]) for name in _OF_EXCHANGE),
    "bus_bytes_per_s",
)  # fmt: skip
# Columns of a kernel's name in a sentence.
_LONGEST = 60
# Ranks that the summary names.
_RANKS_NAMED = 3
_UNSURE = "its lateness is below the error of the clocks"
_SUM = "wall time = compute + exposed communication + waiting + idle"


def ranks_document(job: RankedJob) -> Document:
    """Return the ranks side by side: their time, their clocks, stragglers, collectives."""
    data = _data(job)
    of = "" if job.world_size is None else f" of {job.world_size}"
    ranks = table_of(
        data["ranks"],
        ("rank", "index"),
        ("device", "text", lambda item: ", ".join(item["devices"])),
        ("kernels", "count", lambda item: sum(device["kernels"] for device in item["devices"].values())),
        *_TIMES,
    )
    of_steps = [{"step": step["name"], **rank} for step in data["steps"] for rank in step["ranks"]]
    steps = table_of(of_steps, ("step", "text"), ("rank", "index"), *_TIMES, keys=2)
    files = table_of(
        zip(data["ranks"], job.ranks, strict=True),
        ("rank", "index", "0.rank"), ("file", "text", "0.path"),
        ("steps", "text", lambda item: counted(len(item[1].steps), "step")),
        ("clock offset", "change_ns", "0.clock_offset_ns"),
    )  # fmt: skip
    stragglers = table_of(
        job.stragglers,
        ("step", "text"), ("rank", "index"), ("late", "ns", "late_ns"), ("clocks' error", "ns", "error_ns"),
        ("last to", "text", lambda item: f"{item.collectives} of {item.of_collectives}"),
        ("others waited", "ns", "waited_ns"), ("meanwhile compute", "ns", "compute_ns"),
        ("communication", "ns", "exposed_ns"), ("idle", "ns", "idle_ns"),
    )  # fmt: skip
    late: tuple[str, ...] = (
        "late: after the median of the other ranks, summed over the collectives to which the rank came last",
        "clocks' error: how far the ends of a collective of the step are apart at most, times those it was last to",
        "others waited: summed over ranks",
        *(_activity(item) for item in sorted(job.stragglers, key=lambda item: -item.late_ns)[:3]),
    )
    collectives: tuple[str, ...] = (
        "waiting: until the last rank began; waiting, moving, exposed and hidden are summed over ranks",
        "medians of one collective: from its last start to its last end; bus bandwidth as nccl-tests define it",
    )
    if not job.costs:
        collectives = ("no collective of two ranks that are here is recorded",)
    sections = [
        Section("Ranks", notes=(_SUM, *_checks(job)), table=ranks),
        plot_section(["ranks"], job),
        Section("Stragglers", notes=late if job.stragglers else (), table=stragglers),
        *_path(job),
        Section("Collectives", notes=collectives, table=_collectives(data["collectives"])),
        Section("Clocks", notes=tuple(_clocks(job))),
        Section("Steps", notes=(_SUM,), table=steps, detail=True),
        Section("Files", notes=job.left_out, table=files, detail=True),
    ]
    return Document(
        f"molprof ranks: {len(job.ranks)}{of} {'rank' if len(job.ranks) == 1 and not of else 'ranks'}",
        tuple(item for item in sections if item.notes or item.parts or (item.table and item.table.rows)),
        data=lambda: data,
        records=lambda: steps,
        warnings=job.remarks,
        summary=tuple(_summary(job, data["ranks"])),
    )


def rank_frame(job: RankedJob) -> Frame:
    """Return a row for each rank and step: times, ns; the straggler's lateness; the file, clock and devices."""
    late = {(item.step, item.number, item.rank): item.late_ns for item in job.stragglers}
    traces = {item.rank: item for item in job.ranks}
    rows = [
        (
            name, number, step.rank, *(getattr(step, time) for time in _TIME_NAMES),
            late.get((name, number, step.rank)), job.clocks.offsets_ns.get(step.rank),
            sum(times.kernels for times in traces[step.rank].times),
            ", ".join(times.device for times in traces[step.rank].times), traces[step.rank].path,
        )
        for (name, number), steps in job.steps.items()
        for step in steps
    ]  # fmt: skip
    columns = ("step", "number", "rank", *_TIME_NAMES, "late_ns", "clock_offset_ns", "kernels", "devices", "file")
    return Frame.of_rows(columns, rows)


def _data(job: RankedJob) -> dict[str, Any]:
    late: dict[tuple[str, int], list[Straggler]] = defaultdict(list)
    for item in job.stragglers:
        late[item.step, item.number].append(item)
    offsets = {rank: ns for rank, ns in job.clocks.offsets_ns.items() if rank not in job.clocks.unaligned}
    all_steps = [step for of_step in job.steps.values() for step in of_step]
    return {
        "schema": SCHEMA, **named(job, "world_size", "remarks", "left_out", "unread"),
        "clocks": named(job.clocks, "recorded", "aligned", ("unaligned_ranks", "unaligned")),
        "ranks": [
            {
                **named(rank, "rank", "path", "backend", ("complete", lambda rank: rank.problem is None)),
                "clock_offset_ns": offsets.get(rank.rank),
                **_added([step for step in all_steps if step.rank == rank.rank], _TIME_NAMES),
                "devices": {times.device: _without(times, "device") for times in rank.times},
            }
            for rank in job.ranks
        ],
        "steps": [
            {
                "name": name, "number": number,
                "stragglers": [_without(item, "step", "number") for item in late[name, number]],
                "ranks": objects(steps, "rank", "start_ns", *_TIME_NAMES),
            }
            for (name, number), steps in job.steps.items()
        ],
        "path": job.path, "collectives": objects(job.costs, *_COST),
        "checks": objects(job.checks, "rank", "text", "left_ns", "right_ns", "holds"),
    }  # fmt: skip


def _added(items: Collection[Any], names: Sequence[str]) -> dict[str, int]:
    return {name: sum(getattr(item, name) for item in items) for name in names}


def _without(item: Any, *names: str) -> dict[str, Any]:
    return {key: value for key, value in to_builtins(item).items() if key not in names}


def _checks(job: RankedJob) -> Iterator[str]:
    broken = [check for check in job.checks if not check.holds]
    for check in broken:
        yield f"NOT EQUAL: rank {check.rank}, {check.text}: {check.left_ns} ns and {check.right_ns} ns"
    if job.checks and not broken:
        yield f"all {len(job.checks)} sums hold to the nanosecond"


def _path(job: RankedJob) -> list[Section]:
    """Return the critical path over ranks: its time by rank, and the longest waits at which it changes ranks."""
    if not job.path:
        return []
    of_rank: dict[int, list[PathSpan]] = defaultdict(list)
    for span in job.path:
        of_rank[span.rank].append(span)
    whole = sum(span.wall_ns for span in job.path)
    rows = [{"rank": rank, "times": len(each), **_added(each, _PATH)} for rank, each in sorted(of_rank.items())]
    table = table_of(
        rows,
        ("rank", "index"), ("spans", "count", "times"), ("on the path", "ns", "wall_ns"),
        ("share", "ratio", lambda row: row["wall_ns"] / whole),
        ("compute", "ns", "compute_ns"), ("communication", "ns", "exposed_ns"), ("waiting", "ns", "waiting_ns"),
        ("idle", "ns", "idle_ns"),
    )  # fmt: skip
    crossings = [span.crossing for span in job.path if span.crossing is not None]
    longest = sorted(crossings, key=lambda item: -item.waited_ns)[:_RANKS_NAMED]
    notes = [
        f"From the end back, through the rank that each collective waited for: {time_text(whole)} in all. Only what is "
        "on it can make the job shorter. It begins with the first work of any rank; a rank "
        "that begins later is idle until then.",
        *map(_waits, longest),
    ]
    return [Section("Critical path over ranks", tuple(notes), table)]


def _activity(item: Straggler) -> str:
    """Return the activity of a straggler while it was late."""
    if not item.is_sure:
        return f"{item.step}, rank {item.rank}: {_UNSURE}, so its activity meanwhile is not known"
    parts = []
    if item.kernels and item.compute_ns:
        parts.append(f"it computed for {time_text(item.compute_ns)} ({_kernels(item)})")
    if item.idle_ns:
        parts.append(f"it was idle for {time_text(item.idle_ns)} ({_causes(item) or 'short gaps'})")
        if item.host:
            parts.append(f"on its host: {_host(item)}")
    return f"{item.step}, rank {item.rank}, while it was late: {'; '.join(parts) or 'it exchanged data'}"


def _waits(item: Crossing) -> str:
    """Return the rank for which another waited, and what that one did meanwhile."""
    parts = [f"computed ({_kernels(item)})"] if item.kernels else []
    parts += [f"was idle ({_causes(item)})"] if item.causes else []
    parts += [f"on its host: {_host(item)}"] if item.causes and item.host else []
    what = f"Rank {item.rank} waits {time_text(item.waited_ns)} in {item.operation} for rank {item.last_rank}"
    return f"{what}, which {'; '.join(parts)}" if parts else what


def _kernels(item: Straggler | Crossing) -> str:
    return ", ".join(f"{cut(short_name(name), _LONGEST)} {time_text(time)}" for name, time in item.kernels)


def _causes(item: Straggler | Crossing) -> str:
    return ", ".join(f"{IDLE_CAUSES.get(cause, cause)} {time_text(time)}" for cause, time in item.causes)


def _host(item: Straggler | Crossing) -> str:
    return ", ".join(f"{name} {time_text(time)}" for name, time in item.host)


def _collectives(costs: Sequence[dict[str, Any]]) -> Table:
    """Return exchanges, those of one operation, group and size in a row, longest first."""
    groups: dict[tuple[str, str, int | None], list[dict[str, Any]]] = defaultdict(list)
    for cost in costs:
        groups[cost["operation"], cost["group"], cost["bytes"]].append(cost)
    rows = [
        {
            **items[0],
            "count": len(items),
            **{name: sum(item[name] for item in items) for name in _OF_EXCHANGE},
            "one_ns": round(median(item["data_ns"] for item in items)),
            "bandwidth": _typical([item["bus_bytes_per_s"] for item in items if item["bus_bytes_per_s"] is not None]),
        }
        for items in groups.values()
    ]
    return table_of(
        sorted(rows, key=lambda item: -(item["waiting_ns"] + item["moving_ns"])),
        ("operation", "text"), ("group", "text"), ("size", "bytes", "bytes"), ("count", "count"),
        ("waiting", "ns", "waiting_ns"), ("moving data", "ns", "moving_ns"), ("exposed", "ns", "exposed_ns"),
        ("hidden", "ns", "hidden_ns"), ("one moves data for", "ns", "one_ns"),
        ("bus bandwidth, GB/s", "speed", "bandwidth"),
        keys=3,
    )  # fmt: skip


def _typical(bandwidths: Sequence[Sequence[float]]) -> float | Range | None:
    """Return the median of the bandwidths in GB/s; two where the size of the group is between two numbers."""
    if not bandwidths:
        return None
    low, high = (median(pair[end] for pair in bandwidths) / 1e9 for end in (0, 1))
    return low if low == high else (low, high)


def _clocks(job: RankedJob) -> Iterator[str]:
    clocks = job.clocks
    if clocks.aligned is None or clocks.recorded is None:
        yield "not aligned: no collective in which all ranks take part is recorded by two ranks"
        return
    after = f"{time_text(clocks.aligned.median_ns)} apart (median; at most {time_text(clocks.aligned.most_ns)})"
    yield f"aligned by the ends of {counted(clocks.aligned.collectives, 'collective')}: they are {after}"
    yield f"as recorded: {time_text(clocks.recorded.median_ns)} (at most {time_text(clocks.recorded.most_ns)})"
    yield "that distance is the error of waiting and lateness; shorter ones mean nothing"
    if clocks.unaligned:
        yield f"not aligned, for lack of a joint collective: ranks {', '.join(map(str, clocks.unaligned))}"


def _summary(job: RankedJob, ranks: Sequence[dict[str, Any]]) -> Iterator[str]:
    wall = sum(item["wall_ns"] for item in ranks)
    if wall:
        shares = [
            f"{title} {percent_text(sum(item[name] for item in ranks) / wall)}" for title, _, name in _TIMES[1:-1]
        ]
        yield f"Time of all ranks: {', '.join(shares)}."
    clocks = job.clocks.aligned
    if clocks is not None and job.stragglers and not any(item.is_sure for item in job.stragglers):
        yield (
            "Waiting is distinguished from exposed communication by the clocks of two ranks, which are up to "
            f"{time_text(clocks.most_ns)} apart here: take both as one."
        )
    yield from _late_ranks(job, sure=True)
    yield from _late_ranks(job, sure=False)


def _late_ranks(job: RankedJob, sure: bool) -> Iterator[str]:
    """Yield a sentence for each rank that others waited for, and for ranks whose clocks do not show who was late."""
    stragglers = [item for item in job.stragglers if item.is_sure == sure]
    number = len({(item.step, item.number) for item in job.stragglers})
    late, waited = Counter[int](), Counter[int]()
    for item in stragglers:
        late[item.rank] += item.late_ns
        waited[item.rank] += item.waited_ns
    for rank in sorted(late, key=lambda rank: (-late[rank], rank)):
        mine = [item for item in stragglers if item.rank == rank]
        of = f"{len(mine)} of {counted(number, 'step')}"
        if sure:
            yield f"Rank {rank} was late in {of}: the others waited {time_text(waited[rank])} in total for it."
        else:
            error = time_text(sum(item.error_ns for item in mine))
            yield (
                f"Rank {rank} seems late in {of}, but by {time_text(late[rank])}, which is below the error of the "
                f"clocks there, {error}: who waited for whom is not known."
            )
