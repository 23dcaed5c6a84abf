"""Steps that no molecule needs: those of finished rows, and those of junk and filler tokens."""

from __future__ import annotations

from collections import Counter

from molprof.analysis.figures.run_model import Run
from molprof.analysis.findings.rule import Found, Known, rule
from molprof.analysis.trace_processor.package import Query
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import count_text, percent_text

# Share of all row-steps.
LEAST_IDLE = 0.1
# Share of all generated tokens.
LEAST_JUNK = 0.01

_ROWS = Query("tokens", "SELECT batch, tokens, sequence FROM molprof_sequence ORDER BY sequence")


def _steps_ratio(run: Run) -> float:
    """Share of unprofiled wall time in decode steps."""
    return sum(run.phases[name].wall_ns or 0 for name in STEP_PHASES) / (run.wall_ns.median or 1)


@rule(
    id="idle_rows",
    title="Steps are spent on finished rows",
    fix="Drop finished rows from the batch (--drop-finished), or refill them, as servers do.",
    explanation="A batch runs until its longest row ends, and every step computes all of its rows.",
    query=(
        "SELECT batch, MAX(tokens) AS steps, COUNT() AS rows, SUM(tokens) AS tokens FROM molprof_sequence"
        " GROUP BY batch ORDER BY batch"
    ),
    needs=("timed",),
    least_gain=0,
    run_queries=(_ROWS,),
)
def idle_rows(known: Known) -> Found | None:
    """Gain: the share of finished rows in the row-steps, times the share of wall time in decode steps."""
    run, rows = known.run, known.rows(_ROWS)
    if not rows or not run.row_steps or run.idle_row_steps / run.row_steps < LEAST_IDLE:
        return None
    ratio = run.idle_row_steps / run.row_steps
    batches = Counter(row["batch"] for row in rows)
    by_length = sum(sorted((row["tokens"] for row in rows), reverse=True)[:: max(batches.values())])
    # With forced runs a row's steps are fewer than its tokens, and not known by its length.
    unsorted = len(batches) > 1 and run.of_molecules and not run.setup.sorted
    sortable = unsorted and not run.setup.forced_runs and by_length < run.steps
    fix = "Refill finished rows, as servers do." if run.setup.drop_finished else idle_rows.fix
    if sortable:
        fix = f"Sort molecules by the length of their templates (--sort). {fix}"
        advice = f"sorted by length, the batches need {count_text(by_length)} steps instead of {count_text(run.steps)}"
    elif len(batches) == 1:
        advice = "all rows are in one batch, so sorting does not help"
    elif not run.of_molecules:
        advice = "prompts of plain text have no expected length to sort by"
    elif run.setup.sorted:
        advice = "the batches are sorted by expected length"
    elif run.setup.forced_runs:
        advice = "with forced runs, it is not known what sorting saves"
    else:
        advice = "sorting by length saves no steps"
    return Found(
        f"{count_text(run.idle_row_steps)} of {count_text(run.row_steps)} row-steps ({percent_text(ratio)}) "
        f"are of finished rows; {advice}",
        {
            "idle_row_steps": run.idle_row_steps,
            "row_steps": run.row_steps,
            "idle_ratio": ratio,
            "steps": run.steps,
            "steps_by_length": by_length,
        },
        known.gain(ratio * _steps_ratio(run), "row-steps of finished rows"),
        fix,
    )


@rule(
    id="junk_tokens",
    title="Junk and filler tokens cost steps",
    fix="End blocks where the format ends them: use a logits processor, or train on the format.",
    explanation="The model continues after a coordinate is complete.",
    query="drift",
    needs=("timed",),
    least_gain=0,
    run_queries=(_ROWS,),
)
def junk_tokens(known: Known) -> Found | None:
    """Gain: the share of steps, or of row-steps if larger, that batches save, times that of decode steps in time."""
    run, rows = known.run, known.rows(_ROWS)
    drift = run.junk_tokens + run.filler_tokens
    if not run.row_steps or run.setup.random or not run.generated_tokens or drift < LEAST_JUNK * run.generated_tokens:
        return None
    wasted = {item.sequence: item.junk + item.filler for item in run.sequences}
    # Tokens of each row, with and without those, by batch.
    batches: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        tokens = row["tokens"]
        batches.setdefault(row["batch"], []).append((tokens, tokens - wasted.get(row["sequence"], 0)))
    longest = [
        (len(batch), max(tokens for tokens, _ in batch), max(left for _, left in batch)) for batch in batches.values()
    ]
    steps, needed = (sum(item[place] for item in longest) for place in (1, 2))
    row_steps, needed_row_steps = (sum(item[0] * item[place] for item in longest) for place in (1, 2))
    if steps <= 0:
        return None
    saved = sorted((1 - needed / steps, 1 - needed_row_steps / row_steps))
    low, high = (share * _steps_ratio(run) for share in saved)
    fix = "Choose a placeholder that tokenizes as coordinates do, or jump ahead when a coordinate is complete."
    explanation = "A coordinate that needs fewer tokens than the template has FREE positions is filled up."
    constrained = run.setup.processor is not None
    return Found(
        f"{count_text(run.junk_tokens)} junk and {count_text(run.filler_tokens)} filler tokens, "
        f"{percent_text(drift / run.generated_tokens)} of all tokens; without them the batches need "
        f"{count_text(needed)} steps instead of {count_text(steps)}",
        {
            "junk_tokens": run.junk_tokens,
            "filler_tokens": run.filler_tokens,
            "token_ratio": drift / run.generated_tokens,
            "steps": steps,
            "steps_without": needed,
        },
        known.gain(high, "steps that are saved", low),
        fix if constrained else "",
        explanation if constrained else "",
    )
