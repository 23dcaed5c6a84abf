"""What the GPU computes: chains of small kernels, copies, precision, communication, one kernel above all."""

from __future__ import annotations

import numpy as np

from molprof.analysis.findings.around import is_of, of_work
from molprof.analysis.findings.known import Known
from molprof.analysis.findings.places import listed, places_of
from molprof.analysis.findings.rule import Found, rule
from molprof.analysis.findings.training import optimizer_work, zeroing
from molprof.analysis.findings.work import (
    POINTWISE,
    SMALL_SHARE,
    gpu_share,
    is_named,
    located,
    runs_of,
    same_stream,
    sequence,
    summed,
    work_by_name,
)
from molprof.analysis.frame import Frame
from molprof.common.values import count_text, counted, cut, percent_text, short_name, time_text

_COPIES = ("copy", "cat", "memcpy DtoD")
# Share of the recorded time from which such kernels are worth a word.
_LEAST_POINTWISE, _LEAST_COPIES, _LEAST_KERNEL = 0.05, 0.02, 0.2
_NAME = 60  # characters of a kernel's name
# By class of one kernel: what says more about it.
_EXPLAINS = {"softmax": ("unfused_attention",), "matmul": ("fp32_matmul", "odd_shapes")}
# Names of kernels, in lower case, that write all of a tensor and read nothing.
_FILLS = ("*fillfunctor*", "*fillbuffer*", "*_memset*", "*arange_cuda*")
# All of their kernels are of POINTWISE.
_POINTWISE_CHAINS = {"RMSNorm", "add, RMSNorm", "SiLU, product"}


