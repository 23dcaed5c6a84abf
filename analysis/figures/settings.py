"""Settings of the run and its trace: rows of the page's table. Some are rows of comparisons too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from molprof.analysis.figures.figure import Figure, Role, of_run
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run, Setup
from molprof.analysis.reader import path_text
from molprof.common.engine_settings import CONSTRAINTS, NOT_OF_VLLM, VLLM
from molprof.common.manifest import ProgramTotals
from molprof.common.settings import SETTINGS as ROWS
from molprof.common.values import Unit, Value, count_text, number_text, per


def _of_run(
    name: str, label: str, role: Role, value: Callable[[Run], Value], unit: Unit = "text", **fields: Any
) -> Figure:
    """Return the figure of a setting, which is no row of comparisons unless `fields` say so."""
    return Figure(name, "Settings of the run", label, unit, of_run(value), role=role, **{"compared": False, **fields})


def _plain(value: Any, setup: Any) -> Value:
    return ("on" if value else "off") if isinstance(value, bool) else value


def _setting(name: str, text: Callable[[Any, Any], Value] = _plain, unit: Unit = "text", **fields: Any) -> Figure:
    """Return a setting's row, with `text` of its value."""
    row = ROWS[name]
    assert row.role is not None

    def value(run: Run) -> Value:
        if run.setup.engine == VLLM and name in NOT_OF_VLLM and name != "tokenizer":
            return None  # what is recorded is the default of other engines
        return text(getattr(run.setup, row.recorded), run.setup)

    if row.quiet:
        fields["usual"] = text(row.default, None)
    return _of_run(row.recorded, row.label, row.role, value, unit, **fields)


def _of_trace(name: str, label: str, role: Role, value: Callable[[Report], Value], unit: Unit = "text") -> Figure:
    return Figure(name, "Trace", label, unit, value, role=role, compared=False)


def _given(name: str, label: str) -> Figure:
    """Return a figure that the user states for a foreign trace."""

    def value(report: Report) -> Value:
        return getattr(report.given, name) if report.run is None else None

    return Figure(f"given_{name}", "Trace", label, "count", value, role="subject", compared=False, stands_in=True)


def _or_none(value: str | None, setup: Setup) -> str:
    return value or "none"


def _processor(value: str | None, setup: Setup | None) -> str:
    """Return the processor, with the requested one and the reason where that could not be used."""
    instead = ((setup and setup.processor_parameters) or {}).get("instead_of", {})
    return ", ".join([value or "none", *(f"instead of {name}: {why}" for name, why in instead.items())])


def _arguments(run: Run) -> str | None:
    """Return the arguments of a program's `generate` that constrain tokens; None for a capture."""
    if not isinstance(run.program, ProgramTotals):
        return None
    return ", ".join(f"{name} {value}" for name, value in (run.setup.processor_parameters or {}).items()) or "none"


def _sampling_parameters(run: Run) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(run.setup.sampling_parameters.items())) or "none"


def _otherwise(run: Run) -> str:
    return ", ".join(f"{name} {value}" for name, value in (run.setup.declared_otherwise or {}).items()) or "none"


def _padding(multiple: int | None, setup: Setup) -> Value:
    return None if multiple is None else "to the longest" if multiple == 1 else f"to a multiple of {multiple}"


def _recorded(run: Run) -> str:
    window = run.window
    return "all steps" if window.full else f"steps {window.first_step} to {window.last_step} of batch {window.batch}"


def _devices(report: Report) -> str | None:
    """Return each device name once, with the number of devices that have it."""
    counts = Counter(report.trace.device_names).items()
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts) or None


def _whole(report: Report) -> str:
    return "yes" if report.trace.complete else f"no: {report.trace.problem or 'unknown'}"


def _parameters(run: Run) -> str | None:
    return None if run.setup.parameters is None else f"{number_text(run.setup.parameters / 1e6)} M"


def _tokenizer(value: str, setup: Setup) -> str:
    return value if setup.vocabulary is None else f"{value}, {count_text(setup.vocabulary)} tokens"


_MODEL = (
    _setting("model", lambda value, setup: f"{value} ({setup.family})" if setup.family else value),
    _setting("size", lambda value, setup: value or "its own"),
    _setting("weights"),
    _of_run("parameters", "parameters", "subject", _parameters),
    _setting("dtype"),
    _setting("tokenizer", _tokenizer),
    _of_run("logits_width", "logits width", "subject", lambda run: run.setup.logits_width, "count"),
    _setting("processor", _processor),
    _of_run("constraining_arguments", "arguments that constrain", "setting", _arguments, usual="none"),
    _setting("placeholder", _or_none, of_molecules=True),
    _setting("device", lambda value, setup: setup.gpu or value, compared=True),
    _setting("sampling", compared=True),
    _of_run("sampling_parameters", "sampling parameters", "work", _sampling_parameters),
    _of_run("loop", "decoding", "subject", lambda run: run.setup.loop, compared=True),
    _setting("generate_args", lambda value, setup: ", ".join(value or ()) or "none"),
    _of_run("declared_otherwise", "model's generation_config, not followed", "subject", _otherwise, usual="none"),
    _setting("kv_cache"),
    _setting("max_cache_length", lambda value, setup: str(value or "as needed")),
    _setting("attention"),
    _setting("tf32"),
    _setting("cudnn_benchmark"),
    _setting("padding_multiple", _padding),
)
_RUN = (
    _setting("batch_size", unit="count", compared=True),
    _of_run("molecules", "molecules", "work", lambda run: run.molecules, "count", compared=True),
    _of_run(
        "valid_molecules",
        "valid molecules",
        "measure",
        lambda run: run.valid_molecules,
        "count",
        compared=True,
        of_molecules=True,
    ),
    _of_run(
        "valid_ratio",
        "share of valid answers",
        "measure",
        lambda run: None if run.of_molecules else per(run.valid_molecules, run.molecules),
        "ratio",
        compared=True,
        stands_in=True,
    ),
    *(_setting(name, _or_none) for name in (*CONSTRAINTS, "check")),
    _setting("max_new_tokens", unit="count"),
    _setting("seed", lambda value, setup: str(value)),
    _of_run("torch", "torch", "setting", lambda run: run.setup.torch),
    _of_run("transformers", "transformers", "setting", lambda run: run.setup.transformers),
    _of_run("vllm", "vLLM", "setting", lambda run: run.setup.vllm, stands_in=True),
    _of_run("repeats", "timed passes", "subject", lambda run: run.wall_ns.repeats, "count"),
    _of_run("recorded_steps", "recorded steps", "subject", _recorded),
    _of_trace("trace", "trace file", "measure", lambda report: path_text(report.trace.path), "path"),
    _of_trace("trace_bytes", "trace size", "measure", lambda report: report.trace.bytes, "bytes"),
    _of_trace("devices", "devices in the trace", "subject", _devices),
    _given("tokens", "generated tokens, as given"),
    _given("molecules", "molecules, as given"),
    _of_trace(
        "events", "events in the trace", "measure", lambda it: sum(it.trace.events_by_category.values()), "count"
    ),
    _of_trace("lost_events", "events lost while reading", "subject", lambda report: report.trace.lost_events, "count"),
    _of_trace("whole", "trace complete", "subject", _whole),
)
_NAMED = {figure.id for figure in (*_MODEL, *_RUN)}
# Settings whose value stands as it is need no entry above.
_OTHERS = tuple(_setting(name) for name, row in ROWS.items() if row.label and row.recorded not in _NAMED)
SETTINGS = (*_MODEL, *_OTHERS, *_RUN)
