"""Answers to prompts of plain text: the first ones of each run, and why answers fail their checks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from molprof.analysis.documents.figures import Reports
from molprof.analysis.figures import Report
from molprof.analysis.figures.run_model import SequenceFigures
from molprof.common.document import Field, Section
from molprof.common.text import shortened
from molprof.common.values import count_text

# Answers of a run, and letters of each and of its prompt.
_ANSWERS, FIRST_ANSWERS, _ANSWER_LETTERS, _PROMPT_LETTERS = 5, 2, 80, 40
REMOVED = "removed: mean probability of all forbidden tokens; unlike: the tokenizer would cut the text otherwise there"
_BLANK = re.compile(r"\s{9,}")


def answers_section(reports: Reports, count: int = _ANSWERS) -> Section:
    """Return the first answers of each run, shortened; JSON has all."""
    fields: list[Field] = [
        ("#", "index", "sequence"), ("prompt", "text", lambda item: _shown(item.prompt, _PROMPT_LETTERS)),
        ("answer", "text", lambda item: _shown(item.text, _ANSWER_LETTERS)), ("tokens", "count"),
    ]  # fmt: skip
    runs = [report.run for report in reports.reports if report.run is not None]
    if any(item.valid is not None for run in runs for item in run.sequences):
        fields.append(("valid", "text", _validity))
    # Without a tokenizer no text is known.
    return reports.of_runs(
        "Answers", lambda run: [item for item in run.sequences[:count] if item.text is not None], *fields
    )


def _validity(item: SequenceFigures) -> str:
    if item.valid is not False:
        return "not judged" if item.valid is None else "yes"
    return f"no: {(item.problem or 'unknown').partition(':')[0]}"


def _shown(text: str | None, most: int) -> str | None:
    """Return the beginning of a text, with the length of white space that goes on and on in its place."""
    return None if text is None else shortened(_BLANK.sub(lambda run: f"[{len(run[0])} x white space]", text), most)


def of_forbidden(reports: Reports) -> tuple[Field, ...]:
    """Return columns of how a constraint overruled the model; none for older traces, which have no such figures."""
    runs = [report.run for report in reports.reports if report.run is not None]
    is_recorded = any(run.disagreement is not None and run.disagreement.all.mean_removed is not None for run in runs)
    return (("removed", "ratio", "agreement.mean_removed"), ("unlike", "ratio", "agreement.unlike_ratio")) * is_recorded


def failures(report: Report) -> Iterator[str]:
    """Yield lines on the number of answers that fail, by reason."""
    if report.run is None or report.run.of_molecules:
        return
    kinds = Counter((item.problem or "unknown").partition(":")[0] for item in report.run.sequences if not item.valid)
    if kinds and report.run.valid_molecules is not None:
        yield ", ".join(f"{count_text(count)} {kind}" for kind, count in kinds.most_common())
