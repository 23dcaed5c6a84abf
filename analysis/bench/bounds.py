"""The most that each lever of a configuration can gain, by Amdahl's law, from the phases and kernels of a trace."""

from __future__ import annotations

from dataclasses import dataclass

from molprof.analysis.figures.build import build_report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.findings import Known, find_all
from molprof.analysis.findings.attention import attention_ratio
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import TraceProcessor
from molprof.common.errors import TraceError


@dataclass(frozen=True)
class Bound:
    """Amdahl's bound of one lever."""

    lever: str
    gain_ratio: float | None  # share of the time that it acts on, the most that it can save; None: not recorded
    why: str  # which part of the time that is


@dataclass(frozen=True)
class Bounds:
    trace: str
    settings: dict[str, str | int | None]  # of the run, those that matter here; empty for a foreign trace
    bounds: tuple[Bound, ...]

    def same_work(self, model: object, constrained: bool) -> bool:
        """Whether the trace is of that model, with or without a logits processor, or a foreign trace."""
        if not self.settings:
            return True
        return self.settings["model"] == model and (self.settings["processor"] is not None) == constrained

    def of(self, lever: str) -> Bound | None:
        return next((bound for bound in self.bounds if bound.lever == lever), None)


def read_bounds(engine: TraceProcessor, info: TraceInfo) -> Bounds:
    """Return the bounds that a loaded trace gives. Raises TraceError, EngineError."""
    report = build_report(engine, info)
    known = Known(engine, report, info)
    if known.any_scope is None:
        raise TraceError(f"{info.path} records no time", hint="molprof capture records one")
    return Bounds(info.path, _settings(report.run), _bounds(known))


def _bounds(known: Known) -> tuple[Bound, ...]:
    gains, run, scope = {finding.id: finding.gain_ratio for finding in find_all(known)}, known.report.run, known.scope
    found = [Bound("attention", attention_ratio(known), "share of the time in attention")]
    cache = gains.get("cache_concatenation")
    found.append(Bound("kv_cache", cache, "copying the dynamic cache for each token"))
    if run is not None:
        found.append(Bound("compile", _phase(run, "forward"), "share of decode steps' forward, all that is compiled"))
        processor = _phase(run, "processor") if run.setup.processor is not None else None
        found.append(Bound("processor", processor, "share of the logits processor; its tokens are counted apart"))
        if run.window.classes is not None and run.window.steps:
            matmul = run.window.classes.get("matmul")
            gain = scope.gpu_part(matmul.time_ns / max(1, scope.devices)) if matmul is not None else 0.0
            found.append(Bound("tf32", gain, "share of the time in matrix products on the GPU"))
    launches = max((gains.get(name) or 0.0 for name in ("launch_bound", "graphs_unused")), default=0.0)
    if launches:
        found.append(Bound("CUDA graphs", launches, "the GPU waits for launches"))
    return tuple(found)


def _phase(run: Run, name: str) -> float | None:
    phase, wall_ns = run.phases.get(name), run.wall_ns.median
    return min(1.0, (phase.wall_ns or 0) / wall_ns if phase else 0.0) if wall_ns else None


def _settings(run: Run | None) -> dict[str, str | int | None]:
    if run is None:
        return {}
    setup = run.setup
    return {
        "model": setup.model,
        "processor": setup.processor,
        "batch_size": setup.batch_size,
        "attention": setup.attention,
        "kv_cache": setup.cache,
    }