@rule(
    id="elementwise_chains",
    title="Chains of elementwise kernels",
    fix="Make each chain one kernel: torch.compile the function, or call a fused norm, rotary or activation.",
    explanation="Each kernel reads and writes in memory what the next one reads again; one kernel would do so once.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=_LEAST_POINTWISE,
    of_steps=True,
    weight=0.9,
)
def elementwise_chains(known: Known) -> Found | None:
    """Fires where kernels that compute element by element, copy, fill, reduce or normalize follow each other on a
    stream, and save 5 % of the time.

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
    # Sums and maxima from each edge to the next: of runs, and of what lies between them.
    edges, duration = np.array(runs).ravel(), np.append(work["dur"], 0)
    whole, longest = (amounts.reduceat(duration, edges)[::2] for amounts in (np.add, np.maximum))
    lengths = edges[1::2] - edges[::2]
    count, chain_ns, saved_ns = int(lengths.sum()), int(whole.sum()), int((whole - longest).sum())
    if not saved_ns:
        return None
    fix = "They are compiled or fused already in part: look at what stays apart (TORCH_LOGS=fusion)."
    found = Found(
        f"{count_text(count)} kernels that compute element by element, copy or reduce follow each other in "
        f"{counted(len(runs), 'chain')} of up to {lengths.max()}: {time_text(chain_ns)}, "
        f"{percent_text(gpu_share(known, chain_ns))} of the time",
        {"kernels": count, "chains": len(runs), "chain_ns": chain_ns, "saved_ns": saved_ns},
        fix=fix if known.compiled else "",
    )
    return located(known, found, saved_ns, "all kernels of each chain but its longest", POINTWISE)


def _chains(known: Known) -> Frame:
    """Chains of kernels by start: chain, ts, saved_ns."""
    found, work = known.facts.chains, known.facts.work
    order = np.lexsort((work.id[found.first], work.ts[found.first]))
    columns = {"chain": np.array(found.chain, dtype=object), "ts": work.ts[found.first]}
    columns["saved_ns"] = found.time_ns - found.longest_ns
    return Frame(columns).where(order)


@rule(
    id="library_chains",
    title="Kernels in a row that one kernel of a library does",
    fix="Ask for that kernel; molprof query fused_chains names the options of engines and the sources.",
    explanation="What the first kernel writes the next one reads again, and each is launched.",
    query="fused_chains",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.8,
)
def library_chains(known: Known) -> Found | None:
    """Fires where kernels follow each other, exactly and on one stream, that one kernel of a known library does.

    Gain: of each chain all but its longest kernel. That they work on the same data is not recorded.
    """
    known_by = {row["chain"]: row for row in known.report.table("fused_chains").to_json()}
    if not known_by:
        return None
    rows = _chains(known)
    if known.report.run is not None:
        rows = rows.where(known.scope.stretches.covered(rows["ts"], rows["ts"] + 1) > 0)
    chains: dict[str, list[int]] = {}
    for chain, _, saved in rows.rows():
        if chain in known_by:  # else no library does it on this platform
            item = chains.setdefault(chain, [0, 0])
            item[0], item[1] = item[0] + 1, item[1] + saved
    if not (saved_ns := sum(saved for _, saved in chains.values())):
        return None
    told = [
        f"{count:,} x {chain}, at most {time_text(ns)} less in one ({known_by[chain]['library']}: "
        f"{known_by[chain]['fused_kernel']})"
        for chain, (count, ns) in sorted(chains.items(), key=lambda item: -item[1][1])
    ]
    done = [f"{row['fused_count']:,} x {chain}" for chain, row in known_by.items() if row["fused_count"]]
    return Found(
        "; ".join(told) + (f". Already one kernel: {', '.join(done)}" if done else ""),
        {"chains": sum(count for count, _ in chains.values()), "saved_ns": saved_ns},
        known.gain(gpu_share(known, saved_ns), "all kernels of each chain but its longest"),
        part_of=("elementwise_chains",) if {*chains} <= _POINTWISE_CHAINS else (),
    )


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
def copies(known: Known) -> Found | None:
    """Fires where kernels that copy, cast or concatenate, and copies on the device, take 2 % of the time.

    Gain: their time.
    """
    count, time_ns = summed(work_by_name(known, *_COPIES))
    if not count or (ratio := gpu_share(known, time_ns)) < _LEAST_COPIES * known.scope.wall_ratio:
        return None
    found = Found(
        f"{counted(count, 'kernel')} that only copy, cast or concatenate take {time_text(time_ns)}, "
        f"{percent_text(ratio)} of the time",
        {"copies": count, "gpu_ns": time_ns},
        part_of=("elementwise_chains",),
    )
    return located(known, found, time_ns, "time in copies on the GPU", _COPIES)


@rule(
    id="communication",
    title="Communication is exposed",
    fix="Overlap it with computing, or exchange less. molprof ranks DIR tells it from waiting for a slow rank.",
    explanation="A collective ends when the last rank has come, so its time holds the wait for other ranks too.",
    query="collectives",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=0.02,
    weight=0.7,
)
def communication(known: Known) -> Found | None:
    """Fires where collectives run for 2 % of the time with nothing else on the GPU.

    Gain: the time in which collectives run on a device and nothing else does.
    """
    count, all_ns = summed(work_by_name(known, "collective"))
    if not count:
        return None
    exposed_ns, hideable_ns = known.exposed["exposed_ns"], known.exposed["hideable_ns"]
    waits = known.stream_waits
    found = Found(
        f"{counted(count, 'collective')} take {time_text(all_ns)}, {time_text(exposed_ns)} of it with nothing else on "
        f"the GPU: {percent_text(gpu_share(known, exposed_ns))} of the time. At most {time_text(hideable_ns)} fits "
        f"beside other work; which work waits for it is not recorded ({counted(waits, 'stream wait')})",
        {"collectives": count, "time_ns": all_ns, "exposed_ns": exposed_ns, "hideable_ns": hideable_ns, "waits": waits},
    )
    return located(known, found, exposed_ns, "collectives that nothing else runs beside", ("collective",))


@rule(
    id="dominant_kernel",
    title="One kernel takes a large part of the time",
    fix="Look for a faster kernel for its shapes, fewer bits, or less of that work.",
    explanation="Amdahl's law: what is done about any other kernel gains less.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.3,
)
def dominant_kernel(known: Known) -> Found | None:
    """Fires where the kernel of one name takes 20 % of the time.

    Gain: its time.
    """
    kernels = (item for item in work_by_name(known) if item.category == "kernel" and item.kind != "collective")
    first = next(kernels, None)
    if first is None or (ratio := gpu_share(known, first.time_ns)) < _LEAST_KERNEL * known.scope.wall_ratio:
        return None
    found = Found(
        f"{cut(short_name(first.name), _NAME)} ({first.kind}): {counted(first.count, 'run')}, "
        f"{time_text(first.time_ns)}, {percent_text(ratio)} of the time",
        {"count": first.count, "time_ns": first.time_ns},
        part_of=_EXPLAINS.get(first.kind, ()),
    )
    return located(known, found, first.time_ns, "time in that kernel", [first])


@rule(
    id="unknown_kernels",
    title="Much of the GPU's time is in kernels of no known class",
    fix="None needed: read their names.",
    explanation="What a kernel does is told by its name, and no pattern knows these.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work",),
    note=True,
)
def unknown_kernels(known: Known) -> Found | None:
    """Fires where 10 % of GPU time is in kernels of no known class."""
    (count, time_ns), (_, all_ns) = summed(work_by_name(known, "other")), summed(work_by_name(known))
    if not all_ns or time_ns < SMALL_SHARE * all_ns:
        return None
    return Found(
        f"{counted(count, 'kernel')}, {time_text(time_ns)}, {percent_text(time_ns / all_ns)} of GPU time"
        f"{listed(places_of(of_work(known, ('other',))), beside=False)}",
        {"kernels": count, "time_ns": time_ns},
    )
