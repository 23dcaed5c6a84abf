"""Findings on GPU work: chains of small kernels, copies, precision, communication, one dominant kernel."""

from __future__ import annotations

import numpy as np

from molprof.analysis.facts import coverage
from molprof.analysis.facts.intervals import Coverage
from molprof.analysis.facts.work import COMMUNICATION, OTHER, PERHAPS
from molprof.analysis.findings.around import is_of, of_pieces
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.places import location, placed
from molprof.analysis.findings.products import slow_runs_of
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.findings.training import optimizer_work, zeroing
from molprof.analysis.findings.work import (
    POINTWISE,
    SMALL_SHARE,
    all_but_longest,
    alone_ns,
    beyond_usual,
    exposed_times,
    gpu_share,
    is_named,
    located,
    runs_of,
    same_stream,
    sequence,
    summed,
    times_at,
    times_of,
    work_by_name,
    work_of,
)
from molprof.analysis.frame import Frame
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import count_text, counted, cut, percent_text, short_name, time_text

_COPIES = ("copy", "cat", "memcpy DtoD")
# Share of the recorded time from which such kernels are worth a word.
_LEAST_POINTWISE, _LEAST_COPIES, _LEAST_KERNEL = 0.05, 0.02, 0.2
_NAME = 60  # characters of a kernel's name
# Of communication, what waiting must take to be told.
_LEAST_WAITING = 0.1
_FIX_OF_WAITING = "Find which rank comes late, and why: molprof ranks DIR. Then overlap the rest with computing."
# Collectives whose sizes are recorded.
_SIZES = Query(
    "collectives",
    """
INCLUDE PERFETTO MODULE molprof.collectives;
SELECT rank, name, operation, group_name, bytes, dur FROM molprof_collective WHERE bytes IS NOT NULL ORDER BY id
""",
)
# By class of one kernel: what says more about it.
_EXPLAINS = {"softmax": ("unfused_attention",), "matmul": ("fp32_matmul", "odd_shapes")}
# Names of kernels, in lower case, that write all of a tensor and read nothing.
_FILLS = ("*fillfunctor*", "*fillbuffer*", "*_memset*", "*arange_cuda*")
# All of their kernels are of POINTWISE.
_POINTWISE_CHAINS = {"RMSNorm", "add, RMSNorm", "SiLU, product"}


@rule(
    id="elementwise_chains",
    title="Chains of kernels that could be one",
    fix="Make each chain one kernel: torch.compile the function, or call a fused norm, rotary or activation.",
    explanation="Each kernel writes to memory what the next one reads again; one kernel would not.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=_LEAST_POINTWISE,
    of_steps=True,
    weight=0.9,
)
def elementwise_chains(known: TraceFacts) -> FindingEvidence | None:
    """Fire where chains of elementwise kernels could save 5 % of the time.

    Kernels that compute element by element, copy, fill, reduce or normalize follow each other on a stream.

    What an optimizer does, sets to zero included, is in none: each of its tensors has kernels of its own. Nor does a
    fill follow on another one's data. Gain: of each chain all but its longest kernel.
    """
    _, time_ns = summed(work_by_name(known, *POINTWISE))
    if gpu_share(known, time_ns) < _LEAST_POINTWISE:
        return None
    work = sequence(known)
    chosen = is_of(known, work["name"], POINTWISE)
    fills = np.array([is_named(name.name, _FILLS) for name in known.facts.names], dtype=bool)[work["name"]]
    for inside in (optimizer_work(known), zeroing(known)):
        if inside is not None:
            chosen &= ~inside.work(known)[work["index"]]
    alike = same_stream(work) & ~(fills & np.append(False, fills[:-1])[: len(fills)])
    runs = [run for run in runs_of(chosen, alike) if run[1] - run[0] > 1]
    if not runs:
        return None
    starts, stops = np.array(runs).T
    lengths, sums = stops - starts, np.append(0, np.cumsum(work["dur"]))
    saved = all_but_longest(work["dur"], starts, lengths)
    count, chain_ns, saved_ns = (
        int(lengths.sum()),
        int((sums[stops] - sums[starts]).sum()),
        int(work["dur"][saved].sum()),
    )
    if not saved_ns:
        return None
    fix = "They are compiled or fused already in part: look at what stays apart (TORCH_LOGS=fusion)."
    evidence = FindingEvidence(
        f"{count_text(count)} kernels that compute element by element, copy or reduce follow each other in "
        f"{counted(len(runs), 'chain')} of up to {lengths.max()}: {time_text(chain_ns)}, "
        f"{percent_text(gpu_share(known, chain_ns))} of the time",
        {"kernels": count, "chains": len(runs), "chain_ns": chain_ns, "saved_ns": saved_ns},
        fix=fix if known.facts.compiled.by_inductor else "",
    )
    times = times_at(known, work["index"][saved])
    return located(known, evidence, saved_ns, "all kernels of each chain but its longest", times)


