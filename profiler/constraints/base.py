"""The contract of a logits processor: made once per run, started once per batch, counting what it masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.template import Template


@dataclass(frozen=True)
class Rows:
    """What the processor of a batch is started with."""

    prompts: Sequence[Prompt]  # one per row
    prompt_width: int  # columns of the left-padded prompts; answer position p is column prompt_width + p
    templates: Sequence[Template] = ()  # one per row; empty for prompts of plain text


class BatchProcessor(Protocol):
    """A processor for one batch, called by transformers once per step."""

    @property
    def masked_logits(self) -> list[int] | None:
        """Logits set to -inf so far, by row, steps on finished rows included; None where they are not counted.

        Read after the last step.
        """

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The masked scores.

        Args:
            input_ids: prompt and answer so far, int64 (batch, prompt_width + position).
            scores: float32 (batch, logits_width), a fresh copy that may be written to. What is returned has the same
                shape, dtype and device, and must last until the next call.
        """


class Laps:
    """Host time of the calls of a batch processor by what they did, in ns: of the last call, and of all.

    Captures and `molprof bench masks` read the same clock, so that both measure the same work.

    Args:
        names: of the parts of a call, in order: `read` the chosen tokens, `accept` them, `fill` masks, `apply` them.
    """

    def __init__(self, *names: str) -> None:
        self.names, self.calls = names, 0
        self.last: list[int] = [0] * len(names)
        self.total: list[int] = [0] * len(names)

    def add(self, *times: int) -> None:
        """Add a call by the clock at its beginning and at the end of each part."""
        self.last = [after - before for before, after in pairwise(times)]
        self.total = [total + last for total, last in zip(self.total, self.last, strict=True)]
        self.calls += 1

    @property
    def last_ns(self) -> dict[str, int]:
        return dict(zip(self.names, self.last, strict=True))

    @property
    def total_ns(self) -> dict[str, int]:
        return dict(zip(self.names, self.total, strict=True))


@runtime_checkable
class Followed(Protocol):
    """A batch processor that is measured by itself, without a model, and that times the parts of its calls."""

    laps: Laps

    def seek(self, row: int, tokens: Sequence[int]) -> None:
        """Put a row where it stands after an answer of these tokens."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """See `BatchProcessor`."""


@dataclass(frozen=True)
class Places:
    """Where the rows of a step stand in molprof's own decoding loop, each at its own position."""

    rows: tuple[int, ...]  # of the batch, in the order of the scores; finished ones may be missing
    positions: tuple[int, ...]  # answer position of the next token, by row
    row_ids: Tensor  # the same on the logits' device, int64 (rows,)
    position_ids: Tensor


@runtime_checkable
class ForcedRuns(Protocol):
    """What a batch processor must also have for `--forced-runs`."""

    # True if what is forced depends on the chosen tokens, which the host then reads back once per step. False if
    # positions decide it; such a processor forces the end token, and lets no other token end a row.
    reads_tokens: bool

    @property
    def masked_logits(self) -> list[int] | None:
        """See `BatchProcessor`."""

    def forced(self, row: int, position: int, chosen: int | None) -> Sequence[int]:
        """The forced tokens from answer position `position` on, the end token included.

        Called in order, once before a row's first choice (position 0) and once after each. It may move the row's state
        past `chosen` and past what is returned.

        Args:
            chosen: the token at `position - 1`; None before the first choice, and without `reads_tokens`.
        """

    def mask(self, scores: Tensor, places: Places) -> Tensor:
        """The masked scores, float32 (rows, logits_width), each row for the choice at its own position."""


@runtime_checkable
class StateTable(ForcedRuns, Protocol):
    """What a batch processor must also have where rows come and go, or go back: continuous batching, drafts.

    What a row may write depends on a number alone, its state. The host follows the states, and a table on the device
    has the mask of each.
    """

    def state(self, row: int, position: int, chosen: int | None) -> int:
        """The state of a row for its choice at answer position `position`, of which masked logits are counted.

        Args:
            chosen: the token at `position - 1`; None before the first choice. A position may come again, with another
                token: what followed is forgotten. Those before it are as they were told last.
        """

    def allow(self, scores: Tensor, states: Tensor) -> Tensor:
        """The scores that each state allows, float32 (n, logits_width); states are int32 (n,) on their device."""


class Processor(Protocol):
    """A processor for a whole run, with what depends on the vocabulary only. `start` is all that it must have.

    Looked up by name where there:

    - `name`: as given to `--processor`; `parameters`: what else decides what it does, for the manifest.
    - `placeholder`: what templates write for a coordinate.
    - `needs_templates`: True if it cannot work with plain-text prompts, which have no templates. Default: False.
    - `compiles`: True if `start` compiles: its time is the phase `compile`, not part of `template`. Default: False.
    - `fixed_length`: False if an answer need not have its template's length; the manifest then has no template counts.
      Default: True.
    - `made_ns`: the parts of making it, in ns: `package` (its import), `vocabulary`, `constraint`.
    - `longest(template)`: most tokens of an answer, end token included. Default: the template's and one more.
    """

    name: str
    parameters: dict[str, Any]

    def start(self, rows: Rows) -> BatchProcessor:
        """The processor of one batch."""
