"""What a studied logits processor is: made once per run, started once per batch, counting what it masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from molprof.profiler.models.target import Target
from molprof.profiler.molecules.template import Template


class BatchProcessor(Protocol):
    """A processor for one batch, called by transformers once per step."""

    @property
    def masked_logits(self) -> list[int] | None:
        """Logits set to -inf so far, by row; None where they are not counted. Read after the last step, so that
        no step has to wait for the device to count them."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The masked scores.

        Args:
            input_ids: prompt and answer so far, int64 (batch, prompt_width + position).
            scores: float32 (batch, logits_width); transformers hands over a fresh copy, so it may be written
                to. What is returned has the same shape, dtype and device, and need only last until the next
                call.
        """


@dataclass(frozen=True)
class Places:
    """Where the rows of a step stand in molprof's own decoding loop: unlike `generate`'s, at unlike positions.

    Attributes:
        rows: rows of the batch, in the order of the scores; rows that have ended may be missing.
        positions: by row, the answer position that a token is being chosen for.
        row_ids, position_ids: the same on the logits' device, int64 (rows,).
    """

    rows: tuple[int, ...]
    positions: tuple[int, ...]
    row_ids: Tensor
    position_ids: Tensor


@runtime_checkable
class ForcedRuns(Protocol):
    """What a batch processor may have besides, for `--forced-runs` and `--drop-finished`.

    Attributes:
        reads_tokens: True where what is forced depends on the chosen tokens: the host then reads them back once
            per step. False where positions tell it; such a processor forces the end token itself, and lets no
            other token end a row.
        masked_logits: as for `BatchProcessor`.
    """

    reads_tokens: bool

    @property
    def masked_logits(self) -> list[int]:
        """See `BatchProcessor`."""

    def forced(self, row: int, position: int, chosen: int | None) -> Sequence[int]:
        """The tokens from answer position `position` on for which no choice is left, the end token included.

        Called in order, once before a row's first choice (position 0) and once after each, so that a row's
        state may be moved on: past `chosen`, and past what is returned.

        Args:
            chosen: the token at `position - 1`; None before the first choice, and without `reads_tokens`.
        """

    def mask(self, scores: Tensor, places: Places) -> Tensor:
        """The masked scores, float32 (rows, logits_width), each row for the choice at its own position."""


class Processor(Protocol):
    """A processor for a whole run: holds what depends on the vocabulary only.

    A user's own (`--processor package.module:factory`) needs `start` alone. Its factory may as well return a
    transformers `LogitsProcessor`, which is then made anew for each batch, by another call of the factory.

    Attributes:
        name: as given to `--processor`.
        placeholder: what the templates write for a coordinate.
        parameters: whatever else decides what it does, for the manifest.

    It may have besides (looked for by name, so that a user's processor need not know of them):

    - `needs_templates`: True where it cannot work with plain-text prompts, for which `start` gets no templates.
      False if missing.
    - `fixed_length`: False where an answer need not have its template's length; such a run has no template counts
      in its manifest, for none of them bound the text. True if missing.
    - `longest(template)`: most tokens of an answer, end token included. The template's and one more if missing.
    """

    name: str
    placeholder: str
    parameters: dict[str, Any]

    def start(self, templates: Sequence[Template], prompt_width: int) -> BatchProcessor:
        """The processor of one batch.

        Args:
            templates: one per row; empty for prompts of plain text, which have none.
            prompt_width: columns of the left-padded prompts; answer position p is column prompt_width + p.
        """


Factory = Callable[[Target], Processor]
