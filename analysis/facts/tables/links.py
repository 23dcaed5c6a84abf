"""Tables about calls and the work that they started: links, sums by name, shared numbers, host syncs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from molprof.analysis.facts.facts import Facts
from molprof.analysis.facts.gaps import NONE
from molprof.analysis.facts.gpu_slices import NO_NUMBER
from molprof.analysis.facts.intervals import key_sums
from molprof.analysis.facts.tables.table import Column, FactTable, known, transposed


def _launch_totals(facts: Facts) -> Sequence[Column]:
    """Return the columns of launching calls by name, with the work that they started."""
    calls, work, kinds = facts.calls, facts.work, facts.call_kinds
    launches = np.append(facts.launches, facts.graph_launches)
    size = len(kinds)
    count = np.bincount(calls.name[launches], minlength=size)
    time_ns = key_sums(calls.name[launches], (calls.ts_end - calls.ts)[launches], size)
    # The first work of each call that started any; the last is that of no call.
    first_ts = np.full(len(calls.id) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_ts, work.call, work.ts)
    started = launches[first_ts[launches] != np.iinfo(np.int64).max]
    delays = key_sums(calls.name[started], first_ts[started] - calls.ts[started], size)
    starting = np.bincount(calls.name[started], minlength=size)
    kernels = work.call[facts.is_kernel & (work.call != NONE)]
    kernels = np.bincount(calls.name[kernels], minlength=size)
    rows = [
        (
            calls.names[name], kinds[name], int(count[name]), int(time_ns[name]), int(starting[name]),
            int(kernels[name]), int(delays[name]) / int(starting[name]) if starting[name] else None,
        )
        for name in np.flatnonzero(count).tolist()
    ]  # fmt: skip
    return transposed(rows, 7)


def _launch_count(facts: Facts) -> Sequence[Column]:
    """Return the trace's counts; calls and work without a number count as having the same one."""
    calls, launches, links = facts.calls, facts.launches, facts.links
    is_kernel, number = facts.is_kernel, facts.work_numbers
    kernels = int(is_kernel.sum())
    is_unnumbered = calls.number[launches] == NO_NUMBER
    without_work = ~links.has_work[launches] & (~is_unnumbered | bool((number != NO_NUMBER).all()))
    with_call = is_kernel & (facts.work.call != NONE)
    if (calls.number == NO_NUMBER).any():
        with_call |= is_kernel & (number == NO_NUMBER)
    times = facts.work.ts_end - facts.work.ts
    counts = (
        len(launches), len(facts.graph_launches), kernels, int(times[is_kernel].sum()),
        sum(name.category == "kernel" for name in facts.names), int(without_work.sum()), int(with_call.sum()),
        kernels - int(with_call.sum()),
    )  # fmt: skip
    return [[count] for count in counts]


def _launches_of_several(facts: Facts) -> Sequence[Column]:
    """Return the columns of kernel launches that have several pieces of work, by name."""
    calls, launches = facts.calls, facts.launches
    call = facts.work.call
    started = np.bincount(call[call != NONE], minlength=len(calls.id))[launches]
    several = started > 1
    name = calls.name[launches[several]]
    count = np.bincount(name, minlength=len(calls.names))
    more = key_sums(name, started[several] - 1, len(calls.names))
    there = np.flatnonzero(count)
    return [calls.names[number] for number in there.tolist()], count[there], more[there]


def _unnumbered_launches(facts: Facts) -> Sequence[Column]:
    """Return the launches of kernels and graphs without a correlation number, in order of slice."""
    launches = np.append(facts.launches, facts.graph_launches)
    return [np.sort(facts.calls.id[launches[facts.calls.number[launches] == NO_NUMBER]])]


def _launch_phases(facts: Facts) -> Sequence[Column]:
    """Return the innermost phase in which each call with GPU work began, if there is one."""
    calls = np.unique(facts.work.call[facts.work.call != NONE])
    calls = calls[facts.call_phases[calls] != NONE]
    return facts.calls.id[calls], facts.call_phases[calls]


def _shared_numbers(facts: Facts) -> Sequence[Column]:
    shared = facts.links.shared
    return (
        known(shared.rank, NONE),
        shared.number,
        shared.calls,
        *(column.astype(np.int64) for column in (shared.follow, shared.is_ambiguous)),
    )


_TOTAL = ("count LONG", "time_ns DURATION")
TABLES = {
    "repeated_call": FactTable(("id JOINID(slice.id)",), lambda facts: [facts.repeated_calls]),
    "work": FactTable(("id JOINID(slice.id)", "call_id JOINID(slice.id)"), lambda facts: facts.linked_work),
    "launch_total": FactTable(
        ("name STRING", "kind STRING", *_TOTAL, "starting LONG", "kernels LONG", "mean_delay_ns DOUBLE"), _launch_totals
    ),
    "launch_count": FactTable(
        (
            "launches LONG", "graph_launches LONG", "kernels LONG", "kernel_time_ns DURATION", "kernel_names LONG",
            "launches_without_gpu_work LONG", "kernels_with_call LONG", "kernels_without_call LONG",
        ),
        _launch_count,
    ),
    "launch_of_several": FactTable(("name STRING", "launches LONG", "more_work LONG"), _launches_of_several),
    "shared_number": FactTable(
        ("rank LONG", "correlation LONG", "calls LONG", "follow LONG", "is_ambiguous LONG"), _shared_numbers
    ),
    "unnumbered_launch": FactTable(("id JOINID(slice.id)",), _unnumbered_launches),
    "graph_launch": FactTable(("id JOINID(slice.id)",), lambda facts: [facts.calls.id[facts.graph_launches]]),
    "launch_phase": FactTable(("id JOINID(slice.id)", "phase_id JOINID(slice.id)"), _launch_phases),
    "host_sync": FactTable(
        ("id JOINID(slice.id)", "phase_id JOINID(slice.id)"),
        lambda facts: [facts.calls.id[facts.syncs], facts.call_phases[facts.syncs]],
    ),
    "host_total": FactTable(
        ("category STRING", "name STRING", *_TOTAL), lambda facts: transposed(facts.host_totals, 4)
    ),
}  # fmt: skip
