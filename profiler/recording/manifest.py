"""The manifest of a run by a capture, a program or an engine; and the cost of its timestamps."""

from __future__ import annotations

import inspect
import statistics
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessor

from molprof.common.manifest import KEY, SCHEMA, Manifest, Repeat, Timings, Window
from molprof.common.text_format import DEFAULT, TextFormat
from molprof.common.values import now
from molprof.profiler.environment import environment
from molprof.profiler.recording.clock import Clock
from molprof.profiler.recording.sequences import Generated
from molprof.profiler.recording.timed import unprofiled_ns
from molprof.profiler.recording.tracefile import ExportedFile, OutputFile, token_events, write_trace


def manifest_of(
    output: OutputFile,
    device: torch.device,
    exported: ExportedFile,
    window: Window,
    generated: Generated,
    repeats: Sequence[Repeat],
    timings: Mapping[str, Any],
    **fields: Any,
) -> Manifest:
    """Return the manifest of a run.

    Args:
        repeats: its timed passes.
        timings: more of `Timings`.
        fields: of `Manifest`, what is not said by the other arguments.
    """
    spans = exported.steps
    return Manifest(
        schema=SCHEMA,
        created=now(),
        command=list(output.command),
        environment=environment(device),
        timings=Timings(
            repeats=list(repeats),
            mark_ns=mark_cost_ns(),
            profiled_steps_ns=sum(span.duration_ns for span in spans.values()),
            unprofiled_steps_ns=unprofiled_ns(repeats, spans),
            **{"warmup_ns": [], "unmarked_wall_ns": None, **timings},
        ),
        window=window,
        steps_per_batch=list(map(len, generated.rows_per_step)),
        rows_per_step=generated.rows_per_step,
        molecules=generated.sequences,
        **{"skipped": [], **fields},
    )


def write_run(
    exported: ExportedFile, output: OutputFile, manifest: Manifest, generated: Generated, form: TextFormat = DEFAULT
) -> Path:
    """Write a recording with the tokens and the manifest of its run; return the path. Raises as `write_trace`."""
    events: Iterable[str] = ()
    if exported.steps:
        events = token_events(generated.sequences, generated.texts, exported.steps, form)
    return write_trace(exported, output, events, {KEY: manifest.to_json()})


def mark_cost_ns() -> float:
    """Return the measured cost of one host timestamp in a timed pass, ns."""
    clock = Clock()
    clock.begin(0)
    return _cost_ns(clock.processor, 2000)


def signature_cost_ns() -> float:
    """Return the measured cost of one signature inspection as in `LogitsProcessorList`, ns."""
    call = LogitsProcessor().__call__
    return _cost_ns(lambda: inspect.signature(call).parameters, 200)


def _cost_ns(action: Callable[[], object], calls: int) -> float:
    """Return the median of nine averages, ns."""
    return 1e9 / calls * statistics.median(timeit.repeat(action, repeat=9, number=calls))