def _chains(known: TraceFacts) -> Frame:
    """Return chains of kernels by start: chain, ts, saved_ns, first, kernels."""
    chains, work = known.facts.chains, known.facts.work
    order = np.lexsort((work.id[chains.first], work.ts[chains.first]))
    columns = {"chain": np.array(chains.chain, dtype=object), "ts": work.ts[chains.first]}
    columns |= {"saved_ns": chains.time_ns - chains.longest_ns, "first": chains.first, "kernels": chains.kernels}
    return Frame(columns).where(order)


def _saved(known: TraceFacts, chains: Frame) -> np.ndarray:
    """Return all kernels of each chain but its longest, as indices of work."""
    work = known.facts.work
    order = np.lexsort((work.id, work.ts, work.stream, work.device))
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    duration = (work.ts_end - work.ts)[order]
    saved: np.ndarray = order[all_but_longest(duration, position[chains["first"]], chains["kernels"])]
    return saved


@rule(
    id="library_chains",
    title="Consecutive kernels that one library kernel can replace",
    fix="Ask for that kernel; molprof query fused_chains names the options of engines and the sources.",
    explanation="Each kernel is launched, and reads what the one before it wrote.",
    query="fused_chains",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.8,
)
def library_chains(known: TraceFacts) -> FindingEvidence | None:
    """Fire where chains of kernels occur that a single kernel of a known library can replace.

    Gain: of each chain all but its longest kernel. That they work on the same data is not recorded.
    """
    known_by = {row["chain"]: row for row in known.report.table("fused_chains").to_json()}
    if not known_by:
        return None
    rows = _chains(known)
    if known.report.run is not None:
        rows = rows.where(known.scope.spans.covered(rows["ts"], rows["ts"] + 1) > 0)
    chains: dict[str, list[int]] = {}
    is_known = np.array([chain in known_by for chain in rows["chain"].tolist()], dtype=bool)
    rows = rows.where(is_known)  # else no library does it on this platform
    if not (saved_ns := int(rows["saved_ns"].sum())):
        return None
    for chain, saved in zip(rows["chain"].tolist(), rows["saved_ns"].tolist(), strict=True):
        item = chains.setdefault(chain, [0, 0])
        item[0], item[1] = item[0] + 1, item[1] + saved
    by_chain = [
        f"{count:,} x {chain}, at most {time_text(ns)} less in one ({known_by[chain]['library']}: "
        f"{known_by[chain]['fused_kernel']})"
        for chain, (count, ns) in sorted(chains.items(), key=lambda item: -item[1][1])
    ]
    done = [f"{row['fused_count']:,} x {chain}" for chain, row in known_by.items() if row["fused_count"]]
    evidence = FindingEvidence(
        "; ".join(by_chain) + (f". Already one kernel: {', '.join(done)}" if done else ""),
        {"chains": sum(count for count, _ in chains.values()), "saved_ns": saved_ns},
        part_of=("elementwise_chains",) if {*chains} <= _POINTWISE_CHAINS else (),
    )
    times = times_at(known, _saved(known, rows))
    return located(known, evidence, saved_ns, "all kernels of each chain but its longest", times)


