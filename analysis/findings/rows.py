"""Row-steps that no molecule needs: rows that have finished, and tokens after a coordinate's end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import query_rows
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.figures.run_model import STEP_PHASES, Run
from molprof.analysis.findings.scope import Scope
from molprof.common.values import count_text, percent_text

# Share of all row-steps.
LEAST_IDLE = 0.1
# Share of all generated tokens.
LEAST_JUNK = 0.01

_ROWS = "SELECT batch, tokens, sequence FROM molprof_sequence ORDER BY sequence"


def find(engine: Engine, report: Report, scope: Scope | None) -> tuple[Finding, ...]:
    """Both; none of a trace of other origin."""
    run = report.run
    if run is None or not run.wall_ns.median or not run.row_steps:
        return ()
    _, rows = query_rows(engine, "tokens", _ROWS)
    if not rows:
        return ()
    batches = [batch for batch, _, _ in rows]
    return (*_idle(run, batches, [tokens for _, tokens, _ in rows]), *_junk(run, rows))


def _steps_ratio(run: Run) -> float:
    """Share of unprofiled wall time in decode steps."""
    return sum(run.phases[name].wall_ns or 0 for name in STEP_PHASES) / (run.wall_ns.median or 1)


def _idle(run: Run, batches: Sequence[int], lengths: Sequence[int]) -> tuple[Finding, ...]:
    """Fires where LEAST_IDLE of the row-steps are of rows that had finished.

    Gain: their share of the row-steps times the share of wall time in decode steps: full batches throughout need
    1 - that share of the steps at the same time per step, or the same steps at less.
    """
    ratio = run.idle_row_steps / run.row_steps
    if ratio < LEAST_IDLE:
        return ()
    ordered = sorted(lengths, reverse=True)
    size = max(batches.count(batch) for batch in set(batches))
    by_length = sum(ordered[start] for start in range(0, len(ordered), size))
    # With forced runs a row's steps are fewer than its tokens, and not known by its length.
    sortable = len(set(batches)) > 1 and not run.setup.forced_runs and by_length < run.steps
    dropping = "let finished rows leave the batch (--drop-finished), or refill them as servers do"
    if sortable:
        advice = f"batches of like length need {count_text(by_length)} steps instead of {count_text(run.steps)}"
    elif len(set(batches)) == 1:
        advice = "all rows are one batch, so only dropping or refilling finished rows helps"
    elif run.setup.forced_runs:
        advice = "what batches of like length need is not known with forced runs"
    else:
        advice = "batches of like length need no fewer steps, so only dropping or refilling finished rows helps"
    return (
        Finding(
            id="idle_rows",
            title="Finished rows are still computed",
            evidence=(
                f"{count_text(run.idle_row_steps)} of {count_text(run.row_steps)} row-steps ({percent_text(ratio)}) "
                f"are of rows that had finished; {advice}"
            ),
            gain_ratio=ratio * _steps_ratio(run),
            fix=f"batch molecules of like length (sort by the template's tokens: --sort); {dropping}"
            if sortable
            else dropping,
            explanation="A batch runs until its longest row ends; every step computes all rows.",
            query=(
                "SELECT batch, MAX(tokens) AS steps, COUNT() AS rows, SUM(tokens) AS tokens FROM molprof_sequence"
                " GROUP BY batch ORDER BY batch"
            ),
            figures={
                "idle_row_steps": run.idle_row_steps,
                "row_steps": run.row_steps,
                "idle_ratio": ratio,
                "steps": run.steps,
                "steps_by_length": by_length,
            },
        ),
    )


def _junk(run: Run, rows: Iterable[tuple[int, int, int]]) -> tuple[Finding, ...]:
    """Fires where LEAST_JUNK of the generated tokens are junk or filler, and the weights are not random.

    Gain: the steps that the batches would need without those tokens, as a share of theirs, or the same of their
    row-steps where that is more; times the share of wall time in decode steps.
    """
    drift = run.junk_tokens + run.filler_tokens
    if run.setup.random or not run.generated_tokens or drift < LEAST_JUNK * run.generated_tokens:
        return ()
    wasted = {item.sequence: item.junk + item.filler for item in run.sequences}
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for batch, tokens, sequence in rows:
        before.setdefault(batch, []).append(tokens)
        after.setdefault(batch, []).append(tokens - wasted.get(sequence, 0))
    steps = sum(map(max, before.values()))
    needed = sum(map(max, after.values()))
    row_steps = sum(max(lengths) * len(lengths) for lengths in before.values())
    needed_row_steps = sum(max(lengths) * len(lengths) for lengths in after.values())
    if steps <= 0 or row_steps <= 0:
        return ()
    saved = max(1 - needed / steps, 1 - needed_row_steps / row_steps)
    constrained = run.setup.processor is not None
    return (
        Finding(
            id="junk_tokens",
            title="Tokens that no coordinate needs",
            evidence=(
                f"{count_text(run.junk_tokens)} junk and {count_text(run.filler_tokens)} filler tokens, "
                f"{percent_text(drift / run.generated_tokens)} of all; without them {count_text(needed)} steps "
                f"instead of {count_text(steps)}"
            ),
            gain_ratio=saved * _steps_ratio(run),
            fix=(
                "a placeholder that tokenizes as real coordinates do, or truncation: jump to the next fixed position "
                "when a coordinate is complete"
                if constrained
                else "end blocks where the format ends them: constrain, or train on the format"
            ),
            explanation=(
                "The template holds a position open for each of the placeholder's tokens. A coordinate that needs "
                "fewer is filled up with digits or text that mean nothing."
                if constrained
                else "The model goes on after a coordinate is complete."
            ),
            query="drift",
            figures={
                "junk_tokens": run.junk_tokens,
                "filler_tokens": run.filler_tokens,
                "token_ratio": drift / run.generated_tokens,
                "steps": steps,
                "steps_without": needed,
            },
        ),
    )
