"""The certificate of one report or several as a section: one line where every figure is exact."""

from __future__ import annotations

from collections.abc import Iterator

from molprof.analysis.certificate.model import Bound, Certificate, Certified
from molprof.analysis.documents.figures import Reports
from molprof.analysis.figures import Report
from molprof.common.document import Row, Section, pairs
from molprof.common.values import by_unit

_WORDS = {"exact": "exact", "bounded": "bounded", "not_to_be_had": "not to be had"}
# Bounds that a line names; JSON has all.
_SHOWN = 2


def certificate_section(reports: Reports) -> Section:
    """What each trace can bear; nothing of a stored report without a certificate."""
    known = [report.certificate for report in reports.reports if report.certificate is not None]
    if not known:
        return Section("Certificate")
    if all(certificate.verdict == "exact" for certificate in known):
        return Section("Certificate", ("every recorded figure is exact",))
    table = pairs([row for report in reports.reports for row in _rows(report)], narrow=True)
    return Section("Certificate", table=table)


def _rows(report: Report) -> Iterator[Row]:
    certificate = report.certificate
    if certificate is None:
        return
    for item in certificate.uncertain:
        yield item.title, f"{_WORDS[item.verdict]}{_bounds(item)}. {_reason(item)}"
    yield "exact", ", ".join(_exact(certificate)) or "nothing"
    yield "evidence", "; ".join(dict.fromkeys(f"molprof query {doubt.query} TRACE" for doubt in certificate.doubts))


def _exact(certificate: Certificate) -> Iterator[str]:
    return (item.title for item in certificate.groups if item.verdict == "exact")


def _reason(item: Certified) -> str:
    text = item.reason or ""
    return f"{text[:1].upper()}{text[1:]}"


def _bounds(item: Certified) -> str:
    shown = "; ".join(map(bound_text, item.bounds[:_SHOWN]))
    return f": {shown}" if shown else ""


def bound_text(bound: Bound) -> str:
    """The figure and its bounds: `kernels 12 to 17`."""
    unit = "ns" if bound.figure.endswith("_ns") else "number"
    name = bound.figure.rpartition(".")[2].removesuffix("_ns").replace("_", " ")
    if bound.low is None:
        return f"{name} up to {by_unit(unit, bound.high)}"
    if bound.high is None:
        return f"{name} {by_unit(unit, bound.low)} or more"
    return f"{name} {by_unit(unit, bound.low)} to {by_unit(unit, bound.high)}"
