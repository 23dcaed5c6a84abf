"""The certificate of one report or several as a section: one line where every figure is exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count, product
from string import ascii_lowercase

from molprof.analysis.documents.figures import Reports
from molprof.analysis.figures import Report
from molprof.analysis.figures.model import Bound, Certified
from molprof.common.document import Row, Section, pairs
from molprof.common.values import Unit, by_unit

WORDS = {"exact": "exact", "bounded": "bounded", "not_to_be_had": "not to be had"}
# Bounds that a line names; JSON has all.
_SHOWN = 2


def certificate_sections(report: Report) -> tuple[Section, ...]:
    """What the trace can bear; nothing of a stored report without a certificate."""
    certificate = report.certificate
    if certificate is None:
        return ()
    if certificate.verdict == "exact":
        return (Section("Certificate", ("every recorded figure is exact",)),)
    letters = _lettered([report])
    rows: list[Row] = []
    for item in certificate.uncertain:
        shown = "; ".join(map(bound_text, item.bounds[:_SHOWN]))
        rows.append((item.title, f"{WORDS[item.verdict]}{': ' if shown else ''}{shown} ({_because(item, letters)})"))
    exact = [item.title for item in certificate.groups if item.verdict == "exact"]
    rows.append(("exact", ", ".join(exact) or "nothing"))
    return (Section("Certificate", table=pairs([*rows, *_reasons(letters)], narrow=True)),)


def compared_certificates(reports: Reports) -> tuple[Section, ...]:
    """The groups of figures that are not exact, run by run; nothing if all are."""
    letters = _lettered(reports.reports)
    if not letters:
        return ()
    rows: list[Row] = []
    for label, report in zip(reports.labels, reports.reports, strict=True):
        uncertain = () if report.certificate is None else report.certificate.uncertain
        texts = [f"{item.title} {WORDS[item.verdict]} ({_because(item, letters)})" for item in uncertain]
        rows.append((label, "; ".join(texts) or ("not recorded" if report.certificate is None else "exact")))
    return (Section("Certificate", table=pairs([*rows, *_reasons(letters)], narrow=True)),)


def _lettered(reports: Iterable[Report]) -> dict[tuple[str, str], str]:
    """A letter for each reason and query."""
    doubts = [doubt for report in reports if report.certificate is not None for doubt in report.certificate.doubts]
    return dict(zip(dict.fromkeys((doubt.reason, doubt.query) for doubt in doubts), _letters(), strict=False))


def _because(item: Certified, letters: Mapping[tuple[str, str], str]) -> str:
    return ", ".join(dict.fromkeys(letters[doubt.reason, doubt.query] for doubt in item.doubts))


def _reasons(letters: Mapping[tuple[str, str], str]) -> Iterator[Row]:
    return ((f"({letter})", f"{reason}; molprof query {query} TRACE") for (reason, query), letter in letters.items())


def _letters() -> Iterator[str]:
    """a to z, then aa and so on."""
    return ("".join(letters) for length in count(1) for letters in product(ascii_lowercase, repeat=length))


def bound_text(bound: Bound) -> str:
    """The figure and its bounds: `kernels 12 to 17`, `device 0 busy 3 ms to 4 ms`."""
    unit: Unit = "ns" if bound.figure.endswith("_ns") else "number"
    place, _, name = bound.figure.rpartition(".")
    name = name.removesuffix("_ns").replace("_", " ")
    if place.startswith(("devices.", "streams.")):
        name = f"{place.replace('s.', ' ', 1)} {name}"
    if bound.low is None:
        return f"{name} up to {by_unit(unit, bound.high)}"
    if bound.high is None:
        return f"{name} {by_unit(unit, bound.low)} or more"
    low, high = by_unit(unit, bound.low), by_unit(unit, bound.high)
    return (
        f"{name} {low} to {high}" if low != high else f"{name} {high} (within {by_unit(unit, bound.high - bound.low)})"
    )
