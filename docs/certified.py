"""Writes the tables of docs/certificate.md: the checks, and what they found in the public traces of the corpus.

MOLPROF_CORPUS=FOLDER python docs/certified.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from molprof import api
from molprof.analysis.documents.certificate import WORDS, bound_text
from molprof.analysis.figures import Report
from molprof.analysis.figures.certificate import CHECKS
from molprof.common.files import replacing

PAGE = Path(__file__).parent / "certificate.md"
FOLDERS = ("traces", "pairs", "graphs", "ranks", "native")
BEGIN, END = "<!-- docs/certified.py writes from here: {} -->", "<!-- to here -->"


def checks_table() -> str:
    rows = [
        f"| `{check.id}` | {check.title} | [`{module}`](queries.md#{module}) |"
        for check in CHECKS
        for module in [check.queries[0].module]
    ]
    return "\n".join(["| check | passes if | SQL |", "| --- | --- | --- |", *rows])


def traces(corpus: Path) -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((corpus / folder).glob("*"))
        if path.name.endswith((".json.gz", ".pftrace"))
    ]


def reports(corpus: Path) -> dict[str, Report]:
    return {f"{path.parent.name}/{path.name}": api.report(path) for path in traces(corpus)}


def traces_table(found: Mapping[str, Report]) -> str:
    """One row for each doubt, and one for each trace without any."""
    rows = [row for name, report in found.items() for row in _rows(name, report)]
    return "\n".join(
        ["| trace | figures | verdict | bounds | check | reason |", "| --- | --- | --- | --- | --- | --- |", *rows]
    )


def _rows(name: str, report: Report) -> Iterator[str]:
    certificate = report.certificate
    assert certificate is not None
    if not certificate.doubts:
        yield f"| `{name}` | all | exact | | | |"
    for doubt in certificate.doubts:
        group = next(item.title for item in certificate.groups if item.group == doubt.group)
        bounds = "; ".join(map(bound_text, doubt.bounds))
        yield f"| `{name}` | {group} | {WORDS[doubt.verdict]} | {bounds} | `{doubt.check}` | {doubt.reason} |"


def page(tables: dict[str, str]) -> str:
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        before, rest = text.split(BEGIN.format(name))
        text = f"{before}{BEGIN.format(name)}\n{table}\n{END}{rest.split(END, 1)[1]}"
    return text


def main() -> None:
    """Write both tables; without the corpus, the first."""
    tables = {"checks": checks_table()}
    if corpus := os.environ.get("MOLPROF_CORPUS"):
        tables["traces"] = traces_table(reports(Path(corpus)))
    else:
        sys.stderr.write("MOLPROF_CORPUS is not set: the table of traces stays as it is\n")
    text = page(tables)
    with replacing(PAGE) as part:
        part.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
