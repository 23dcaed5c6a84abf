"""Findings on a run's passes: time before the steps, steps that no molecule needs, unrepresentative passes.

Building templates and compiling grammars. Steps of finished rows, and of junk and filler tokens. The profiler distorts
recorded passes; torch.compile compiles in them, or in timed ones.
"""

from __future__ import annotations

import statistics
from collections import Counter

import numpy as np

from molprof.analysis.figures.run_model import Run
from molprof.analysis.findings.inside import inside
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, operators_named, rule
from molprof.analysis.trace_processor.package import Query
from molprof.analysis.union import Union
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import count_text, counted, number_text, percent_text, time_text

# Share of all row-steps.
LEAST_IDLE = 0.1
# Share of all generated tokens.
LEAST_JUNK = 0.01
# From here, a third of all recorded time is the profiler's.
LEAST_PROFILED_RATIO = 1.5

# torch/_dynamo/utils.py, dynamo_timed: each part of compiling is recorded under such a name; this one is a whole frame.
_FRAME = "_compile.compile_inner*"
# Code that is compiled for the second time has the number 1 after that of its frame.
_AGAIN = Query(
    "python_functions",
    "SELECT DISTINCT name FROM slice WHERE name GLOB 'Torch-Compiled Region: [0-9]*/[1-9]*' ORDER BY name",
)
_COMPILING = operators_named(_FRAME, "*(dynamo_timed)")


# What marks it in the Python stacks of versions of torch that record no such names.
_COMPILERS = ("*torch/_dynamo/convert_frame.py(*): _compile*", "*torch/_inductor/compile_fx.py(*): compile_fx*")


def recorded_compiling(known: TraceFacts) -> Union:
    """Return the intervals in which torch.compile compiled."""
    spans, stacks = known.frame(_COMPILING), inside(known, (), _COMPILERS)
    starts, ends = spans["ts"].astype(np.int64), spans["ts_end"].astype(np.int64)
    if stacks is not None:
        starts, ends = np.append(starts, stacks.starts), np.append(ends, stacks.ends)
    return Union(starts, ends)


# Share of unprofiled wall time that templates take, or compiling.
LEAST_BEFORE_SHARE = 0.02
_BEFORE = "SELECT batch, phase, dur FROM molprof_phase WHERE phase IN ('template', 'compile', 'tokenize') ORDER BY ts"
_ROWS = Query("tokens", "SELECT batch, tokens, sequence FROM molprof_sequence ORDER BY sequence")


def _steps_ratio(run: Run) -> float:
    """Return the share of unprofiled wall time in decode steps."""
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
)
def idle_rows(known: TraceFacts) -> FindingEvidence | None:
    """Fire where 10 % of the row-steps are of finished rows.

    Gain: the share of finished rows in the row-steps, times the share of wall time in decode steps.
    """
    run, rows = known.run, known.rows(_ROWS)
    if not rows or not run.row_steps or run.idle_row_steps / run.row_steps < LEAST_IDLE:
        return None
    ratio = run.idle_row_steps / run.row_steps
    batches = Counter(row["batch"] for row in rows)
    lengths = [row["tokens"] for row in rows if row["tokens"] is not None]
    by_length = sum(sorted(lengths, reverse=True)[:: max(batches.values())])
    # With forced runs a row's steps are fewer than its tokens, and not known by its length.
    unsorted = len(batches) > 1 and run.of_molecules and not run.setup.sorted
    sortable = unsorted and not run.setup.forced_runs and len(lengths) == len(rows) and by_length < run.steps
    fix = idle_rows.fix
    if run.setup.drop_finished:
        fix = "Refill finished rows, as servers do."
    elif run.setup.cannot_drop is not None:
        fix = f"Refill finished rows, as servers do. This run cannot drop them: {run.setup.cannot_drop}."
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
    elif len(lengths) < len(rows):
        advice = "not all lengths are recorded, so it is not known what sorting saves"
    else:
        advice = "sorting by length saves no steps"
    return FindingEvidence(
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
)
def junk_tokens(known: TraceFacts) -> FindingEvidence | None:
    """Fire where 1 % of the tokens are junk or filler.

    Gain: the share of steps, or of row-steps if larger, that batches save, times that of decode steps in time.
    """
    run = known.run
    drift = run.junk_tokens + run.filler_tokens
    if not run.of_molecules or run.setup.random or drift < LEAST_JUNK * run.generated_tokens:
        return None
    fix = "Choose a placeholder that tokenizes as coordinates do, or jump ahead when a coordinate is complete."
    explanation = "A coordinate that needs fewer tokens than the template has FREE positions is filled up."
    constrained = run.setup.processor is not None
    what = f"{count_text(run.junk_tokens)} junk and {count_text(run.filler_tokens)} filler tokens"
    return _wasted(known, what, fix if constrained else "", explanation if constrained else "")


