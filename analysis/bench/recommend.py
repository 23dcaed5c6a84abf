"""The fastest valid configuration of each batch size, and the most that a trace says each change can gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from molprof.analysis.bench.summary import MeasuredCase, short_message, summed
from molprof.analysis.compare.statistics import ConfidenceInterval, ratio_interval, significant
from molprof.analysis.figures.build import build_report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.findings import TraceFacts, find_all
from molprof.analysis.findings.attention import attention_ratio
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.bench_records import GENERATE, Results
from molprof.common.errors import TraceError
from molprof.common.process import NOT_MEASURED, OK
from molprof.common.settings import SETTINGS

# Settings that change the speed and not what is generated, and their defaults; the default is not to compile.
_LEVERS = ("attention", "kv_cache", "compile", "tf32", "cudnn_benchmark", "padding_multiple", "max_cache_length")
DEFAULTS: dict[str, Any] = {name: SETTINGS[name].default for name in _LEVERS} | {"compile": "off"}
_HOW_MEASURED = ("warmup", "passes", "kind")


@dataclass(frozen=True)
class Ratio:
    """Time per token of a configuration over that of another; `interval` is None with too few repeats of either."""

    value: float
    interval: ConfidenceInterval | None

    @property
    def certain(self) -> bool | None:
        """True if the times differ significantly; None with too few repeats."""
        return significant(self.interval)


@dataclass(frozen=True)
class Lever:
    """A configuration that differs from the default in one setting."""

    name: str
    value: Any
    ratio: Ratio


@dataclass(frozen=True)
class Rejected:
    """A configuration that is not valid, and why."""

    settings: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class Advice:
    """The fastest configuration for one model, processor and batch size in one environment."""

    environment: str
    shared: dict[str, Any]  # settings of all configurations
    batch_size: int
    best: dict[str, Any]  # its settings of `DEFAULTS`
    tokens_per_s: float  # of the best
    peak_memory_bytes: float | None
    default_tokens_per_s: float | None  # None: the default was not measured or not ok
    over_default: Ratio | None  # of the best; None as above
    alike: tuple[dict[str, Any], ...]  # not significantly different from the best, the fastest first
    levers: tuple[Lever, ...]  # the largest gain first
    rejected: tuple[Rejected, ...]
    unmeasured: tuple[Rejected, ...]  # configurations of which nothing is known, and why
    candidates: int  # valid configurations


def recommend(results: Results) -> tuple[Advice, ...]:
    """Return advice for every environment, model, processor and batch size that was measured.

    A configuration is valid if all its processes were ok and it generated at least as many valid molecules as the
    default. The fastest has the least median time per token. Raises TraceError.
    """
    measured = [item for item in summed(results) if item.kind == GENERATE]
    if not any(item.status == OK for item in measured):
        hint = "molprof sweep matrix measures some"
        raise TraceError("no case of whole generation in the file is ok", hint)
    groups: dict[str, list[MeasuredCase]] = {}
    for item in measured:
        groups.setdefault(repr((item.environment, sorted(_shared(item).items(), key=str))), []).append(item)
    all_advice = [advice for items in groups.values() if (advice := _advice(items)) is not None]
    names = ("model", "processor")
    return tuple(sorted(all_advice, key=lambda item: (
        item.environment, *(str(item.shared.get(name) or "") for name in names), item.batch_size
    )))  # fmt: skip


def _advice(items: Sequence[MeasuredCase]) -> Advice | None:
    default = next((item for item in items if _levers(item) == DEFAULTS and item.times_ns), None)
    judged = [(item, _invalid(item, default)) for item in items]
    valid = [item for item, reason in judged if reason is None]
    if not valid:
        return None
    refused = [(item, Rejected(_levers(item), reason)) for item, reason in judged if reason is not None]
    best, *others = sorted(valid, key=lambda item: (item.median_ns or 0.0, item.case))
    return Advice(
        environment=best.environment,
        shared=_shared(best),
        batch_size=int(best.settings.get("batch_size") or SETTINGS["batch_size"].default),
        best=_levers(best),
        tokens_per_s=best.tokens_per_s or 0.0,
        peak_memory_bytes=best.median("peak_memory_bytes"),
        default_tokens_per_s=None if default is None else default.tokens_per_s,
        over_default=None if default is None else _ratio(best, default),
        alike=tuple(_levers(item) for item in others if not _ratio(item, best).certain),
        levers=() if default is None else _single_changes(valid, default),
        rejected=tuple(one for item, one in refused if item.status != NOT_MEASURED),
        unmeasured=tuple(one for item, one in refused if item.status == NOT_MEASURED),
        candidates=len(valid),
    )


def _invalid(item: MeasuredCase, default: MeasuredCase | None) -> str | None:
    if item.status != OK or not item.times_ns:
        return f"{item.status}: {short_message(item.message)}" if item.message else item.status
    valid = item.median("valid_molecules")
    least = None if default is None else default.median("valid_molecules")
    if least is not None and (valid is None or valid < least):
        shown = "validity not recorded" if valid is None else f"{valid:.0f} valid molecules"
        return f"{shown}, {least:.0f} by default"
    return None


def _single_changes(valid: Sequence[MeasuredCase], default: MeasuredCase) -> tuple[Lever, ...]:
    levers = []
    for item in valid:
        changed = {name: value for name, value in _levers(item).items() if value != DEFAULTS[name]}
        # Only a static cache is compiled, so that these two change together.
        if len(changed) == 1:
            (name,) = changed
            levers.append(Lever(name, changed[name], _ratio(item, default)))
        elif set(changed) == {"kv_cache", "compile"}:
            text = f"{changed['compile']}, {changed['kv_cache']} cache"
            levers.append(Lever("compile", text, _ratio(item, default)))
    return tuple(sorted(levers, key=lambda lever: lever.ratio.value))


def _ratio(item: MeasuredCase, base: MeasuredCase) -> Ratio:
    return Ratio((item.median_ns or 0.0) / (base.median_ns or 1.0), ratio_interval(item.times_ns, base.times_ns))


def _levers(item: MeasuredCase) -> dict[str, Any]:
    return {name: item.settings.get(name, default) for name, default in DEFAULTS.items()}


def _shared(item: MeasuredCase) -> dict[str, Any]:
    left_out = {*DEFAULTS, *_HOW_MEASURED}
    return {name: value for name, value in item.settings.items() if name not in left_out}


@dataclass(frozen=True)
class AmdahlBound:
    """Amdahl's bound of one lever."""

    lever: str
    gain_ratio: float | None  # share of the time that it acts on, the most that it can save; None: not recorded
    why: str  # which part of the time that is


