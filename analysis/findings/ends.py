"""Notes on missing records: ends of the recording, waits of unknown cause, figures that are not known."""

from __future__ import annotations

import numpy as np

from molprof.analysis.facts import gaps
from molprof.analysis.figures.model import IDLE_CAUSES, TITLES, Group
from molprof.analysis.findings.idle import long_calls_in
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.findings.waits import begins_waiting
from molprof.common.values import counted, percent_text, time_text

_LEAST_ENDS = 0.02
_LEAST_WAITS = 0.03
_WAITS = ("other", "not_recorded")
_OF_GPU: tuple[Group, ...] = ("gpu_work", "gpu_time", "gpu_idle")
# One piece of work is told where it takes half of the time, and so many times as long as the next longest.
_LEAST_ONE, _LONGER = 0.5, 10
_LEAST_PIECES = 10


@rule(
    id="recording_ends",
    title="The recording begins before the first GPU work, or ends after the last",
    fix="Start recording right before the first step, after warm-up steps (torch.profiler.schedule), and stop right "
    "after the last.",
    explanation="No change of the program gains this time: it depends on when the profiler was started and stopped.",
    query="idle_gaps",
    needs=("gpu",),
    rests_on=("gpu_work",),
    note=True,
)
def recording_ends(known: TraceFacts) -> FindingEvidence | None:
    """Fire where 2 % of the recorded span of a foreign trace is before the first or after the last GPU work."""
    recorded_ns = known.facts.span[1] - known.facts.span[0]
    before_ns, after_ns = known.ends
    if known.scope.run is not None or before_ns + after_ns < _LEAST_ENDS * recorded_ns:
        return None
    ends = [
        f"{time_text(time_ns)} {where}"
        for time_ns, where in ((before_ns, "before the first GPU work"), (after_ns, "after the last"))
        if time_ns >= 0.1 * _LEAST_ENDS * recorded_ns
    ]
    calls = [
        f"{call['name']} {time_text(call['time_ns'])}" for call in long_calls_in(known, gaps.BEFORE, gaps.AFTER)[:3]
    ]
    return FindingEvidence(
        f"{', '.join(ends)}: {percent_text((before_ns + after_ns) / recorded_ns)} of the recorded span, which "
        f"counts for no gain{'; in single calls: ' + ', '.join(calls) if calls else ''}; to leave it out, record steps "
        "alone",
        {"before_ns": before_ns, "after_ns": after_ns, "recorded_ns": recorded_ns},
    )


@rule(
    id="unknown_waits",
    title="The GPU waits for something that is not recorded",
    fix="Record what it may wait for too: another rank, process or GPU.",
    explanation="Queued work starts when the work that it waits for is done. Only a record of that shows the gain.",
    query="idle_causes",
    needs=("gpu",),
    rests_on=("gpu_work",),
    note=True,
)
def unknown_waits(known: TraceFacts) -> FindingEvidence | None:
    """Fire where waits of unknown cause take 3 % of the time.

    Queued work does not start, a call is not recorded, or a sync outlasts all recorded work.
    """
    is_early = begins_waiting(known)
    causes = ("other_stream", *_WAITS) if is_early else _WAITS
    parts = known.summed([part for part in known.idle if part.cause in causes])
    time_ns, longest_ns = sum(part.time_ns for part in parts), max((part.longest_ns for part in parts), default=0)
    if not known.scope.devices or (share := known.scope.idle_part(time_ns)) < _LEAST_WAITS * known.scope.wall_ratio:
        return None
    syncs, fix = known.facts.long_syncs, ""
    what = "; ".join(f"{IDLE_CAUSES[part.cause]} {time_text(part.time_ns)}" for part in parts)
    if len(syncs.call):
        what += (
            f"; {counted(len(syncs.call), 'host sync')} outlast{'s' if len(syncs.call) == 1 else ''} all recorded work"
        )
        fix = (
            "Rounds of a loop in a graph, and work that a kernel launches, are not in such a file: record with Nsight "
            "Systems (--cuda-graph-trace=node), or without the graph; record other processes that use the GPU."
        )
    elif is_early:
        what += "; it waits from the start on, so begin the recording between two steps"
        fix = "Begin the recording between two steps, with nothing queued: what ran before is not in it."
    return FindingEvidence(
        f"{time_text(time_ns)}, {percent_text(share)} of the time, the longest gap {time_text(longest_ns)}: {what}",
        {"idle_ns": time_ns, "longest_ns": longest_ns, "long_syncs": len(syncs.call)},
        fix=fix,
        share=share,
    )


@rule(
    id="one_event",
    title="One piece of GPU work takes most of the time",
    fix="Look at it in molprof open, record again, and compare it with other runs of the same name.",
    explanation="The record may be wrong, or it waited for something. Shares of the time are mostly shares of it.",
    query="gpu_work",
    needs=("gpu",),
    rests_on=("gpu_work",),
    note=True,
)
def one_event(known: TraceFacts) -> FindingEvidence | None:
    """Fire where one of at least 10 pieces of GPU work takes half of the time, and 10 times as long as any other."""
    work = known.facts.work
    time_ns = work.ts_end - work.ts
    if len(time_ns) < _LEAST_PIECES:
        return None
    second, longest = np.argsort(time_ns, kind="stable")[-2:].tolist()
    longest_ns = int(time_ns[longest])
    ratio = known.scope.gpu_part(longest_ns)
    if ratio < _LEAST_ONE * known.scope.wall_ratio or longest_ns < _LONGER * time_ns[second]:
        return None
    name = known.facts.names[known.facts.name_of[longest]].name
    return FindingEvidence(
        f"{name} takes {time_text(longest_ns)} once, {percent_text(ratio)} of the time; the next longest of "
        f"{counted(len(time_ns), 'piece')} of work takes {time_text(int(time_ns[second]))}",
        {"time_ns": longest_ns, "next_ns": int(time_ns[second]), "pieces": len(time_ns)},
        share=ratio,
    )


@rule(
    id="not_to_be_had",
    title="No finding rests on what is not to be had",
    fix="Record again: the reason says what is missing. molprof doctor checks the profiler on this machine.",
    explanation="Figures from missing or impossible records would name a wrong cause.",
    query="certificate_launches",
    note=True,
)
def not_to_be_had(known: TraceFacts) -> FindingEvidence | None:
    """Fire where a check rules out all figures of GPU work, its time or idle time."""
    lost = [group for group in _OF_GPU if group in known.lost]
    if not lost:
        return None
    reasons = dict.fromkeys(item.reason for item in known.report.doubts_on(lost) if item.reason)
    return FindingEvidence(f"{', '.join(TITLES[group] for group in lost)}: {'; '.join(reasons)}", {"groups": len(lost)})
