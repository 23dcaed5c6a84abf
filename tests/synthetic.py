"""A captured run made to order: its tokens, and the cost of each phase of a step, in the trace and unprofiled.

Every step is recorded. Within a phase the CPU first issues (the GPU idle), then waits in a call for an idle GPU, then
the GPU works. The profiler makes issuing take twice as long, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tiny_trace import TOKENS, document, slice_, work

from molprof.common.manifest import KIND_LETTERS, STEP_PHASES

NAMES = {letter: name for name, letter in KIND_LETTERS.items()}


@dataclass(frozen=True)
class Cost:
    """One phase of a step, µs unprofiled."""

    launch: int
    sync: int = 0
    gpu: int = 0

    @property
    def ns(self) -> int:
        return 1000 * (self.launch + self.sync + self.gpu)


def costs(**changed: Cost) -> dict[str, Cost]:
    """Costs of the phases of a step."""
    plain = {
        "forward": Cost(1000, 10, 700),
        "processor": Cost(100, 0, 50),
        "sampling": Cost(60, 20, 30),
        "bookkeeping": Cost(40),
    }
    return {**plain, **changed}


@dataclass(frozen=True)
class Spec:
    """A run.

    Attributes:
        batches: per batch, the tokens of each molecule, one letter of its kind each: free, copy, junk, filler (l), eos.
        once_ns: unprofiled time of the phases outside the steps, all batches together.
        prefill: of each batch.
        outside_ns: unprofiled time in no phase.
    """

    batches: tuple[tuple[str, ...], ...] = (("cffe", "cfe"),)
    costs: dict[str, Cost] = field(default_factory=costs)
    once_ns: dict[str, int] = field(default_factory=lambda: {"template": 900, "tokenize": 500, "setup": 300, "text": 7})
    prefill: Cost = Cost(3000, 0, 500)
    outside_ns: int = 0
    gpu: bool = True

    @property
    def steps(self) -> list[int]:
        return [max(map(len, batch)) for batch in self.batches]

    def phases_ns(self) -> dict[str, int]:
        steps, batches = sum(self.steps), len(self.batches)
        counts = dict.fromkeys(STEP_PHASES, steps) | {"forward": steps - batches}
        return {
            **self.once_ns,
            "prefill": batches * self.prefill.ns,
            **{phase: counts[phase] * self.costs[phase].ns for phase in STEP_PHASES},
        }


def captured(spec: Spec) -> dict[str, Any]:
    """The run as it would be read from its file."""
    content = document()
    content["traceEvents"] = _events(spec)
    manifest = content["molprof"]
    phases_ns = spec.phases_ns()
    wall_ns = sum(phases_ns.values()) + spec.outside_ns
    manifest["timings"]["warmup_ns"] = [wall_ns + 5_000_000]
    manifest["timings"]["repeats"] = [{"wall_ns": wall_ns, "phases_ns": phases_ns, "steps_ns": []}]
    manifest["window"] = {"full": True, "batch": 0, "first_step": 0, "last_step": max(spec.steps) - 1}
    manifest["steps_per_batch"] = spec.steps
    plain = manifest["molecules"][1]
    manifest["molecules"] = [
        {
            **plain,
            "sequence": sequence,
            "batch": batch,
            "row": row,
            "token_ids": list(range(len(kinds))),
            "kinds": kinds,
            "blocks": _blocks(kinds),
        }
        for sequence, (batch, row, kinds) in enumerate(_molecules(spec))
    ]
    return content


def in_rounds(content: dict[str, Any], run: str, speeds: Sequence[float]) -> dict[str, Any]:
    """The run with one timed pass for each speed: rounds of a capture of several runs, in which this one is `run`."""
    timings = content["molprof"]["timings"]
    timings["repeats"] = [
        {
            "wall_ns": round(speed * repeat["wall_ns"]),
            "phases_ns": {phase: round(speed * ns) for phase, ns in repeat["phases_ns"].items()},
            "steps_ns": [],
        }
        for repeat in timings["repeats"][:1]
        for speed in speeds
    ]
    content["molprof"]["session"] = {"id": "one", "seed": 0, "run": run, "rounds": list(range(len(speeds)))}
    return content


def _molecules(spec: Spec) -> list[tuple[int, int, str]]:
    return [(batch, row, kinds) for batch, rows in enumerate(spec.batches) for row, kinds in enumerate(rows)]


def _blocks(kinds: str) -> list[int]:
    return [0 if kind in "fjl" else -1 for kind in kinds]


def _events(spec: Spec) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    began: dict[tuple[int, int], tuple[int, int]] = {}
    now = 1000
    for batch, steps in enumerate(spec.steps):
        for step in range(steps):
            start = now
            first = ("forward", spec.costs["forward"]) if step else ("prefill", spec.prefill)
            for phase, cost in (first, *((name, spec.costs[name]) for name in STEP_PHASES[1:])):
                inside = _phase(spec, cost, now)
                duration = 2 * cost.launch + cost.sync + cost.gpu
                name = f"molprof.{phase} batch={batch} step={step}"
                events += [slice_("user_annotation", name, now, duration), *inside]
                now += duration
            events.append(slice_("user_annotation", f"molprof.step batch={batch} step={step}", start, now - start))
            began[batch, step] = start, now - start
    return events + _tokens(spec, began)


def _phase(spec: Spec, cost: Cost, now: int) -> list[dict[str, Any]]:
    if not spec.gpu:
        return []
    issuing = 2 * cost.launch
    waiting = now + issuing
    events = []
    if cost.gpu:
        events.append(slice_("cuda_runtime", "cudaLaunchKernel", now, min(2, issuing), correlation=now))
        events.append(work("kernel", "some_kernel", waiting + cost.sync, cost.gpu, now))
    if cost.sync:
        # The call lasts as long as the work that it waits for.
        events.append(
            slice_("cuda_runtime", "cudaStreamSynchronize", waiting, cost.sync + cost.gpu, correlation=waiting)
        )
    return events


def _tokens(spec: Spec, began: dict[tuple[int, int], tuple[int, int]]) -> list[dict[str, Any]]:
    events = []
    for sequence, (batch, row, kinds) in enumerate(_molecules(spec)):
        names = [NAMES[kind] for kind in kinds]
        places = {"sequence": sequence, "batch": batch}
        start, _ = began[batch, 0]
        last, length = began[batch, spec.steps[batch] - 1]
        events.append(
            slice_(
                "molprof.sequence",
                f"sequence {sequence}: O",
                start,
                last + length - start,
                TOKENS,
                sequence + 1,
                **places,
                row=row,
                smiles="O",
                tokens=len(kinds),
                token_id=list(range(len(kinds))),
                text=["x"] * len(kinds),
                kind=names,
                block=_blocks(kinds),
            )
        )
        for step, name in enumerate(names):
            ts, duration = began[batch, step]
            token = {"step": step, "position": step, "token_id": step, "kind": name, "block": _blocks(kinds)[step]}
            events.append(slice_("molprof.token", "x", ts, duration, TOKENS, sequence + 1, **places, **token))
    return events
