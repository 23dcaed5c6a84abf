"""Finding on forced text: its tokens need no forward of their own, but most engines compute them one by one."""

from __future__ import annotations

from msgspec import UNSET

from molprof.analysis.figures.model import ServedTimes
from molprof.analysis.figures.run_model import Run
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.common.engine_settings import VLLM
from molprof.common.manifest import STEP_PHASES
from molprof.common.values import count_text, counted, number_text, percent_text, time_text

# Share of all tokens.
_LEAST_FORCED = 0.1
_OF_VLLM = (
    "vLLM does not append forced text; SGLang does where its backend of grammars can. Shorten the keys and fixed texts"
    " that the constraint makes each answer repeat."
)


@rule(
    id="forced_text",
    title="The constraint forces text",
    fix="Append forced tokens in the forward of the token before them (--forced-runs, with a processor that takes it). "
    "Shorten the keys and fixed texts that the constraint makes each answer repeat.",
    explanation="Where a mask leaves one token, the forward that would choose it is not needed: jump-forward feeds the "
    "whole run at once.",
    query="tokens",
    needs=("passes",),
)
def forced_text(known: TraceFacts) -> FindingEvidence | None:
    """Fire where 10 % of the tokens were the only ones that their masks allowed, and each had a step of its own.

    Gain: the steps beyond the fewest in which as many rows can make all choices, times the share of wall time in decode
    steps. Appended tokens are computed all the same, and a batch is as long as the row with most choices. Of a server,
    whose steps are not counted, the fewest steps stand for them, and the gain is a share of the recorded span.
    """
    if isinstance(known.report.served, ServedTimes):
        return _of_served(known, known.report.served)
    run = known.run
    forced, decode_ns = run.forced, _decode_ns(run)
    if forced is UNSET or run.setup.forced_runs or run.drafts is not None or not decode_ns or not run.generated_tokens:
        return None
    ratio = forced.tokens / run.generated_tokens
    if ratio < _LEAST_FORCED:
        return None
    answers, step_ns = run.molecules, decode_ns / run.decode_steps
    saved_ns = forced.tokens / answers * step_ns
    mean = number_text(forced.tokens / forced.runs)
    saved_steps = max(0, run.steps - forced.least_steps)
    fix = _OF_VLLM if run.setup.engine == VLLM else ""
    return FindingEvidence(
        f"{count_text(forced.tokens)} of {counted(run.generated_tokens, 'token')} in {counted(forced.runs, 'run')}, "
        f"the longest of {count_text(forced.longest_run)}; {time_text(step_ns)} per decode step; with as many rows, "
        f"all choices need {count_text(forced.least_steps)} of {counted(run.steps, 'step')} or more",
        {
            "forced_tokens": forced.tokens,
            "forced_ratio": ratio,
            "runs": forced.runs,
            "longest_run": forced.longest_run,
            "step_ns": step_ns,
            "saved_ns_per_answer": saved_ns,
            "least_steps": forced.least_steps,
            "steps": run.steps,
        },
        known.gain(saved_steps / run.steps * decode_ns / (run.wall_ns.median or decode_ns), "steps of forced tokens"),
        fix,
        part_of=("constraint",),
        title=_title(ratio, mean, saved_ns),
    )


def _of_served(known: TraceFacts, served: ServedTimes) -> FindingEvidence | None:
    """Return the evidence of answers whose masks the client filled again."""
    masks, between_ns = served.masks, served.values.get("between_tokens_p50_ns")
    if masks is None or (forced := masks.forced) is None or not between_ns or not masks.tokens or not forced.runs:
        return None
    ratio, answers = forced.tokens / masks.tokens, sum(not answer.missing for answer in masks.answers)
    if ratio < _LEAST_FORCED:
        return None
    saved_ns = forced.tokens / answers * between_ns
    return FindingEvidence(
        f"{count_text(forced.tokens)} of {counted(masks.tokens, 'token')} of {counted(answers, 'answer')} in "
        f"{counted(forced.runs, 'run')}, the longest of {count_text(forced.longest_run)}, by masks of {masks.engine}; "
        f"{time_text(between_ns)} between tokens (p50); with as many requests at a time, all choices need "
        f"{count_text(forced.least_steps)} steps or more, all tokens {count_text(masks.steps)}",
        {
            "forced_tokens": forced.tokens,
            "forced_ratio": ratio,
            "runs": forced.runs,
            "longest_run": forced.longest_run,
            "step_ns": between_ns,
            "saved_ns_per_answer": saved_ns,
            "least_steps": forced.least_steps,
            "steps": masks.steps,
        },
        known.gain(1 - forced.least_steps / masks.steps, "steps of forced tokens"),
        _OF_VLLM if served.server == VLLM else "",
        part_of=("constraint",),
        title=_title(ratio, number_text(forced.tokens / forced.runs), saved_ns),
    )


def _title(ratio: float, mean: str, saved_ns: float) -> str:
    return (
        f"{percent_text(ratio)} of tokens were forced, in runs of {mean}: jump-forward would save up to "
        f"{time_text(saved_ns)} per answer"
    )


def _decode_ns(run: Run) -> float:
    """Return the unprofiled time of decode steps, ns; 0 where there is none."""
    return sum(run.phases[name].wall_ns or 0 for name in STEP_PHASES) if run.decode_steps > 0 else 0
