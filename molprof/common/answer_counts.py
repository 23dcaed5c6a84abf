"""How many answers of a run are judged, valid and wrong, for `MeasuredRun`; and the kinds of their tokens by mask."""

from __future__ import annotations

from collections.abc import Sequence

from molprof.common.manifest import KIND_LETTERS, SequenceRun

# Where a token stood: forced: its mask left no other; else nothing constrained it, it began in what begins or ends a
# tag, or it was inside of a schema or grammar.
STOOD = {"free": "f", "tag": "t", "forced": "o", "inside": "i"}


def answer_counts(answers: Sequence[SequenceRun]) -> dict[str, int]:
    """Return the fields of `MeasuredRun` that count answers and their tokens, by name."""
    return {
        "answers": len(answers),
        "judged": sum(item.valid is not None for item in answers),
        "valid": sum(item.valid is True for item in answers),
        "wrong": sum(item.valid is False and item.kinds.endswith(KIND_LETTERS["eos"]) for item in answers),
        "tokens": sum(len(item.token_ids) for item in answers),
    }
