"""Findings of reports: the first in short, all of them, and the commands that show more."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from msgspec.structs import replace

from molprof.analysis.documents.figures import Reports
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import RECORDED_SPAN, STACK_CATEGORY, Finding, Gain
from molprof.analysis.reader import is_stream
from molprof.common.document import Row, Section, last_rows, pairs
from molprof.common.sampled import SampledFunctions
from molprof.common.values import time_text

# Findings and notes of the first screen, and with how many findings notes are there.
_BEST, _NOTES, _ROOMY = 5, 2, 3
# Of the findings, those that stay while evidence of any is left out.
_FIRST = 3
# A later one with less to gain goes before their fixes do.
_LITTLE = 0.02
# A note about so much of the time stays too.
_LARGE = 0.1
# Characters of evidence there.
_EVIDENCE = 170
# The section with all findings, for links.
_ALL = "all-findings"
# With a longer path commands take more than a line of a small window.
_LONGEST_PATH = 32


def best_findings(report: Report) -> Section:
    """Return the first findings in short, then notes."""
    worth = [item for item in report.findings if not (item.note or item.warning) and item.part_of is None][:_BEST]
    rows: list[Row] = []
    whole: list[tuple[int, ...]] = []  # rows of each finding
    evidence: list[tuple[int, ...]] = []
    fixes: list[tuple[int, ...]] = []
    parts: list[tuple[int, ...]] = []
    links = {}
    for number, item in enumerate(worth, 1):
        start = len(rows)
        links[start] = _name(0, report.findings.index(item))
        rows += [(str(number), _headline(item)), *([("location", item.location_text)] if item.location_text else [])]
        evidence.append((len(rows),))
        fixes.append((len(rows) + 1,))
        rows += [("evidence", _first_clauses(item.evidence)), ("fix", item.fix)]
        for index, part in enumerate(report.findings):
            if part.part_of == item.id:
                links[len(rows)] = _name(0, index)
                rows.append(("of it", _headline(part)))
        parts.append(tuple(range(fixes[-1][0] + 1, len(rows))))
        whole.append(tuple(range(start, len(rows))))
    # What sets the time stands above.
    notes = [item for item in report.findings if item.note and item.id != "limits"]
    large = [item for item in notes if (item.time_ratio or 0.0) >= _LARGE]
    small = [item for item in notes if item not in large] if len(worth) <= _ROOMY else []
    notes = [*large, *small][: max(_NOTES, len(large))]
    spare = (
        *last_rows(len(rows) + len(notes), len(rows) + len(large)),
        *reversed([group for pair in zip(evidence[_FIRST:], fixes[_FIRST:], strict=True) for group in pair]),
        *reversed(parts[_FIRST:]),
        *reversed(evidence[1:_FIRST]),
    )
    led = (*reversed(parts[1:_FIRST]), *fixes[:1], *evidence[:1], *parts[:1])
    little = [
        whole[index] for index, item in enumerate(worth) if index >= _FIRST and (item.gain_ratio or 1.0) < _LITTLE
    ]
    later = ((*reversed(little), *reversed(fixes[1:_FIRST])), led, (), tuple(reversed(whole[1:])))
    rows += [("note", f"{item.title}: {_first_clauses(item.evidence)}") for item in notes]
    of = next((f" (gain: share of the {_time(item.gain)})" for item in worth if item.gain is not None), "")
    recorded = report.run is not None or report.trace.gpu_recorded or report.table("step_latency").rows
    nothing = "Nothing worth doing was found." if recorded else "Nothing was found: most rules need GPU work or steps."
    none = () if worth else (nothing,)
    return Section(f"Findings{of}", none, replace(pairs(rows), spare=spare, later=later, links=links), link=_ALL)


def warnings_found(report: Report) -> Iterator[str]:
    """Yield the findings about all figures of the trace, a line each."""
    for item in report.findings:
        if item.warning:
            yield f"{item.title[:1].lower()}{item.title[1:]}: {item.evidence}. {item.fix}"


def _first_clauses(evidence: str) -> str:
    """Return the first whole clauses of the evidence, as many as fit about two lines."""
    shown, *clauses = evidence.split("; ")
    for clause in clauses:
        if len(shown) + len(clause) > _EVIDENCE:
            break
        shown += f"; {clause}"
    return shown


def _headline(item: Finding) -> str:
    """Return gain and title; of a part of another finding the location too."""
    location = f", {item.location_text}" if item.part_of and item.location_text else ""
    return item.headline + location


def _time(gain: Gain) -> str:
    """Return the time that gains are shares of, as text."""
    cost = ", including the profiler's cost on the CPU" if gain.of == RECORDED_SPAN else ""
    return gain.of + ("" if gain.of_ns is None else f", {time_text(gain.of_ns)}") + cost


def next_commands(report: Report) -> Section:
    """Return commands that show more of the contents of this report."""
    path, has = shlex.quote(report.trace.path), report.trace.events_read
    trace = path if not is_stream(path) and len(path) <= _LONGEST_PATH else "TRACE"
    by = "module" if has(STACK_CATEGORY) else "operator" if has("cpu_op") else "kernel"
    sampled = None if report.run is None else report.run.functions
    lines = [f"molprof report {trace} --all"]
    if report.trace.gpu_recorded or by == "operator":
        lines.append(f"molprof report by {by} {trace}")
    if isinstance(sampled, SampledFunctions) and sampled.is_enough:
        lines[-1] = f"molprof report by source {trace}"
    names = (item.query for item in report.findings if not (item.note or item.warning))
    queries = [f"molprof query {shlex.quote(query)} {trace}" for query in names]
    return Section("Next", (*lines, *(queries[:1] or [f"molprof open {trace}"])))


def findings_section(reports: Reports) -> Section:
    """Return all findings in a table, in their order, then each with evidence, fix and query."""
    table = reports.table(
        lambda report: enumerate(report.findings, 1),
        ("#", "index", "0"), ("finding", "text", lambda item: _title(item[1])),
        ("gain at most", "ratio", "1.gain_ratio"), ("id", "text", "1.id"),
    )  # fmt: skip
    if not table.rows:
        return Section("Findings", ("none: no rule found evidence",))
    details = [
        _detail(f"{label}: {index + 1}" if len(reports.labels) > 1 else str(index + 1), item, _name(number, index))
        for number, (label, report) in enumerate(zip(reports.labels, reports.reports, strict=True))
        for index, item in enumerate(report.findings)
    ]
    notes = ("sorted by gain, and by how much of it such a fix reaches as a rule; gains overlap and do not add up",)
    return Section("Findings", notes, table, parts=tuple(details), name=_ALL)


def _title(finding: Finding) -> str:
    """Return the title of a finding, marked where it is a note."""
    return f"note: {finding.title}" if finding.note else finding.title


def _name(report: int, index: int) -> str:
    """Return the name of the section about a finding, for links."""
    return f"finding-{report}-{index}"


def _detail(number: str, item: Finding, name: str) -> Section:
    query = f'"{item.query}"' if " " in item.query else item.query
    rows = (
        *((("location", item.location_text),) if item.location_text else ()),
        ("evidence", item.evidence),
        *((("uncertain", item.uncertain),) if item.uncertain else ()),
        *((("likely", "taken from names or shapes"),) if not item.certain else ()),
        ("why", item.explanation),
        ("fix", item.fix),
        ("query", f"molprof query {query} TRACE"),
    )
    return Section(f"{number}. {_title(item)}", table=pairs(rows), name=name, link=item.query)
