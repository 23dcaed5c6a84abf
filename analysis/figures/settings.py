"""What ran, and the trace of it: the page's table of settings. Some are rows of comparisons too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from molprof.analysis.figures.figure import Figure, Role, of_run
from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Run, Setup
from molprof.analysis.reader.info import path_text
from molprof.common.text_format import ANSWER, PROMPT
from molprof.common.values import Unit, Value, count_text, number_text

_AS_NEEDED = "as needed"


def _of_run(
    name: str, label: str, role: Role, value: Callable[[Run], Value], unit: Unit = "text", compared: bool = False
) -> Figure:
    of_molecules = name in ("valid_molecules", "placeholder")
    read = of_run(value)
    return Figure(
        name, "Settings of the run", label, unit, read, role=role, compared=compared, of_molecules=of_molecules
    )


def _of_setup(name: str, label: str, role: Role, value: Callable[[Setup], Value], unit: Unit = "text") -> Figure:
    return _of_run(name, label, role, lambda run: value(run.setup), unit)


def _unusual(name: str, label: str, role: Role, value: Callable[[Setup], Value], usual: Value) -> Figure:
    """A setting that is shown where it is not `usual`."""
    return replace(_of_setup(name, label, role, value), usual=usual)


def _switch(value: bool | None) -> Value:
    return None if value is None else "on" if value else "off"


def _of_trace(name: str, label: str, role: Role, value: Callable[[Report], Value], unit: Unit = "text") -> Figure:
    return Figure(name, "Trace", label, unit, value, role=role, compared=False)


def _given(name: str, label: str) -> Figure:
    """What the user says of a foreign trace."""

    def value(report: Report) -> Value:
        return getattr(report.given, name) if report.run is None else None

    return Figure(f"given_{name}", "Trace", label, "count", value, role="subject", compared=False, stands_in=True)


def _tokenizer(setup: Setup) -> str:
    return f"{setup.tokenizer}, {count_text(setup.vocabulary)} tokens"


def _sampling_parameters(setup: Setup) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(setup.sampling_parameters.items())) or "none"


def _padding(setup: Setup) -> Value:
    multiple = setup.padding_multiple
    return None if multiple is None else "to the longest" if multiple == 1 else f"to a multiple of {multiple}"


def _recorded(run: Run) -> str:
    window = run.window
    return "all steps" if window.full else f"steps {window.first_step} to {window.last_step} of batch {window.batch}"


def _devices(report: Report) -> str | None:
    """Each name once, with the number of devices that have it."""
    counts = Counter(report.trace.device_names).items()
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts) or None


def _events(report: Report) -> int:
    return sum(report.trace.events_by_category.values())


def _whole(report: Report) -> str:
    return "yes" if report.trace.complete else f"no: {report.trace.problem or 'unknown'}"


SETTINGS = (
    _of_setup("model", "model", "subject", lambda setup: f"{setup.model} ({setup.family})"),
    _of_setup("size", "model size", "setting", lambda setup: setup.size or "its own"),
    _of_setup("weights", "weights", "subject", lambda setup: setup.weights),
    _of_setup("parameters", "parameters", "subject", lambda setup: f"{number_text(setup.parameters / 1e6)} M"),
    _of_setup("dtype", "dtype", "setting", lambda setup: setup.dtype),
    _of_setup("tokenizer", "tokenizer", "subject", _tokenizer),
    _of_setup("logits_width", "logits width", "subject", lambda setup: setup.logits_width, "count"),
    _of_setup("processor", "logits processor", "subject", lambda setup: setup.processor or "none"),
    _of_setup("placeholder", "placeholder", "subject", lambda setup: setup.placeholder or "none"),
    _of_run("device", "device", "setting", lambda run: run.setup.gpu or run.setup.device, compared=True),
    _of_run("sampling", "sampling", "work", lambda run: run.setup.sampling, compared=True),
    _of_setup("sampling_parameters", "sampling parameters", "work", _sampling_parameters),
    _of_run("loop", "decoding", "subject", lambda run: run.setup.loop, compared=True),
    _of_setup("cache", "KV cache", "setting", lambda setup: setup.cache),
    _unusual(
        "max_cache_length",
        "KV cache length",
        "setting",
        lambda setup: str(setup.max_cache_length or _AS_NEEDED),
        _AS_NEEDED,
    ),
    _of_setup("attention", "attention", "setting", lambda setup: setup.attention),
    _of_setup("tf32", "TF32", "setting", lambda setup: _switch(setup.tf32)),
    _of_setup("cudnn_benchmark", "cuDNN benchmark", "setting", lambda setup: _switch(setup.cudnn_benchmark)),
    _of_setup("padding_multiple", "prompt padding", "setting", _padding),
    _unusual("prompt_format", "prompt format", "subject", lambda setup: setup.prompt_format, PROMPT),
    _unusual("answer_format", "answer format", "subject", lambda setup: setup.answer_format, ANSWER),
    _of_run("batch_size", "batch size", "setting", lambda run: run.setup.batch_size, "count", compared=True),
    _of_run("molecules", "molecules", "work", lambda run: run.molecules, "count", compared=True),
    _of_run("valid_molecules", "valid molecules", "measure", lambda run: run.valid_molecules, "count", compared=True),
    _of_setup("max_new_tokens", "token limit (max_new_tokens)", "subject", lambda setup: setup.max_new_tokens, "count"),
    _of_setup("seed", "seed", "subject", lambda setup: str(setup.seed)),
    _of_setup("torch", "torch", "setting", lambda setup: setup.torch),
    _of_setup("transformers", "transformers", "setting", lambda setup: setup.transformers),
    _of_run("repeats", "timed passes", "subject", lambda run: run.wall_ns.repeats, "count"),
    _of_run("recorded_steps", "recorded steps", "subject", _recorded),
    _of_trace("trace", "trace file", "measure", lambda report: path_text(report.trace.path), "path"),
    _of_trace("trace_bytes", "trace size", "measure", lambda report: report.trace.bytes, "bytes"),
    _of_trace("devices", "devices in the trace", "subject", _devices),
    _given("tokens", "generated tokens, as given"),
    _given("molecules", "molecules, as given"),
    _of_trace("events", "events in the trace", "measure", _events, "count"),
    _of_trace("lost_events", "events lost while reading", "subject", lambda report: report.trace.lost_events, "count"),
    _of_trace("whole", "trace complete", "subject", _whole),
)
