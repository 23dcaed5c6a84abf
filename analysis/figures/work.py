"""What figures per step, token and molecule are counted over, in a run of molprof's and in a foreign trace alike."""

from __future__ import annotations

from molprof.analysis.figures.model import Report
from molprof.analysis.figures.tables import STEPS, TableQuery
from molprof.common.values import Value, per

KINDS = TableQuery(
    "work_kinds",
    "Copies, cats, attention, elementwise and masking kernels, and memory copies (kinds overlap)",
    "SELECT kind, count, time_ns, step_count, step_time_ns FROM molprof_work_kind"
    " WHERE (SELECT SUM(count) FROM molprof_work_kind) > 0 ORDER BY kind",
)


def molecules(report: Report) -> int | None:
    """Molecules of the run, or as many as the user says."""
    return report.given.molecules if report.run is None else report.run.molecules


def tokens(report: Report) -> int | None:
    """Generated tokens of the run, or as many as the user says."""
    return report.given.tokens if report.run is None else report.run.generated_tokens


def marked(report: Report, column: str) -> int | None:
    """A column of the steps that a foreign trace marks, summed; None without marks, or where a step does not tell."""
    rows = [row for row in report.table(STEPS.name).to_json() if row["steps"]]
    if report.run is not None or len({row["source"] for row in rows}) != 1:
        return None  # marks of two programs may lie in each other
    values = [row.get(column) for row in rows]
    numbers = [value for value in values if isinstance(value, int)]
    return sum(numbers) if len(numbers) == len(values) else None


def per_step(report: Report, column: str) -> float | None:
    """A count of the recorded steps over their number: `column` of `WindowFigures` and of the table of steps."""
    if report.run is not None:
        return per(getattr(report.run.window, column), report.run.window.steps)
    return per(marked(report, column), marked(report, "steps"))


def per_token(report: Report, column: str, total: int | None) -> float | None:
    """A count over generated tokens: of the recorded steps, or `total`, of the trace, where the user says how many."""
    if report.run is not None:
        return per(getattr(report.run.window, column), report.run.window.tokens)
    if report.given.tokens is not None:
        return per(total, report.given.tokens)
    return per(marked(report, column), marked(report, "tokens"))


def per_molecule(report: Report, column: str, total: int | None) -> float | None:
    """A count over molecules: of a recorded step, times the run's steps; or `total`, of a foreign trace."""
    run = report.run
    if run is None:
        return per(total, report.given.molecules)
    value = per(getattr(run.window, column), run.window.steps)
    return None if value is None or not run.molecules else value * run.steps / run.molecules


def kind(report: Report, name: str, column: str = "count") -> int | None:
    """A column of KINDS; 0 for a kind that the trace lacks, None in a stored report that lacks the table."""
    rows = report.table(KINDS.name).to_json()
    value: Value = next((row[column] for row in rows if row["kind"] == name), 0 if rows else None)
    return value if isinstance(value, int) else None


def kind_per_step(report: Report, name: str) -> float | None:
    """Work of a kind per recorded step."""
    if not report.trace.whole_steps:
        return None
    steps = marked(report, "steps") if report.run is None else report.run.window.steps
    return per(kind(report, name, "step_count"), steps)


def kind_ratio(report: Report, name: str, other: str) -> float | None:
    """Work of one kind for each of another: of the recorded steps, or of a trace without steps."""
    steps = report.run is not None or marked(report, "steps") is not None
    if steps and not report.trace.whole_steps:
        return None
    column = "step_count" if steps else "count"
    return per(kind(report, name, column), kind(report, other, column))