@rule(
    id="copies",
    title="Copies and casts",
    fix="Keep one dtype and layout between the operators on both sides, or write into the target at once.",
    explanation="Such a kernel computes nothing: it moves data that another operator wants in another form.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.8,
)
def copies(known: TraceFacts) -> FindingEvidence | None:
    """Fire where kernels that copy, cast or concatenate, and copies on the device, take 2 % of the time.

    Gain: their time.
    """
    count, time_ns = summed(work_by_name(known, *_COPIES))
    if not count or (ratio := gpu_share(known, time_ns)) < _LEAST_COPIES * known.scope.wall_ratio:
        return None
    evidence = FindingEvidence(
        f"{counted(count, 'piece')} of work that only copy, cast or concatenate take {time_text(time_ns)}, "
        f"{percent_text(ratio)} of the time",
        {"copies": count, "gpu_ns": time_ns},
        part_of=("elementwise_chains",),
    )
    return located(known, evidence, time_ns, "time in copies on the GPU", _COPIES)


@rule(
    id="communication",
    title="Communication is exposed",
    fix="Overlap it with computing, or exchange less. molprof ranks DIR separates it from waiting for a slow rank.",
    explanation="A collective ends when the last rank has come, so its time holds the wait for other ranks too.",
    query="collectives",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=0.02,
    weight=0.7,
)
def communication(known: TraceFacts) -> FindingEvidence | None:
    """Fire where communication runs for 2 % of the time with nothing else on the GPU.

    Communication is collectives, and kernels of unknown names on streams of collectives or called inside one.

    Gain: the time in which communication runs on a device and nothing else does.
    """
    chosen = work_by_name(known, *COMMUNICATION)
    count, all_ns = summed(chosen)
    if not count:
        return None
    perhaps, perhaps_ns = summed(item for item in chosen if item.kind == PERHAPS)
    what = [counted(count - perhaps, "collective")] if count > perhaps else []
    if perhaps:
        what.append(f"{counted(perhaps, 'kernel')} of unknown name ({time_text(perhaps_ns)}, perhaps communication)")
    exposed_ns, hideable_ns = known.exposed["exposed_ns"], known.exposed["hideable_ns"]
    waits = known.stream_waits
    waiting_ns, waiting = _waiting(known, all_ns)
    figures: dict[str, int | float] = {"collectives": count - perhaps, "time_ns": all_ns, "exposed_ns": exposed_ns}
    figures |= {"hideable_ns": hideable_ns, "waits": waits}
    figures |= {"perhaps": perhaps, "perhaps_ns": perhaps_ns} if perhaps else {}
    figures |= {"waiting_ns": waiting_ns} if waiting_ns else {}
    evidence = FindingEvidence(
        f"{' and '.join(what)} take {time_text(all_ns)}, {time_text(exposed_ns)} of it with nothing else on "
        f"the GPU: {percent_text(gpu_share(known, exposed_ns))} of the time{_most_exposed(known, exposed_ns)}"
        f"{waiting}; at most {time_text(hideable_ns)} can overlap other work; which work waits for it is not recorded "
        f"({counted(waits, 'stream wait')})",
        figures,
        fix=_FIX_OF_WAITING
        if 2 * waiting_ns > exposed_ns
        else "See first whether it waits for a slow rank (molprof ranks DIR). If not, exchange less: there is little "
        "other work to overlap it with."
        if 2 * hideable_ns < exposed_ns
        else "",
    )
    bounded_by = f"{'communication' if perhaps else 'collectives'} without concurrent work"
    times = exposed_times(known, times_of(known, COMMUNICATION))
    return located(known, evidence, exposed_ns, bounded_by, times, alone=False)


