"""The recorded runs of one machine and its benchmark results, as the case study quotes them."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from molprof import api
from molprof.analysis.bench.summary import Measured, summed
from molprof.analysis.compare import Comparison, compare
from molprof.analysis.compare.difference import Difference
from molprof.analysis.compare.parts import PART_LABELS
from molprof.analysis.compare.rows import compared_rows
from molprof.analysis.figures import Report
from molprof.analysis.figures.catalog import COMPARED
from molprof.analysis.figures.labels import run_labels
from molprof.common.bench_records import read_results
from molprof.common.errors import TraceError
from molprof.common.values import Value, by_unit, factor_text, per, percent_text, signed_time_text

CPU = "cpu"
SIMULATED = "simulated"  # how the name of a simulated GPU begins
# PREFIX-NAME.json.gz: NAME begins with the model.
_NAME = re.compile(r"(?P<prefix>.+?)-(?P<name>(?:qwen|llama)(?:-.+)?)\.json\.gz")
# Smaller parts of a difference share a row.
LEAST_PART = 0.01


@dataclass(frozen=True)
class Study:
    """The runs of one machine by name, and the files of its benchmark results by name."""

    prefix: str
    reports: Mapping[str, Report]
    results: Mapping[str, tuple[Measured, ...]] = field(default_factory=dict)

    def run(self, name: str) -> Any:
        return self.reports[name].run

    def number(self, name: str, row: str) -> Value:
        """A figure of one run by its id; None: not recorded."""
        return COMPARED[row].value(self.reports[name])

    def value(self, name: str, row: str) -> str:
        """The same in its unit."""
        return by_unit(COMPARED[row].unit, self.number(name, row))

    def label(self, row: str) -> str:
        return COMPARED[row].label

    def figures(self, names: Sequence[str], rows: Sequence[str]) -> str:
        """A table of figures by their ids, a column for each run."""
        reports = [self.reports[name] for name in names]
        known = {row.figure.id: row for row in compared_rows(reports)}
        body = [
            (known[name].figure.label, *(by_unit(known[name].figure.unit, value) for value in known[name].values))
            for name in rows
        ]
        return table(("", *run_labels(reports)), body)

    def factor(self, first: str, other: str) -> tuple[float | None, bool | None]:
        """Wall time of `other` over that of `first`, and whether it is beyond noise; None: not known."""
        found = self.compared(first, other).wall
        return found.ratios[1], found.significant[1]

    def ratio(self, first: str, other: str) -> str:
        """The same as text."""
        value, beyond_noise = self.factor(first, other)
        if value is None:
            return "not recorded"
        return f"{value:.2f}x{' (within noise)' if beyond_noise is False else ''}"

    def parts(self, first: str, other: str) -> str:
        """How the difference of two runs splits: a row for each part of 1 % of it or more."""
        split = self.split(first, other)
        whole = abs(split.wall_ns) or 1
        wall = self.compared(first, other).wall
        large = {part: ns for part, ns in split.parts.items() if abs(ns) >= LEAST_PART * whole}
        times = {PART_LABELS[part]: ns for part, ns in large.items()}
        times["smaller parts together"] = sum(split.parts.values()) - sum(large.values())
        times["in no part"] = split.residual_ns
        times["**all**"] = split.wall_ns
        body = [(label, signed_time_text(ns), percent_text(per(ns, wall.numbers(0)[1]))) for label, ns in times.items()]
        labels = self.compared(first, other).labels
        return table((f"{labels[1]} against {labels[0]}", "time", "of the latter's time"), body)

    def part(self, first: str, other: str, *names: str) -> str:
        """Parts of the difference of two runs together, with their sign."""
        split = self.split(first, other)
        return signed_time_text(sum(split.parts[name] for name in names))

    def difference(self, first: str, other: str) -> str:
        """Wall time of `other` minus that of `first`."""
        return signed_time_text(self.split(first, other).wall_ns)

    def residual(self) -> str:
        """The largest residual of all pairs that the page splits, as a share of the difference."""
        pairs = ("llama", "llama-generic"), ("qwen", "qwen-qwen"), ("llama-generic", "qwen-qwen")
        return percent_text(max(abs(self.split(*pair).residual_ratio or 0.0) for pair in pairs))

    def compared(self, *names: str) -> Comparison:
        return compare([self.reports[name] for name in names])

    def split(self, first: str, other: str) -> Difference:
        """Raises TraceError for a run without timed passes."""
        split = self.compared(first, other).differences[0]
        if split is None:
            raise TraceError(f"{first} or {other} has no unprofiled times")
        return split


def prefixes(root: Path) -> list[str]:
    """The machines that `root`/traces has runs of, but the CPU."""
    found = {match["prefix"] for path in (root / "traces").iterdir() if (match := _NAME.fullmatch(path.name))}
    return sorted(found - {CPU})


def read_study(root: Path, prefix: str, rehearsal: bool = False, only: Container[str] | None = None) -> Study:
    """The runs of one machine, all or `only` some names, and its results.

    Raises TraceError for runs that no GPU made, unless it is a rehearsal.
    """
    paths = {
        match["name"]: path
        for path in sorted((root / "traces").glob(f"{prefix}-*.json.gz"))
        if (match := _NAME.fullmatch(path.name))
        and match["prefix"] == prefix
        and (only is None or match["name"] in only)
    }
    paths = dict(sorted(paths.items()))
    reports = dict(zip(paths, api.reports(list(paths.values()), cached=True), strict=True))
    for name, report in reports.items():
        gpu = None if report.run is None else report.run.setup.gpu
        if prefix != CPU and not rehearsal and (gpu is None or gpu.startswith(SIMULATED)):
            raise TraceError(
                f"{paths[name]} was recorded {'without a GPU' if gpu is None else f'on: {gpu}'}",
                hint="it is no evidence; a rehearsal shows it",
            )
    folder = root / "docs" / "results" / prefix
    results = {path.stem: summed(read_results(path)) for path in sorted(folder.glob("*.jsonl"))}
    return Study(prefix, reports, results)


def change(value: float) -> str:
    """A factor of time in words."""
    return f"{factor_text(value)} the time"


def table(head: Sequence[str], body: Sequence[Sequence[str]], last: str = "---:") -> str:
    """A table in Markdown, figures to the right; `last` is the rule under its last column."""
    rows = [head, ["---", *["---:"] * (len(head) - 2), last], *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def rendered(template: Path, **values: Any) -> str:
    """A page from its template."""
    setting = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    return setting.get_template(template.name).render(**values)