@dataclass(frozen=True)
class Bounds:
    """The bounds that one trace gives for the gain of each lever."""

    trace: str
    settings: dict[str, str | int | None]  # of the run, those that matter here; empty for a foreign trace
    bounds: tuple[AmdahlBound, ...]


def read_bounds(engine: TraceProcessor, info: TraceInfo) -> Bounds:
    """Return the most that each lever can gain in a loaded trace. Raises TraceError, EngineError."""
    report = build_report(engine, info)
    known, setup = TraceFacts(engine, report), report.run and report.run.setup
    if known.any_scope is None:
        raise TraceError(f"{info.path} records no time", hint="molprof capture records one")
    names = ("model", "processor", "batch_size", "attention")
    settings = {**{name: getattr(setup, name) for name in names}, "kv_cache": setup.cache} if setup else {}
    return Bounds(info.path, settings, tuple(_bounds(known)))


def _bounds(known: TraceFacts) -> Iterator[AmdahlBound]:
    gains, run, scope = {finding.id: finding.gain_ratio for finding in find_all(known)}, known.report.run, known.scope
    yield AmdahlBound("attention", attention_ratio(known), "share of the time in attention")
    yield AmdahlBound("kv_cache", gains.get("cache_concatenation"), "copying the dynamic cache for each token")
    if run is not None:
        yield AmdahlBound("compile", _phase(run, "forward"), "share of decode steps' forward, all that is compiled")
        processor = _phase(run, "processor") if run.setup.processor is not None else None
        yield AmdahlBound("processor", processor, "share of the logits processor; its tokens are counted apart")
        if run.window.classes is not None and run.window.steps:
            matmul = run.window.classes.get("matmul")
            gain = scope.gpu_part(matmul.time_ns / max(1, scope.devices)) if matmul is not None else 0.0
            yield AmdahlBound("tf32", gain, "share of the time in matrix products on the GPU")
    if launches := gains.get("launch_bound"):
        yield AmdahlBound("CUDA graphs", launches, "the GPU waits for launches")


def _phase(run: Run, name: str) -> float | None:
    phase, wall_ns = run.phases.get(name), run.wall_ns.median
    return min(1.0, (phase.wall_ns or 0) / wall_ns if phase else 0.0) if wall_ns else None