@rule(
    id="runaway_answers",
    title="Answers go on with white space or repeat themselves",
    fix=(
        "Leave the constraint no room for it: any_whitespace=False in XGrammar, maxLength and maxItems in the schema."
        " Or train on the format, or end such rows."
    ),
    explanation="White space and text of any length are valid almost everywhere, and a model that repeats goes on.",
    query=(
        "SELECT sequence, COUNT() AS tokens FROM molprof_token WHERE kind = 'junk' GROUP BY sequence ORDER BY sequence"
    ),
    needs=("timed",),
    least_gain=0,
)
def runaway_answers(known: TraceFacts) -> FindingEvidence | None:
    """Fire where 1 % of the tokens of answers to plain prompts are long white space or repeat until the token limit.

    White space counts from 8 tokens in a row, a repetition of what stands before from 4 times.

    Gain: the share of steps, or of row-steps if larger, that batches save, times that of decode steps in time.
    """
    run = known.run
    if run.of_molecules or run.setup.random or run.junk_tokens < LEAST_JUNK * run.generated_tokens:
        return None
    answers = sum(item.junk > 0 for item in run.sequences)
    what = f"{count_text(run.junk_tokens)} tokens of {count_text(answers)} of {counted(run.molecules, 'answer')}"
    return _wasted(known, what)


def _wasted(known: TraceFacts, what: str, fix: str = "", explanation: str = "") -> FindingEvidence | None:
    """Return the finding on junk and filler tokens, with the batches' savings without them."""
    run, rows = known.run, known.rows(_ROWS)
    drift = run.junk_tokens + run.filler_tokens
    if not run.row_steps or not drift or any(row["tokens"] is None for row in rows):
        return None
    wasted = {item.sequence: item.junk + item.filler for item in run.sequences}
    # By batch, tokens of each row with and without those.
    batches: dict[int, tuple[list[int], list[int]]] = {}
    for row in rows:
        all_tokens, left = batches.setdefault(row["batch"], ([], []))
        all_tokens.append(row["tokens"])
        left.append(row["tokens"] - wasted.get(row["sequence"], 0))
    steps, needed = (sum(max(batch[kind]) for batch in batches.values()) for kind in (0, 1))
    row_steps, needed_row_steps = (
        sum(len(batch[0]) * max(batch[kind]) for batch in batches.values()) for kind in (0, 1)
    )
    if steps <= 0:
        return None
    saved = sorted((1 - needed / steps, 1 - needed_row_steps / row_steps))
    low, high = (share * _steps_ratio(run) for share in saved)
    return FindingEvidence(
        f"{what}, {percent_text(drift / run.generated_tokens)} of all tokens; without them the batches need "
        f"{counted(needed, 'step')} instead of {count_text(steps)}",
        {
            "junk_tokens": run.junk_tokens,
            "filler_tokens": run.filler_tokens,
            "token_ratio": drift / run.generated_tokens,
            "steps": steps,
            "steps_without": needed,
        },
        known.gain(high, "steps that are saved", low),
        fix,
        explanation,
    )


