"""The page's figures, each with what it shows and how to read it; one that has no data says so."""

from __future__ import annotations

from dataclasses import dataclass

from molprof.analysis.plots import NotRecordedError, Subject, plot_svg
from molprof.analysis.plots.latency import has_bands


@dataclass(frozen=True)
class PageFigure:
    """A figure: `svg` is an element made by `plot_svg`; without one, `problem` says what is not recorded."""

    kind: str
    title: str
    caption: str
    svg: str | None
    problem: str | None


_WATERFALL = (
    "waterfall",
    "Where the difference lies",
    "From the time of the first, part by part, to that of the other: unprofiled time of runs, else what the traces "
    "recorded of the GPUs. Hatched: more time; plain: less. The parts add up; what no part accounts for is shown too.",
)
_FIGURES = (
    (
        "timeline",
        "A typical step",
        "The recorded step of median length, profiler's cost included: {shown}.",
    ),
    (
        "phases",
        "Phases of a step",
        "Unprofiled time per step by phase: forward per decode step, the others per step.",
    ),
    (
        "classes",
        "Kernel classes",
        "GPU time by kind of work, with its share of all GPU time and how many kernels, copies or sets that are.",
    ),
    (
        "latency",
        "Step latency over sequence position",
        "Unprofiled time of decode steps by how far the sequences have come: median over batches and "
        "repeats{band}. Rising lines are what a longer cache costs.",
    ),
    (
        "drift",
        "Drift",
        "Above, for runs with a template: positions that it had for a block and the numbers did not need (left of 0: "
        "they needed more). Below: the junk and filler tokens that were written. Numbers over the bars are blocks.",
    ),
)


_BAND = "; the band holds the middle eight tenths"
_GPU = "phases and calls on the host, below them what they started on the GPU. Gaps in a GPU's row are idle time"
_NO_GPU = "phases and operators on the host. No GPU work is recorded"


def page_figures(subject: Subject) -> list[PageFigure]:
    """Every figure, in the order in which they explain the verdict; the waterfall only where there are two runs."""
    wanted = (_WATERFALL, *_FIGURES) if len(subject.reports) > 1 else _FIGURES
    parts = {"band": _BAND if has_bands(subject) else "", "shown": _GPU if _has_gpu(subject) else _NO_GPU}
    return [_figure(kind, title, caption.format(**parts), subject) for kind, title, caption in wanted]


def _has_gpu(subject: Subject) -> bool:
    return any(report.trace.gpu_recorded for report in subject.reports)


def _figure(kind: str, title: str, caption: str, subject: Subject) -> PageFigure:
    try:
        return PageFigure(kind, title, caption, plot_svg(kind, subject), None)
    except NotRecordedError as error:
        return PageFigure(kind, title, caption, None, str(error))
