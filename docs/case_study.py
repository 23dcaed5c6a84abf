"""Writes docs/case-study.md, the example of docs/comparing.md and traces/README.md: texts from their templates,
figures from the traces.

python docs/case_study.py
"""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2

from molprof.analysis.compare import Comparison, compare
from molprof.analysis.compare.model import Difference, compared_rows
from molprof.analysis.compare.parts import PART_LABELS
from molprof.analysis.documents.comparison import comparison_document
from molprof.analysis.figures import Report
from molprof.analysis.render import render
from molprof.analysis.reports.load import ReportOptions, load_reports
from molprof.common.files import replacing
from molprof.common.values import by_unit, number_text, percent_text, time_text

FOLDER = Path(__file__).parent
TRACES = FOLDER.parent / "traces"
PREFIX = "cpu"
COMPARING = FOLDER / "comparing.md"
BEGIN, END = "<!-- docs/case_study.py writes from here -->", "<!-- to here -->"
EXAMPLE = ("llama-generic", "qwen-generic")
# Smaller parts of a difference share a row.
LEAST_PART = 0.01


@dataclass(frozen=True)
class Study:
    """The recorded runs by name, and what the page says of them."""

    reports: Mapping[str, Report]

    def run(self, name: str) -> Any:
        """The figures of one run."""
        return self.reports[name].run

    def value(self, name: str, row: str) -> str:
        """A compared row of one run, in its unit."""
        found = next(item for item in compared_rows([self.reports[name]]) if item.figure.id == row)
        return by_unit(found.figure.unit, found.values[0])

    def figures(self, names: Sequence[str], rows: Sequence[str]) -> str:
        """A table of compared rows by their ids, a column for each run."""
        comparison = self._compared(*names)
        known = {row.figure.id: row for row in comparison.rows}
        body = [
            (known[name].figure.label, *(by_unit(known[name].figure.unit, value) for value in known[name].values))
            for name in rows
        ]
        return _table(("", *comparison.labels), body)

    def ratio(self, first: str, other: str) -> str:
        """Wall time of `other` over that of `first`, and whether noise explains it."""
        found = next(item for item in self._compared(first, other).rows if item.figure.id == "wall_ns")
        value = found.ratios[1]
        if value is None:
            return "not recorded"
        return f"{value:.2f}x{' (within noise)' if found.within_noise(1) else ''}"

    def parts(self, first: str, other: str) -> str:
        """How the difference of two runs splits: a row for each part of 1 % of it or more."""
        split = self._split(first, other)
        whole = abs(split.wall_ns) or 1
        large = {part: ns for part, ns in split.parts.items() if abs(ns) >= LEAST_PART * whole}
        times = {PART_LABELS[part]: ns for part, ns in large.items()}
        times["smaller parts together"] = sum(split.parts.values()) - sum(large.values())
        times["in no part"] = split.residual_ns
        times["**all**"] = split.wall_ns
        body = [(label, _signed(ns), percent_text(ns / split.wall_ns)) for label, ns in times.items()]
        labels = self._compared(first, other).labels
        return _table((f"{labels[1]} against {labels[0]}", "time", "share"), body)

    def part(self, first: str, other: str, *names: str) -> str:
        """Parts of the difference of two runs together, with their sign."""
        split = self._split(first, other)
        return _signed(sum(split.parts[name] for name in names))

    def difference(self, first: str, other: str) -> str:
        """Wall time of `other` minus that of `first`."""
        return _signed(self._split(first, other).wall_ns)

    def residual(self) -> str:
        """The largest residual of all pairs that the page splits, as a share of the difference."""
        pairs = ("llama", "llama-generic"), ("qwen", "qwen-qwen"), ("llama-generic", "qwen-qwen")
        return percent_text(max(abs(self._split(*pair).residual_ratio or 0.0) for pair in pairs))

    def _compared(self, *names: str) -> Comparison:
        return compare([self.reports[name] for name in names])

    def _split(self, first: str, other: str) -> Difference:
        split = self._compared(first, other).differences[0]
        assert split is not None
        return split


def _signed(value_ns: float) -> str:
    return f"{'-' if value_ns < 0 else '+'}{time_text(abs(value_ns))}"


def _table(head: Sequence[str], body: Sequence[Sequence[str]], last: str = "---:") -> str:
    """A table in Markdown, figures to the right; `last` is the rule under its last column."""
    rows = [head, ["---", *["---:"] * (len(head) - 2), last], *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def case_study() -> str:
    """docs/case-study.md."""
    paths = sorted(TRACES.glob(f"{PREFIX}-*.json.gz"))
    names = [path.name.removeprefix(f"{PREFIX}-").removesuffix(".json.gz") for path in paths]
    study = Study(dict(zip(names, load_reports(paths, ReportOptions()), strict=True)))
    return _rendered(
        FOLDER / "case-study.md.jinja", study=study, run=study.run, time=time_text, number=number_text,
        percent=percent_text, prefix=PREFIX,
    )  # fmt: skip


def comparing() -> str:
    """docs/comparing.md with what `molprof compare` prints of the two runs of its example."""
    paths = [TRACES / f"{PREFIX}-{name}.json.gz" for name in EXAMPLE]
    reports = [
        replace(report, trace=replace(report.trace, path=f"traces/{path.name}"))
        for path, report in zip(paths, load_reports(paths, ReportOptions()), strict=True)
    ]
    shown = render(comparison_document(compare(reports))).strip("\n")
    before, rest = COMPARING.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n```text\n{shown}\n```\n{END}{rest.split(END)[1]}"


def trace_list() -> str:
    """traces/README.md."""
    body = []
    machines = {}
    for path in sorted(TRACES.glob("*.json.gz")):
        manifest = json.loads(gzip.decompress(path.read_bytes()))["molprof"]
        # Without the folders of paths.
        command = shlex.join(Path(word).name if word.startswith("/") else word for word in manifest["command"])
        body.append((path.name, f"{path.stat().st_size / 1000:,.0f} kB", f"`{command}`"))
        where = manifest["environment"]
        machine = (
            f"{where['gpu'] or where['cpu']}, {where['cores']} cores, {where['threads']} threads; torch "
            f"{where['torch']}, transformers {where['transformers']}, Python {where['python']}, "
            f"molprof {where['molprof']}"
        )
        machines[machine, manifest["created"][:10]] = None
    return _rendered(
        TRACES / "README.md.jinja", machines=list(machines), table=_table(("trace", "size", "command"), body, "---")
    )


def _rendered(template: Path, **values: Any) -> str:
    setting = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return setting.get_template(template.name).render(**values)


PAGES = {FOLDER / "case-study.md": case_study, COMPARING: comparing, TRACES / "README.md": trace_list}


def main() -> None:
    """Writes the pages."""
    for path, page in PAGES.items():
        with replacing(path) as part:
            part.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