def _waiting(known: TraceFacts, all_ns: int) -> tuple[int, str]:
    """Return the time of collectives beyond others of the same size, ns, and that as the end of a sentence."""
    rows = known.frame(_SIZES)
    if not len(rows["dur"]):
        return 0, ""
    kinds = zip(*(rows[name].tolist() for name in ("rank", "name", "operation", "group_name", "bytes")), strict=True)
    numbers: dict[tuple[object, ...], int] = {}
    keys = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds], dtype=np.int64)
    times = rows["dur"].astype(np.int64)
    beyond = beyond_usual(times, keys)
    waiting_ns = int(beyond.sum())
    if waiting_ns < _LEAST_WAITING * all_ns:
        return 0, ""
    slow = beyond > 0
    usual_ns = float(np.median(times[np.isin(keys, keys[slow]) & ~slow]))
    number, slow_ns = int(slow.sum()), int(times[slow].sum())
    return waiting_ns, (
        f"; {count_text(number)} take{'s' if number == 1 else ''} {time_text(slow_ns)}, others as large "
        f"{time_text(usual_ns)} each: most of it moves no data"
    )


def _most_exposed(known: TraceFacts, exposed_ns: int) -> str:
    """Return the communication kernel with the longest exposed time, unless it has all of it."""
    facts = known.facts
    exposed = coverage.exposure(facts.work, facts.name_of, len(facts.names)).exposed.tolist()
    names = [(ns, name.name) for ns, name in zip(exposed, facts.names, strict=True) if name.work_class in COMMUNICATION]
    most_ns, name = max(names)
    if not 0 < most_ns < exposed_ns:
        return ""
    return f", the largest part, {time_text(most_ns)}, in {cut(short_name(name), _NAME)}"


@rule(
    id="dominant_kernel",
    title="One kernel takes a large part of the time",
    fix="Look for a faster kernel for its shapes, fewer bits, or less of that work.",
    explanation="Amdahl's law: no change of another kernel can gain as much.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.3,
)
def dominant_kernel(known: TraceFacts) -> FindingEvidence | None:
    """Fire where the kernel of one name, other than communication, takes 20 % of the time.

    Gain: the time in which it runs on a device and nothing else does.
    """
    least = _LEAST_KERNEL * known.scope.wall_ratio
    large = [
        item
        for item in work_by_name(known)
        if item.category == "kernel" and item.kind not in COMMUNICATION and gpu_share(known, item.time_ns) >= least
    ]
    if not large:
        return None
    first = max(large, key=lambda item: alone_ns(known, work_of(known, [item]))) if len(large) > 1 else large[0]
    index, beyond = slow_runs_of(known, [first])
    usual_ns = first.time_ns - int(beyond.sum())
    if gpu_share(known, usual_ns) < least:
        return None
    times = times_of(known, [first])
    times[index] -= beyond
    work, index = known.facts.work, work_of(known, [first])
    once_ns = min(first.time_ns, Coverage(work.device[index], work.ts[index], work.ts_end[index]).length_ns)
    once = "" if once_ns == first.time_ns else f", {time_text(once_ns)} where those on several streams count once"
    evidence = FindingEvidence(
        f"{cut(short_name(first.name), _NAME)} ({first.kind}): {counted(first.count, 'run')}, "
        f"{time_text(first.time_ns)}{once}, {percent_text(gpu_share(known, once_ns))} of the time",
        {"count": first.count, "time_ns": first.time_ns},
        part_of=_EXPLAINS.get(first.kind, ()),
    )
    return located(known, evidence, usual_ns, "time in that kernel", times)


@rule(
    id="unknown_kernels",
    title="Much of the GPU's time is in kernels of no known class",
    fix="None needed: read their names.",
    explanation="Kernels are classified by name, and no pattern matches these names.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work",),
    note=True,
)
def unknown_kernels(known: TraceFacts) -> FindingEvidence | None:
    """Fire where 10 % of GPU time is in kernels of no known class."""
    (count, time_ns), (_, all_ns) = summed(work_by_name(known, OTHER)), summed(work_by_name(known))
    if not all_ns or time_ns < SMALL_SHARE * all_ns:
        return None
    evidence = FindingEvidence(
        f"{counted(count, 'kernel')}, {time_text(time_ns)}, {percent_text(time_ns / all_ns)} of GPU time",
        {"kernels": count, "time_ns": time_ns},
    )
    return placed(evidence, location(known, of_pieces(known, times_of(known, (OTHER,)))))
