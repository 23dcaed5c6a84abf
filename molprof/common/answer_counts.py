"""Numbers of judged, valid and wrong answers of a run, for `MeasuredRun`."""

from __future__ import annotations

from collections.abc import Sequence

from molprof.common.manifest import KIND_LETTERS, SequenceRun


def answer_counts(answers: Sequence[SequenceRun]) -> dict[str, int]:
    """Return the fields of `MeasuredRun` that count answers and their tokens, by name."""
    return {
        "answers": len(answers),
        "judged": sum(item.valid is not None for item in answers),
        "valid": sum(item.valid is True for item in answers),
        "wrong": sum(item.valid is False and item.kinds.endswith(KIND_LETTERS["eos"]) for item in answers),
        "tokens": sum(len(item.token_ids) for item in answers),
    }
