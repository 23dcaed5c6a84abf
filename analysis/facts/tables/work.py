"""Tables about GPU work by name and class: totals, exposed time, chains of kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from molprof.analysis.facts import coverage, gaps
from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import NONE, Array
from molprof.analysis.facts.tables.table import Column, FactTable


def _work_totals(facts: Facts) -> Sequence[Column]:
    slices = facts.slices
    work = np.flatnonzero(slices.name >= 0)
    size = len(slices.names)
    times = np.zeros(size, dtype=np.int64)
    np.add.at(times, slices.name[work], (slices.ts_end - slices.ts)[work])
    order = sorted(range(size), key=slices.names.__getitem__)
    first = np.full(size, len(slices.ts))
    np.minimum.at(first, slices.name[work], work)
    count = np.bincount(slices.name[work], minlength=size)
    categories, texts = zip(*(slices.names[number] for number in order), strict=True) if size else ((), ())
    return np.arange(size), categories, texts, count[order], times[order], first[order]


def _work_classes(facts: Facts) -> Sequence[Column]:
    return np.arange(len(facts.names)), [name.work_class for name in facts.names]


def _exposed_names(facts: Facts) -> Sequence[Column]:
    work, names_ = facts.work, facts.names
    exposure = coverage.exposure(work, facts.name_of, len(names_))
    count, time_ns = _totals(facts.name_of, work, len(names_))
    return np.arange(len(names_)), [name.work_class for name in names_], count, time_ns, exposure.busy, exposure.exposed


def _exposed_classes(facts: Facts) -> Sequence[Column]:
    classes, class_of = facts.classes
    exposure = coverage.exposure(facts.work, class_of, len(classes))
    return classes, *_totals(class_of, facts.work, len(classes)), exposure.busy, exposure.exposed


def _class_overlap(facts: Facts) -> Sequence[Column]:
    classes, class_of = facts.classes
    one, other = np.nonzero(shared := coverage.shared_time(facts.work, class_of, len(classes)))
    return [classes[number] for number in one], [classes[number] for number in other], shared[one, other]


def _totals(keys: Array, work: gaps.GpuWork, size: int) -> tuple[Array, Array]:
    """Return the number of pieces of work and the sum of their times for each key."""
    times = np.zeros(size, dtype=np.int64)
    np.add.at(times, keys, work.ts_end - work.ts)
    return np.bincount(keys, minlength=size), times


def _exposed_phases(facts: Facts) -> Sequence[Column]:
    phases, phase_of = facts.work_phases
    keys = phase_of + 1  # 0: outside any phase
    size = len(phases) + 1
    exposure = coverage.exposure(facts.work, keys, size)
    count, time_ns = _totals(keys, facts.work, size)
    there = np.flatnonzero(count)
    phase_names = [None, *phases]
    columns = count, time_ns, exposure.busy, exposure.exposed
    return [phase_names[key] for key in there.tolist()], *(column[there] for column in columns)


def _chains(facts: Facts) -> Sequence[Column]:
    chains, work = facts.chains, facts.work
    saved = chains.time_ns - chains.longest_ns
    return chains.chain, work.id[chains.first], work.ts[chains.first], chains.kernels, chains.time_ns, saved


def _chain_sums(facts: Facts) -> Sequence[Column]:
    instances = facts.chains
    chains = sorted(set(instances.chain))
    number = np.array([chains.index(chain) for chain in instances.chain], dtype=np.int64)
    sums = np.zeros((2, len(chains)), dtype=np.int64)
    np.add.at(sums[0], number, instances.time_ns)
    np.add.at(sums[1], number, instances.time_ns - instances.longest_ns)
    return chains, np.bincount(number, minlength=len(chains)), sums[0], sums[1]


def _fused_sums(facts: Facts) -> Sequence[Column]:
    count, times = _totals(facts.name_of, facts.work, len(facts.names))
    chains = sorted(facts.fused)
    rows = [sorted(facts.fused[chain]) for chain in chains]
    return chains, [int(count[row].sum()) for row in rows], [int(times[row].sum()) for row in rows]


def _outside_steps(facts: Facts) -> Sequence[Column]:
    work = facts.work
    outside = np.append(facts.call_steps, NONE)[work.call] == NONE
    name_of = facts.name_of[outside]
    times = np.zeros(len(facts.names), dtype=np.int64)
    np.add.at(times, name_of, (work.ts_end - work.ts)[outside])
    count = np.bincount(name_of, minlength=len(facts.names))
    there = np.flatnonzero(count)
    return there, count[there], times[there]


def _overruns(facts: Facts) -> Sequence[Column]:
    ids_, ends = facts.overruns
    slices = facts.slices_of_file
    return ids_, ends - slices.ts[ids_], (slices.ts_end - slices.ts)[ids_]


_EXPOSURE = ("busy_ns DURATION", "exposed_ns DURATION")
TABLES = {
    "overrun": FactTable(("id JOINID(slice.id)", "dur DURATION", "recorded_ns DURATION"), _overruns),
    "work_total": FactTable(
        (
            "name_id LONG", "category STRING", "name STRING", "count LONG", "time_ns DURATION",
            "first_id JOINID(slice.id)",
        ),
        _work_totals,
    ),
    "work_class": FactTable(("name_id LONG", "class STRING"), _work_classes),
    "exposed_name": FactTable(
        ("name_id LONG", "class STRING", "count LONG", "time_ns DURATION", *_EXPOSURE), _exposed_names
    ),
    "exposed_class": FactTable(("class STRING", "count LONG", "time_ns DURATION", *_EXPOSURE), _exposed_classes),
    "exposed_phase": FactTable(("phase STRING", "count LONG", "time_ns DURATION", *_EXPOSURE), _exposed_phases),
    "class_overlap": FactTable(("class STRING", "other_class STRING", "time_ns DURATION"), _class_overlap),
    "chain": FactTable(
        (
            "chain STRING", "id JOINID(slice.id)", "ts TIMESTAMP", "kernels LONG", "time_ns DURATION",
            "saved_ns DURATION",
        ),
        _chains,
    ),
    "chain_sum": FactTable(("chain STRING", "count LONG", "time_ns DURATION", "saved_ns DURATION"), _chain_sums),
    "fused_sum": FactTable(("chain STRING", "count LONG", "time_ns DURATION"), _fused_sums),
    "work_outside_steps": FactTable(
        ("name_id LONG", "count LONG", "time_ns DURATION"), _outside_steps
    ),
}  # fmt: skip
