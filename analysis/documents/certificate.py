"""The certificate of one report or several as a section: one line where every figure is exact."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, product
from string import ascii_lowercase

from molprof.analysis.certificate.model import Bound
from molprof.analysis.documents.figures import Reports
from molprof.analysis.figures import Report
from molprof.common.document import Row, Section, pairs
from molprof.common.values import Unit, by_unit

WORDS = {"exact": "exact", "bounded": "bounded", "not_to_be_had": "not to be had"}
# Bounds that a line names; JSON has all.
_SHOWN = 2


def certificate_sections(reports: Reports) -> tuple[Section, ...]:
    """What each trace can bear; nothing of a stored report without a certificate."""
    known = [report.certificate for report in reports.reports if report.certificate is not None]
    if not known:
        return ()
    if all(certificate.verdict == "exact" for certificate in known):
        return (Section("Certificate", ("every recorded figure is exact",)),)
    table = pairs([row for report in reports.reports for row in _rows(report)], narrow=True)
    return (Section("Certificate", table=table),)


def _rows(report: Report) -> Iterator[Row]:
    certificate = report.certificate
    if certificate is None:
        return
    reasons = dict.fromkeys((doubt.reason, doubt.query) for doubt in certificate.doubts)
    letters = dict(zip(reasons, _letters(), strict=False))
    for item in certificate.uncertain:
        shown = "; ".join(map(bound_text, item.bounds[:_SHOWN]))
        because = ", ".join(dict.fromkeys(letters[doubt.reason, doubt.query] for doubt in item.doubts))
        yield item.title, f"{WORDS[item.verdict]}{': ' if shown else ''}{shown} ({because})"
    exact = [item.title for item in certificate.groups if item.verdict == "exact"]
    yield "exact", ", ".join(exact) or "nothing"
    for (reason, query), letter in letters.items():
        yield f"({letter})", f"{reason}; molprof query {query} TRACE"


def _letters() -> Iterator[str]:
    """a to z, then aa and so on."""
    return ("".join(letters) for length in count(1) for letters in product(ascii_lowercase, repeat=length))


def bound_text(bound: Bound) -> str:
    """The figure and its bounds: `kernels 12 to 17`."""
    unit: Unit = "ns" if bound.figure.endswith("_ns") else "number"
    name = bound.figure.rpartition(".")[2].removesuffix("_ns").replace("_", " ")
    if bound.low is None:
        return f"{name} up to {by_unit(unit, bound.high)}"
    if bound.high is None:
        return f"{name} {by_unit(unit, bound.low)} or more"
    low, high = by_unit(unit, bound.low), by_unit(unit, bound.high)
    return (
        f"{name} {low} to {high}" if low != high else f"{name} {high} (within {by_unit(unit, bound.high - bound.low)})"
    )
