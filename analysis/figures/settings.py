"""What ran, and the trace of it: rows of the page's table of settings, some of them rows of comparisons too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal

from molprof.analysis.figures.figure import Figure, of_run
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run
from molprof.common.values import Cell, Unit, count_text, number_text

_SETUP, _TRACE = "Setup", "Trace"
_Role = Literal["measure", "subject", "setting", "work"]


def _of_run(
    name: str, label: str, value: Callable[[Run], Cell], role: _Role, unit: Unit = "text", compared: bool = False
) -> Figure:
    return Figure(name, _SETUP, label, unit, of_run(value), role=role, compared=compared)


def _of_trace(
    name: str, label: str, value: Callable[[Report], Cell], role: _Role = "subject", unit: Unit = "text"
) -> Figure:
    return Figure(name, _TRACE, label, unit, value, role=role, compared=False)


def _sampling_parameters(run: Run) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(run.setup.sampling_parameters.items())) or "none"


def _recorded(run: Run) -> str:
    window = run.window
    return "all steps" if window.full else f"steps {window.first_step} to {window.last_step} of batch {window.batch}"


def _devices(report: Report) -> str | None:
    """Each name once, with the number of devices that have it."""
    counts = Counter(report.trace.device_names).items()
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts) or None


SETTINGS = (
    _of_run("model", "model", lambda run: f"{run.setup.model} ({run.setup.family})", "subject"),
    _of_run("size", "model size", lambda run: run.setup.size or "its own", "setting"),
    _of_run("weights", "weights", lambda run: run.setup.weights, "subject"),
    _of_run("parameters", "parameters", lambda run: f"{number_text(run.setup.parameters / 1e6)} M", "subject"),
    _of_run("dtype", "dtype", lambda run: run.setup.dtype, "setting"),
    _of_run(
        "tokenizer",
        "tokenizer",
        lambda run: f"{run.setup.tokenizer}, {count_text(run.setup.vocabulary)} tokens",
        "subject",
    ),
    _of_run("logits_width", "width of the logits", lambda run: run.setup.logits_width, "subject", "count"),
    _of_run("processor", "logits processor", lambda run: run.setup.processor or "none", "subject"),
    _of_run("placeholder", "placeholder", lambda run: run.setup.placeholder or "none", "subject"),
    _of_run("device", "device", lambda run: run.setup.gpu or run.setup.device, "setting", compared=True),
    _of_run("sampling", "sampling", lambda run: run.setup.sampling, "work", compared=True),
    _of_run("sampling_parameters", "sampling parameters", _sampling_parameters, "work"),
    _of_run("loop", "decoding", lambda run: run.setup.loop, "subject", compared=True),
    _of_run("cache", "KV cache", lambda run: run.setup.cache, "setting"),
    _of_run("attention", "attention", lambda run: run.setup.attention, "setting"),
    _of_run("batch_size", "batch size", lambda run: run.setup.batch_size, "setting", "count", compared=True),
    _of_run("molecules", "molecules", lambda run: run.molecules, "work", "count", compared=True),
    _of_run("valid_molecules", "valid molecules", lambda run: run.valid_molecules, "measure", "count", compared=True),
    _of_run("max_new_tokens", "most new tokens", lambda run: run.setup.max_new_tokens, "subject", "count"),
    _of_run("seed", "seed", lambda run: str(run.setup.seed), "subject"),
    _of_run("torch", "torch", lambda run: run.setup.torch, "setting"),
    _of_run("transformers", "transformers", lambda run: run.setup.transformers, "setting"),
    _of_run("repeats", "unprofiled repeats", lambda run: run.wall_ns.repeats, "subject", "count"),
    _of_run("recorded_steps", "recorded", _recorded, "subject"),
    _of_trace("trace", "trace", lambda report: report.trace.path, "measure"),
    _of_trace("trace_bytes", "size", lambda report: report.trace.bytes, "measure", "bytes"),
    _of_trace("devices", "devices in the trace", _devices),
    _of_trace("events", "events", lambda report: sum(report.trace.events_by_category.values()), "measure", "count"),
    _of_trace("lost_events", "events lost in reading", lambda report: report.trace.lost_events, unit="count"),
    _of_trace(
        "whole", "whole", lambda report: "yes" if report.trace.complete else f"no: {report.trace.problem or 'unknown'}"
    ),
)
