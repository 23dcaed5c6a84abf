"""Drafts that a step verifies: those that the grammar forbids, and what drafts cost beside what they save."""

from __future__ import annotations

import statistics

from msgspec import UNSET

from molprof.analysis.figures.run_model import Run
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.common.drafts import Drafts, MaskFills
from molprof.common.engine_settings import VLLM
from molprof.common.values import count_text, counted, number_text, percent_text, time_text

# Share of the rounds that a rejected draft ended.
_LEAST_FORBIDDEN = 0.1
_WITHOUT = "capture the same without drafts, and compare"


@rule(
    id="forbidden_drafts",
    title="The grammar forbids drafts",
    fix="Let the assistant draft under the constraint: leave out --free-drafts.",
    explanation="A round ends at the first draft that the grammar forbids; the drafts behind it are lost.",
    query="tokens",
    needs=("timed",),
)
def forbidden_drafts(known: TraceFacts) -> FindingEvidence | None:
    """Fire where the grammar ended 10 % of the rounds that a rejected draft ended; of vLLM a note.

    Gain: a decode step for each draft from the first forbidden one of a round on. VLLM drops those before the forward,
    and has no drafts under the grammar in their place.
    """
    run = known.run
    if (drafts := run.drafts) is None or not drafts.rejected_by_grammar or not run.decode_steps:
        return None
    rejected = drafts.rejected_by_model + drafts.rejected_by_grammar
    ratio = drafts.rejected_by_grammar / rejected
    if ratio < _LEAST_FORBIDDEN:
        return None
    lost = drafts.rejected_by_grammar + drafts.dropped
    saved_ns = min(lost, run.decode_steps) / run.decode_steps * run.decode_ns
    of_vllm = run.setup.engine == VLLM
    gain = None if of_vllm else known.gain(saved_ns / (run.wall_ns.median or saved_ns), "steps of the lost drafts")
    fix = f"vLLM drafts without the grammar. To know what drafts save under it: {_WITHOUT}." if of_vllm else ""
    return FindingEvidence(
        f"of {counted(drafts.drafted, 'drafted token')} {count_text(drafts.accepted)} were accepted, "
        f"{count_text(drafts.rejected_by_model)} rejected by the model, {count_text(drafts.rejected_by_grammar)} by the"
        f" grammar, {count_text(drafts.dropped)} dropped",
        {**_figures(drafts), "forbidden_ratio": ratio},
        gain,
        fix,
        note=of_vllm,
        title=f"The grammar forbids the draft that ends {percent_text(ratio)} of the rejected rounds",
    )


@rule(
    id="drafts",
    title="Drafts cost more than they can save",
    fix=f"Leave out the drafts, or draft fewer tokens: {_WITHOUT}.",
    explanation="An accepted draft saves a step at most. Drafting and the masks of draft positions come on top.",
    query="tokens",
    needs=("timed",),
    least_gain=0,
)
def drafts(known: TraceFacts) -> FindingEvidence | None:
    """Fire where tokens are drafted; a note where they may pay.

    Gain: drafting, and filling masks for drafts alone; at least what of it the accepted drafts cannot save.
    """
    run = known.run
    times = [repeat.draft_ns for repeat in run.repeats if repeat.draft_ns is not None]
    if (found := run.drafts) is None or not times or not run.decode_steps or not run.wall_ns.median:
        return None
    fills = [repeat.mask_fills for repeat in run.repeats if repeat.mask_fills is not UNSET]
    draft_ns, mask_ns = statistics.median(times), statistics.median(item.draft_ns for item in fills) if fills else 0
    cost_ns = draft_ns + mask_ns
    step_ns = max(0, run.decode_ns - cost_ns) / run.decode_steps
    saved_ns = _saved_steps(run, found.accepted) * step_ns
    pays = cost_ns <= saved_ns
    return FindingEvidence(
        f"{count_text(found.accepted)} of {counted(found.drafted, 'drafted token')} accepted, "
        f"{number_text(run.tokens_per_step)} tokens per row and step; {time_text(draft_ns)} to draft"
        f"{_masks(fills, mask_ns)}; a step without these takes {time_text(step_ns)}, and at most"
        f" {counted(_saved_steps(run, found.accepted), 'step')} were saved; longer forwards are not in it",
        {**_figures(found), "draft_ns": draft_ns, "draft_masks_ns": mask_ns, "step_ns": step_ns, "saved_ns": saved_ns},
        None if pays else known.gain(cost_ns / run.wall_ns.median, "drafting and its masks",
                                     (cost_ns - saved_ns) / run.wall_ns.median),
        f"To know what drafts save: {_WITHOUT}." if pays else "",
        share=cost_ns / run.wall_ns.median,
        title=f"Drafts cost {time_text(cost_ns)} and save {time_text(saved_ns)} at most",
        note=pays,
    )  # fmt: skip


def _masks(fills: list[MaskFills], ns: float) -> str:
    """Return the text on masks for drafts alone; empty without them."""
    if not fills or not fills[0].draft_masks:
        return ""
    count = fills[0].draft_masks
    return f", {time_text(ns)} for {counted(count, 'mask')} of draft positions ({time_text(ns / count)} each)"


def _figures(drafts: Drafts) -> dict[str, int | float]:
    return {name: getattr(drafts, name) for name in drafts.__struct_fields__}


def _saved_steps(run: Run, accepted: int) -> int:
    """Return the most steps that accepted drafts saved: one each, or those of the longest answer if all ran at once."""
    if run.batches == 1 and run.molecules <= (run.setup.batch_size or 0):
        return min(accepted, max(0, max((item.tokens for item in run.sequences), default=0) - run.steps))
    return accepted
