"""Where tokens of answers stood: free, in a tag, forced, inside of a schema; what forced ones let an engine save.

Captures and attached runs have the same letters for it, `STOOD` of the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET, Struct

from molprof.analysis.figures.run_model import ForcedText
from molprof.common.answer_counts import STOOD
from molprof.common.attached import AnswerMasks
from molprof.common.manifest import Manifest
from molprof.common.values import per


class ServedMasks(Struct, frozen=True):
    """Masks of the answers of the last warm-up pass, filled again at the client."""

    engine: str  # what filled them, with its version; empty: nothing
    answers: tuple[AnswerMasks, ...]
    forced: ForcedText | None  # of those whose masks are known; None: of none
    tokens: int  # of these answers, as the server counts
    steps: int  # the fewest in which as many requests at a time write them


def count_stood(letters: str) -> dict[str, int]:
    """Return the tokens of each kind."""
    return {name: letters.count(letter) for name, letter in STOOD.items()}


def fewest_steps(tokens: Sequence[int], rows: int) -> int:
    """Return the fewest steps in which so many rows make the tokens of each answer, one per row and step."""
    return max(max(tokens, default=0), -(-sum(tokens) // max(rows, 1)))


def forced_of_run(manifest: Manifest) -> ForcedText | None:
    """Return the figures of forced tokens; None where not every answer's masks are recorded."""
    forced = [(item.batch, item.forced) for item in manifest.molecules if item.forced is not None]
    if not forced or len(forced) < len(manifest.molecules) or manifest.rows_per_step is None:
        return None
    least_steps = 0
    for batch, rows in enumerate(manifest.rows_per_step):
        choices = [max(1, digits.count("0")) for of_batch, digits in forced if of_batch == batch]
        least_steps += fewest_steps(choices, max(rows, default=1))
    stood = [item.stood for item in manifest.molecules if item.stood is not None]
    return _forced((digits for _, digits in forced), least_steps, stood if len(stood) == len(forced) else [])


def forced_of_answers(stood: Sequence[str], rows: int) -> ForcedText | None:
    """Return the figures of answers by their letters, of so many at a time; None without any."""
    forced = STOOD["forced"]
    digits = ["".join("01"[letter == forced] for letter in letters) for letters in stood]
    choices = [max(1, one.count("0")) for one in digits]
    return _forced(digits, fewest_steps(choices, rows), stood) if stood else None


def _forced(digits: Iterable[str], least_steps: int, stood: Sequence[str]) -> ForcedText:
    runs = [len(run) for one in digits for run in one.split("0") if run]
    counts = count_stood("".join(stood)) if stood else UNSET
    return ForcedText(sum(runs), len(runs), max(runs, default=0), least_steps, counts)


def figures_of(forced: ForcedText, tokens: int) -> dict[str, float | None]:
    """Return the figures by id; tokens: of all answers."""
    counts = {} if forced.stood is UNSET else {f"{name}_tokens": count for name, count in forced.stood.items()}
    return {
        "forced_ratio": per(forced.tokens, tokens),
        "forced_run_tokens": per(forced.tokens, forced.runs),
        "forced_longest_run": forced.longest_run,
        **counts,
    }
