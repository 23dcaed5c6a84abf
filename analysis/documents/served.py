"""Measurements of `molprof attach` at the client of a running server, as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from molprof.analysis.documents.stood import STOOD_FIELDS, STOOD_NOTE, STOOD_TITLE, mask_notes, rows_of_masks
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import FIGURES
from molprof.analysis.figures.model import ServedTimes
from molprof.analysis.figures.requests import read_served, window_text
from molprof.common.attached import Attached
from molprof.common.document import Cell, Column, Document, Section, Table, table_of
from molprof.common.values import counted, number_text, time_text

# What a client sees of a request, in words of a sentence, by figure.
SEEN = {
    "request_p50_ns": "a request (p50)",
    "first_token_p50_ns": "to its first token",
    "between_tokens_p50_ns": "between tokens",
}


def client_lines(report: Report) -> Iterator[str]:
    """Yield the figures of a server's client, where the trace has them."""
    if isinstance(report.served, ServedTimes):
        served = report.served
        load = [f", {served.concurrency} at a time"] if served.concurrency else []
        load += [f", {number_text(served.rate)} per s"] if served.rate else []
        requests = f"{counted(served.requests, 'request')}{''.join(load)}, {served.run}"
        passes = f"median of {counted(len(served.passes), 'pass', 'es')}"
        times = ", ".join(f"{time_text(served.values[name])} {words}" for name, words in SEEN.items())
        yield f"At the client, without the profiler ({requests}, {passes}): {times}."
        if (window := window_text(report)) is not None:
            yield f"{window[0].upper()}{window[1:]}."


def _invalid_text(served: ServedTimes) -> str:
    """Return the answers that are not valid although no token limit ended them, and why."""
    first, *others = served.invalid
    more = f"; {len(others)} more" if others else ""
    count = f"{len(served.invalid)} of {counted(served.judged, 'answer')}"
    return f"{served.run}: {count} that no token limit ended are not valid: {first}{more}"


def attached_document(url: str, runs: Mapping[str, Attached], traces: Sequence[str], notes: Sequence[str]) -> Document:
    """Return a row for each figure, of each run; of the runs after the first with the interval of their ratio to it.

    runs: by name, which took turns; the paths of their traces; notes: what else is to be said.
    """
    from molprof.analysis.compare.statistics import LEVEL, paired_ratio  # a report needs none

    served = {name: read_served(attached) for name, attached in runs.items()}
    columns, rows = [Column("figure")], []
    for name in served:
        columns += [Column(name, "number"), Column("passes", "number", joined=True)]
        columns += [Column("ratio", "factor", joined=True)] if len(columns) > 3 else []
    for figure in FIGURES:
        if not any(figure.id in item.values for item in served.values()):
            continue
        row, first = [Cell(figure.label.replace("molecule", "request"), "text")], None
        for item in served.values():
            each = [number for one in item.passes if (number := one.figures.get(figure.id)) is not None]
            row += [Cell(item.values.get(figure.id), figure.unit)]
            row += [Cell((min(each), max(each)) if each else None, figure.unit)]
            if first is not None:
                timed = figure.unit == "ns" and each and len(each) == len(first)
                interval = paired_ratio(each, first) if timed else None
                row.append(Cell(None if interval is None else (interval.low, interval.high), "factor"))
            first = each if first is None else first
        rows.append(row)
    head = next(iter(runs.values()))
    said = (
        f"at the client, without the profiler: medians of {counted(len(head.passes), 'pass', 'es')}, lowest to highest"
    )
    ratio = f"ratio: its {100 * LEVEL:.0f} % interval, round by round; from three passes of each on"
    invalid = [_invalid_text(item) for item in served.values() if item.run != "plain" and item.invalid]
    section = Section(
        "Requests",
        (said, *([ratio] if len(runs) > 1 else []), *notes, *invalid),
        Table(tuple(columns), rows, missing="-"),
    )
    masks = [(name, item.masks) for name, item in served.items() if item.masks is not None]
    stood = [row for _, of_run in masks for row in rows_of_masks(of_run)]
    notes_of = [note for _, of_run in masks for note in mask_notes(of_run)]
    of_tokens = Section(STOOD_TITLE, (STOOD_NOTE, *notes_of) if masks else (), table_of(stood, *STOOD_FIELDS))
    data = {"schema": 1, "url": url, "runs": runs, "figures": {name: item.values for name, item in served.items()}}
    return Document(f"molprof attach: {head.model} at {url}", (section, of_tokens), lambda: {**data, "traces": traces})
