"""Captured runs built for one purpose: decode steps of 1000 us each, whose events a test gives.

Phases of a step, in us from its start: forward 0 to 600, processor to 800, sampling to 900, bookkeeping to 1000. The
unprofiled passes take the same times, so that a share of the recorded time is a share of wall time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tiny_trace
from tiny_trace import slice_, work

STEP_US = 1000
GEMM = "sm90_xmma_gemm_bf16"
PHASES_US = {"forward": (0, 600), "processor": (600, 200), "sampling": (800, 100), "bookkeeping": (900, 100)}

Event = dict[str, Any]
PerStep = Callable[[int], list[Event]]


def decoding(
    per_step: PerStep = lambda start: [],
    *,
    steps: int = 4,
    lengths: Sequence[int] | None = None,
    batch_size: int = 8,
    kinds: Sequence[str] | None = None,
    setup: dict[str, int] | None = None,
    profiled_ratio: float = 1.0,
    repeats: Sequence[dict[str, Any]] = ({}, {}, {}),
    model: dict[str, Any] | None = None,
    processor: str | None = None,
    generation: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A run that recorded decode steps 1 to `steps` of batch 0.

    Args:
        per_step: events of the step that begins at so many us.
        lengths: tokens of each sequence; by default as many sequences as a batch has rows, none finished early.
        kinds: letters of each sequence's tokens; all free by default.
        setup: ns of phases outside the steps, on top of the wall time.
        profiled_ratio: the unprofiled steps took this times less.
        repeats: more of each timed pass.
    """
    lengths = [steps + 1] * batch_size if lengths is None else lengths
    kinds = ["f" * length for length in lengths] if kinds is None else kinds
    batches = [list(lengths[at : at + batch_size]) for at in range(0, len(lengths), batch_size)]
    content = tiny_trace.document()
    manifest = content["molprof"]
    wall_ns = {name: round(length * 1000 * steps / profiled_ratio) for name, (_, length) in PHASES_US.items()}
    wall_ns.update(setup or {})
    one = {"wall_ns": sum(wall_ns.values()), "phases_ns": wall_ns, "steps_ns": [[0] * max(row) for row in batches]}
    recorded_ns = steps * STEP_US * 1000
    manifest["timings"].update(
        repeats=[{**one, **more} for more in repeats],
        profiled_steps_ns=recorded_ns,
        unprofiled_steps_ns=round(recorded_ns / profiled_ratio),
    )
    manifest["window"].update(first_step=1, last_step=steps)
    manifest["steps_per_batch"] = [max(row) for row in batches]
    manifest["model"].update(model or {})
    manifest["generation"].update({"batch_size": batch_size, "processor": processor})
    manifest["generation"].update(generation or {})
    manifest["molecules"] = [_molecule(number, batch_size, text) for number, text in enumerate(kinds)]
    events = [_sequence(number, batch_size, text) for number, text in enumerate(kinds)]
    for name in ("template", "compile"):
        if name in wall_ns:
            events.append(slice_("user_annotation", f"molprof.{name} batch=0", 0, wall_ns[name] / 1000))
    for step in range(steps):
        start = 1000 + step * STEP_US
        events.append(slice_("user_annotation", f"molprof.step batch=0 step={step + 1}", start, STEP_US))
        for name, (offset, length) in PHASES_US.items():
            events.append(slice_("user_annotation", f"molprof.{name} batch=0 step={step + 1}", start + offset, length))
        events.extend(per_step(start))
    return {**content, "traceEvents": events}


def launched(kind: str, name: str, at: float, gpu_at: float, gpu_us: float, **args: Any) -> list[Event]:
    """A launch of 2 us and its kernel."""
    number = round(at * 10) + 3  # 0 is no number
    call = "cudaGraphLaunch" if kind == "graph" else "cudaMemcpyAsync" if kind == "gpu_memcpy" else "cudaLaunchKernel"
    category = kind if kind == "gpu_memcpy" else "kernel"
    return [
        slice_("cuda_runtime", call, at, 2, correlation=number),
        work(category, name, gpu_at, gpu_us, number, **args),
    ]


def op(name: str, at: float, dur: float) -> Event:
    return slice_("cpu_op", name, at, dur)


def gemms(start: int, every: int, gpu_us: float, count: int, first: int = 0) -> list[Event]:
    """Kernels that begin 2 us after their launches, as many us apart."""
    moments = [start + first + every * number for number in range(count)]
    return [event for at in moments for event in launched("kernel", GEMM, at, at + 2, gpu_us)]


def _molecule(number: int, batch_size: int, kinds: str) -> dict[str, Any]:
    count = len(kinds)
    return {
        "sequence": number, "batch": number // batch_size, "row": number % batch_size, "smiles": "C",
        "prompt": "x", "prompt_tokens": 1, "token_ids": [1] * count, "kinds": kinds, "blocks": [0] * count,
        "text": "x", "valid": None, "problem": None, "malformed_blocks": 0, "masked_logits": 1,
        "template": {"tokens": count, "free": count, "blocks": 1, "free_per_block": [count]},
    }  # fmt: skip


def _sequence(number: int, batch_size: int, kinds: str) -> Event:
    names = {"f": "free", "c": "copy", "j": "junk", "l": "filler", "e": "eos"}
    count = len(kinds)
    return slice_(
        "molprof.sequence", f"sequence {number}: C", 1000, 100, tiny_trace.TOKENS, number + 1, sequence=number,
        batch=number // batch_size, row=number % batch_size, smiles="C", tokens=count, token_id=[1] * count,
        text=["x"] * count, kind=[names[letter] for letter in kinds], block=[0] * count,
    )  # fmt: skip
