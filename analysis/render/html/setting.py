"""Environment and settings of the runs side by side; what differs stands out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.render.html.tables import PageCell, PageTable
from molprof.common.values import NOT_RECORDED, bytes_text, count_text, number_text, text

_RUN_ROWS: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("model", lambda run: f"{run.setup.model} ({run.setup.family})"),
    ("model size", lambda run: run.setup.size or "its own"),
    ("weights", lambda run: text(run.setup.weights)),
    ("parameters", lambda run: f"{number_text(run.setup.parameters / 1e6)} M, {run.setup.dtype}"),
    ("tokenizer", lambda run: f"{run.setup.tokenizer}, {count_text(run.setup.vocabulary)} tokens"),
    ("width of the logits", lambda run: count_text(run.setup.logits_width)),
    ("logits processor", lambda run: run.setup.processor or "none"),
    ("placeholder", lambda run: run.setup.placeholder or "none"),
    ("sampling", lambda run: run.setup.sampling),
    ("decoding", lambda run: text(run.setup.loop)),
    ("KV cache", lambda run: run.setup.cache),
    ("attention", lambda run: run.setup.attention),
    ("device", lambda run: run.setup.gpu or run.setup.device),
    ("molecules", lambda run: count_text(run.molecules)),
    ("batch size", lambda run: count_text(run.setup.batch_size)),
    ("most new tokens", lambda run: count_text(run.setup.max_new_tokens)),
    ("seed", lambda run: str(run.setup.seed)),
    ("torch", lambda run: run.setup.torch),
    ("transformers", lambda run: run.setup.transformers),
    ("unprofiled repeats", lambda run: count_text(run.wall_ns.repeats)),
    (
        "recorded",
        lambda run: (
            "all steps"
            if run.window.full
            else f"steps {run.window.first_step} to {run.window.last_step} of batch {run.window.batch}"
        ),
    ),
)
_TRACE_ROWS: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("trace", lambda report: report.trace.path),
    ("size", lambda report: bytes_text(report.trace.bytes)),
    ("devices in the trace", lambda report: _devices(report.trace.device_names)),
    ("events", lambda report: count_text(sum(report.trace.events_by_category.values()))),
    ("events lost in reading", lambda report: count_text(report.trace.lost_events)),
    ("whole", lambda report: "yes" if report.trace.complete else f"no: {text(report.trace.problem)}"),
)
# These differ between any two runs, so that marking them would tell nothing.
_UNMARKED = ("trace", "size", "events")


def setting_table(labels: Sequence[str], reports: Sequence[Report]) -> PageTable:
    """One row for each setting, one column for each report."""
    rows = []
    if any(report.run is not None for report in reports):
        rows += [
            (name, [NOT_RECORDED if report.run is None else value(report.run) for report in reports])
            for name, value in _RUN_ROWS
        ]
    rows += [(name, [value(report) for report in reports]) for name, value in _TRACE_ROWS]
    marked = frozenset(
        index for index, (name, values) in enumerate(rows) if len(set(values)) > 1 and name not in _UNMARKED
    )
    notes = ("what differs is marked",) if len(reports) > 1 else ()
    lines = tuple((PageCell(name, name), *(PageCell(value, value) for value in values)) for name, values in rows)
    columns = (("setting", False), *((label, False) for label in labels))
    return PageTable("Environment and settings", columns, lines, notes, marked)


def _devices(names: Sequence[str]) -> str:
    """Each name once, with its number."""
    counted = Counter(names).items()
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counted) or NOT_RECORDED