@rule(
    id="compiling",
    title="Compiling is part of what is timed or recorded",
    fix="Warm up until nothing compiles. Keep shapes fixed. TORCH_LOGS=recompiles names the reasons.",
    explanation="A frame compiles again for every shape that its guards reject, which takes seconds.",
    query=(
        "SELECT name, COUNT() AS count, SUM(dur) AS time_ns FROM slice WHERE name GLOB '*(dynamo_timed)'"
        " OR name GLOB 'Torch-Compiled Region*' GROUP BY name ORDER BY time_ns DESC, name"
    ),
    needs=("report",),
    rests_on=("host_time",),
    least_gain=0,
)
def compiling(known: TraceFacts) -> FindingEvidence | None:
    """Fire where torch.compile compiled in a timed pass or inside recorded steps.

    A compiled region that only runs does not count.

    Gain: median over the timed passes of compile time over wall time; without it, compiling over recorded time.
    """
    scope, repeats = known.any_scope, () if known.report.run is None else known.report.run.repeats
    compiles = [repeat.compiles for repeat in repeats if repeat.compiles is not None]
    recorded = known.frame(_COMPILING)
    frames = sum(name.startswith(_FRAME[:-1]) for name in recorded["name"].tolist())
    inside_ns = 0 if scope is None else scope.spans.common_ns(recorded_compiling(known))
    if not sum(compiles) and not inside_ns:
        return None
    shares = [
        repeat.compile_ns / repeat.wall_ns for repeat in repeats if repeat.compile_ns is not None and repeat.wall_ns
    ]
    if shares and sum(compiles):
        gain = known.gain(statistics.median(shares), "compile time of timed passes")
    else:
        gain = known.gain(0.0 if scope is None else scope.host_part(inside_ns), "recorded compile time")
    parts = []
    if compiles:
        parts.append(f"frames compiled in each timed pass: {', '.join(map(count_text, compiles))}")
    if inside_ns:
        parts.append(f"{time_text(inside_ns)} of compiling recorded ({count_text(frames)} frames)")
    again, fix = known.frame(_AGAIN)["name"].tolist() if inside_ns else [], ""
    if again:
        parts.append(f"code that was compiled is compiled again: {', '.join(again[:3])}")
        fix = "Keep shapes fixed, or mark what changes as dynamic. TORCH_LOGS=recompiles names the reasons."
    figures = {"compiles": sum(compiles), "recorded_frames": frames, "recorded_ns": inside_ns}
    return FindingEvidence("; ".join(parts), figures, gain, fix)


@rule(
    id="profiler_cost",
    title="The profiler distorts the recorded times",
    fix="Trust counts, GPU times and unprofiled times. Read host times as shares. Record on a quiet machine.",
    explanation="The profiler adds about the same time to each operator and call, so short ones seem too slow.",
    query="step_latency",
    needs=("run",),
    rests_on=("host_time",),
)
def profiler_cost(known: TraceFacts) -> FindingEvidence | None:
    """Fire where recorded steps take 1.5 times their unprofiled time."""
    ratio = known.run.profiled_ratio
    if ratio is None or ratio < LEAST_PROFILED_RATIO:
        return None
    return FindingEvidence(
        f"recorded steps take {number_text(ratio)} times their unprofiled time", {"profiled_ratio": ratio}
    )


@rule(
    id="templates",
    title="Building templates delays every batch",
    fix="Build templates in threads (--template-threads). Keep those of repeated molecules (--template-cache).",
    explanation="The model waits while the CPU builds templates and tokenizes them.",
    query=_BEFORE,
    needs=("timed",),
    least_gain=LEAST_BEFORE_SHARE,
)
def templates(known: TraceFacts) -> FindingEvidence | None:
    """Fire where building templates takes 2 % of unprofiled wall time.

    Gain: that share.
    """
    return _before_batches(known, "template", "building templates")


@rule(
    id="compile_phase",
    title="Compiling grammars delays every batch",
    fix=(
        "Compile once per run: return an object whose start(rows) only makes matchers, or name no argument of a batch."
        " Keep what is compiled, by its text."
    ),
    explanation="The processor is made anew for each batch, while the model waits.",
    query=_BEFORE,
    needs=("timed",),
    least_gain=LEAST_BEFORE_SHARE,
)
def compile_phase(known: TraceFacts) -> FindingEvidence | None:
    """Fire where constructing the processor of a batch (phase `compile`) takes 2 % of unprofiled wall time.

    Gain: that share.
    """
    return _before_batches(known, "compile", "compiling grammars")


def _before_batches(known: TraceFacts, phase: str, what: str) -> FindingEvidence | None:
    """Return the time of a phase before the steps of each batch."""
    run = known.run
    phase_ns, wall_ns = run.phases[phase].wall_ns, run.wall_ns.median
    if phase_ns is None or not wall_ns or not run.molecules:
        return None
    return FindingEvidence(
        f"{time_text(phase_ns)} of {time_text(wall_ns)} unprofiled time "
        f"({percent_text(phase_ns / wall_ns)}), {time_text(phase_ns / run.molecules)} per {run.noun}",
        {f"{phase}_ns": phase_ns, "wall_ns": wall_ns, "molecules": run.molecules},
        known.gain(phase_ns / wall_ns, what),
    )
