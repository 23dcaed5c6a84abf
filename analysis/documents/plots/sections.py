"""The plots of a report or comparison as sections of its page, each with what it shows and how to read it."""

from __future__ import annotations

from functools import partial

from molprof.analysis.documents.plots import Subject, plot_svg
from molprof.analysis.documents.plots.latency import has_bands
from molprof.common.document import Plot, Section

_PLOTS = {
    "waterfall": (
        "Where the difference lies",
        "From the time of the first run, part by part, to that of the other: unprofiled time of runs, otherwise what "
        "the traces recorded of the GPUs. Hatched: more time; plain: less. The parts add up; the unexplained rest is "
        "shown too. Those of paired runs are means of rounds: the first bar is the other run's median less these.",
    ),
    "timeline": ("A typical step", "The recorded step of median length, profiler's cost included: {shown}."),
    "phases": ("Phases of a step", "Unprofiled time per step by phase: forward per decode step, the others per step."),
    "classes": (
        "Kernel classes",
        "GPU time by class of kernel, with its share of all GPU time and the number of kernels, copies or memsets.",
    ),
    "latency": (
        "Step latency over sequence position",
        "Unprofiled time of decode steps by position in the sequence: median over batches and timed passes{band}. "
        "Rising lines show what a longer cache costs.",
    ),
    "drift": (
        "Drift of coordinate blocks",
        "Above, for runs with a template: FREE positions of a block that its numbers did not need (left of 0: they "
        "needed more). Below: junk and filler tokens written. Numbers over the bars count blocks.",
    ),
}
_BAND = "; the band holds the middle 80 %"
_GPU = "phases and calls on the host, below them the GPU work that they started. Gaps in a GPU's row are idle time"
_NO_GPU = "phases and operators on the host. No GPU work is recorded"


def plot_sections(subject: Subject) -> Section:
    """Every plot, in the order in which they explain the summary; the waterfall only where there are two runs."""
    has_gpu = any(report.trace.gpu_recorded for report in subject.reports)
    runs = [report.run for report in subject.reports if report.run is not None]
    plain = bool(runs) and not any(run.of_molecules for run in runs)  # prompts have no coordinates
    words = {"band": _BAND if has_bands(subject) else "", "shown": _GPU if has_gpu else _NO_GPU}
    return Section(
        "",
        parts=tuple(
            Section(title, plot=Plot(caption.format(**words), partial(plot_svg, kind, subject)))
            for kind, (title, caption) in _PLOTS.items()
            if (kind != "waterfall" or len(subject.reports) > 1) and not (kind == "drift" and plain)
        ),
    )
