"""The bottleneck of a trace: one verdict, and the parts of the time, which add up.

Every nanosecond of the recorded time of each device is in one part (`parts_of`): the device works, alone or for others
(`Known.split`), or is idle for a cause (`Known.idle`). Of these parts the verdict (`bottleneck_of`) is

- GPU-bound: from the first work to the last the GPU computes for two thirds of the time or more, pauses between queued
  kernels included, or for less while nothing that it waits for takes a fifth. Faster kernels, fewer bits, or less work
  help.
- communication-bound: collectives with nothing else on the GPU.
- transfer-bound: copies between host and GPU with nothing else on the GPU, where these take 5 % of the time.
- launch-bound: nothing is queued in gaps of up to 1 ms, and until launches take effect there: the CPU launches more
  slowly than the GPU works.
- input-bound: the CPU is in the data loader while nothing is queued.
- constraint-bound: the CPU makes masks or runs logits processors while nothing is queued, as far as phases show it.
- host-bound: all other waiting for the CPU: other work in gaps longer than 1 ms, single long calls, host syncs.
- bound by waits: queued work does not start, until other streams are done or for what the trace does not hold; another
  GPU works meanwhile, for which the CPU or queued work waits; or the thread that launches next waits itself.

Of all but the first the one that takes most. There is none where it is not certain how long the GPU worked, or where
the recording has hardly any of its work. Where no GPU work is recorded, there is a verdict only if phases show that
masks and logits processors take more time than any other phase.
"""

from __future__ import annotations

from msgspec.structs import replace

from molprof.analysis.facts.facts import MASK_PHASES, PROCESSOR_PHASES
from molprof.analysis.figures.bottleneck import PARTS, Bottleneck, parts_text
from molprof.analysis.figures.model import IDLE_CAUSES, Group, location_text
from molprof.analysis.findings.known import HOST_CAUSES, TraceFacts
from molprof.analysis.findings.places import main_idle
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.findings.transfers import transfers_ns
from molprof.analysis.findings.waits import in_processors_ns, other_device_ns, profiler_ns, waiting_ns
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import counted

# With so much of the time, the GPU's own work bounds it; with so much, what it waits for, where it has less.
_MOST, _WORTH = 2 / 3, 1 / 5
# With so much of the time in doubt there is no verdict, nor where ends of the recording take so much of it.
_OPEN, _MOST_ENDS = 0.25, 0.9
# With less of the time it does not matter where idle time is.
_LEAST_IDLE = 0.05
_OF_CAUSE = {
    "cpu_data": "input", "cpu_masks": "constraint", "cpu_waited": "sync", "short": "pauses", "other_stream": "stream",
}  # fmt: skip
# Phases in which masks are made and logits processors run, of any program.
_CONSTRAINTS = (*MASK_PHASES, PROCESSOR_PHASES)
_PHASES = Query("phases", "SELECT phase, SUM(own_ns) AS own_ns FROM molprof_phase GROUP BY phase ORDER BY phase")
_RESTS_ON: tuple[Group, ...] = ("gpu_idle", "gpu_time")


def parts_of(known: TraceFacts) -> dict[str, int]:
    """Return the parts of the recorded time of all devices, ns, by `PARTS`; they add up to it."""
    scope = known.scope
    times = dict.fromkeys(PARTS, 0) | {name: known.split[name] for name in ("gpu", "communication")}
    times["transfer"] = min(times["gpu"], transfers_ns(known))
    times["gpu"] -= times["transfer"]
    for part in known.idle:
        is_host = part.cause in HOST_CAUSES or part.cause == "launching"
        name = _OF_CAUSE.get(part.cause) or (("host" if part.is_long else "launch") if is_host else "wait")
        times[name] += part.time_ns
    for name, moved in zip(("launch", "host"), in_processors_ns(known), strict=True):
        moved = min(times[name], moved)
        times[name] -= moved
        times["constraint"] += moved
    times["asleep"] = min(times["host"], waiting_ns(known))
    times["host"] -= times["asleep"]
    times["profiler"] = min(times["host"], profiler_ns(known))
    times["host"] -= times["profiler"]
    for cause, name in (("cpu_waited", "sync"), ("other", "wait")):
        moved = other_device_ns(known)[cause]
        times[name] -= moved
        times["device"] += moved
    times["ends"] = scope.recorded_ns * scope.devices - sum(times.values())
    return times


def bottleneck_of(known: TraceFacts) -> Bottleneck | None:
    """Return the bottleneck; None where no time is recorded.

    Shares are those of findings' gains: of the recorded span of a foreign trace, of the unprofiled time of a run.
    """
    return known.once("bottleneck", None, lambda: _bottleneck(known))


