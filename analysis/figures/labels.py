"""Names of reports that are shown together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath

from molprof.analysis.figures.model import Report
from molprof.analysis.figures.run_model import Setup
from molprof.analysis.reader import path_text
from molprof.common.engine_settings import CONTINUOUS

# What tells runs of one model and processor apart, in a word or two; empty for what is usual.
_DISTINGUISHING: tuple[Callable[[Setup], str], ...] = (
    lambda setup: f"{setup.cache} cache",
    lambda setup: "forced runs" if setup.forced_runs else "",
    lambda setup: "finished dropped" if setup.drop_finished else "",
    lambda setup: "assistant" if setup.assistant else "continuous" if setup.engine == CONTINUOUS else "",
    lambda setup: "drafts" if setup.speculative else "",
    lambda setup: "free drafts" if setup.free_drafts else "",
    lambda setup: setup.attention,
    lambda setup: f"batch {setup.batch_size}",
)


def run_labels(reports: Sequence[Report]) -> tuple[str, ...]:
    """Return unique short names: of the run, or of the file for a foreign trace.

    Runs of one name tell the settings in which they differ, such as `qwen no lp static cache`.
    """
    short = [report_label(report) for report in reports]
    names = []
    for name, report in zip(short, reports, strict=True):
        alike = [other.run.setup for label, other in zip(short, reports, strict=True) if label == name and other.run]
        differing = [tell for tell in _DISTINGUISHING if len({tell(setup) for setup in alike}) > 1]
        words = [tell(report.run.setup) for tell in differing] if report.run is not None else []
        names.append(" ".join(filter(None, (name, *words))))
    return tuple(
        f"{name} #{names[: index + 1].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    )


def report_label(report: Report) -> str:
    """Return the name of a run, or of the file of a foreign trace."""
    if report.run is not None:
        return report.run.setup.label
    return PurePath(path_text(report.trace.path)).name.removesuffix(".gz").removesuffix(".json")