def _bottleneck(known: TraceFacts) -> Bottleneck | None:
    scope = known.any_scope
    if scope is None:
        return None
    whole = known.gain(scope.wall_ratio, "")
    if not scope.busy_ns:
        bound, ratio = _of_host(known)
        return Bottleneck(bound, ratio, whole.of, whole.of_ns or scope.recorded_ns, {})
    parts = parts_of(known)
    bottleneck = Bottleneck(None, None, whole.of, whole.of_ns or scope.recorded_ns, parts, *_main_idle(known))
    if known.lost & set(_RESTS_ON) or _is_open(known) or parts["ends"] > _MOST_ENDS * sum(parts.values()):
        return bottleneck
    shares: dict[str, float] = {}
    for name, time_ns in parts.items():
        if bound := PARTS[name][1]:
            is_work = name in ("gpu", "communication", "transfer")
            share = scope.gpu_part(time_ns / scope.devices) if is_work else scope.idle_part(time_ns)
            shares[bound] = shares.get(bound, 0.0) + share
    # The ends of the recording are no time of the program.
    most = whole.high * (1 - parts["ends"] / sum(parts.values()))
    gpu = shares.pop("gpu")
    other = max(shares, key=lambda name: shares[name])
    if gpu >= _MOST * most or shares[other] < min(gpu, _WORTH * most):
        return replace(bottleneck, bound="gpu", ratio=scope.gpu_part(parts["gpu"] / scope.devices))
    return replace(bottleneck, bound=other, ratio=shares[other])


def _main_idle(known: TraceFacts) -> tuple[str | None, str | None, float | None]:
    """Return the main cause of idle time between work, the location with most of it, and its share."""
    idle_ns = sum(part.time_ns for part in known.idle)
    if idle_ns < _LEAST_IDLE * known.scope.recorded_ns * known.scope.devices or (main := main_idle(known)) is None:
        return None, None, None
    cause, where = main
    return (cause, None, None) if where is None else (cause, where.name, where.ratio)


def _is_open(known: TraceFacts) -> bool:
    """Return True if missing work may fill much of the idle time, or wrong records account for as much."""
    bounds = [bound for item in known.report.doubts_on(_RESTS_ON) for bound in item.bounds]
    busy = [bound for bound in bounds if bound.figure.startswith("devices.") and bound.figure.endswith(".busy_ns")]
    span_ns = sum(device.span_ns for device in known.report.devices.values())
    open_ns = sum((span_ns if bound.high is None else bound.high) - (bound.low or 0) for bound in busy)
    return bool(open_ns > _OPEN * span_ns)


def _of_host(known: TraceFacts) -> tuple[str | None, float | None]:
    """Return the phase with most time in a trace without GPU work, or masks or logits processors, and its share."""
    run, times = known.report.run, {}
    if run is not None and run.wall_ns.median:
        times = {name: phase.wall_ns / run.wall_ns.median for name, phase in run.phases.items() if phase.wall_ns}
    elif run is None:
        rows = known.rows(_PHASES)
        times = {row["phase"]: row["own_ns"] / known.scope.recorded_ns for row in rows}
    masks = sum(share for name, share in times.items() if name.startswith(_CONSTRAINTS))
    others = [share for name, share in times.items() if not name.startswith(_CONSTRAINTS)]
    return ("constraint", masks) if masks > max(others, default=0.0) else (None, None)


@rule(
    id="limits",
    title="What sets the time",
    fix="Nothing: gains are shares of this time.",
    explanation="A faster part gains at most its own share.",
    query="idle_causes",
    needs=("gpu",),
    rests_on=("gpu_idle", "gpu_time"),
    note=True,
)
def limits(known: TraceFacts) -> FindingEvidence | None:
    """Fire where GPU times are recorded."""
    if not (scope := known.scope).busy_ns:  # how long the work took is not recorded
        return None
    steps = sum(int(row["steps"] or 0) for row in known.report.table("steps").to_json() if row["source"] != "(outside)")
    each = ""
    if steps > 1 and (most := known.limits_of_steps):
        said = (f"{name} ({counted(count, 'step')})" for name, count in most.items())
        each = f"; what takes most of a step: {', '.join(said)}"
    cause, label, ratio = _main_idle(known)
    if cause is not None and ratio is not None:
        each += f"; {IDLE_CAUSES[cause]}: {location_text(label, ratio)}"
    return FindingEvidence(
        f"{parts_text(parts_of(known))}{'' if scope.run is None else f' of {scope.recorded_text}'}{each}",
        {f"{name}_ns": value for name, value in known.split.items()},
        location=label,
        location_ratio=ratio,
    )
