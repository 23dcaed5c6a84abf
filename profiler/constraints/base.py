"""The interface of a logits processor: made once per run, started once per batch, counting masked logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from torch import Tensor

from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.template import Template


@dataclass(frozen=True)
class Rows:
    """The inputs of a batch processor's start."""

    prompts: Sequence[Prompt]  # one per row
    prompt_width: int  # columns of the left-padded prompts; answer position p is column prompt_width + p
    templates: Sequence[Template] = ()  # one per row; empty for prompts of plain text


class BatchProcessor(Protocol):
    """The processor of one batch, called by transformers once per step.

    `generate` needs no more than is here. `has` tells whether a processor has what else is needed:

    `FORCED_RUNS`, for `--forced-runs`:

    - `reads_tokens`: True if what is forced depends on the chosen tokens, which the host then reads back once per step.
      False if positions decide it; such a processor forces the end token, and lets no other token end a row.
    - `forced(row, position, chosen)`: the forced tokens from answer position `position` on, the end token included.
      Called in order, once before a row's first choice (position 0) and once after each. `chosen` is the token at
      `position - 1`; None before the first choice, and without `reads_tokens`.
    - `mask(scores, at)`: the masked scores, float32 (rows, logits_width), each row for the choice at its own
      position (`RowPositions`).

    `STATES`, where rows come and go, or go back (continuous batching, drafts). What a row may write depends on a number
    alone, its state; a table on the device has the mask of each:

    - `state(row, position, chosen)`: the state of a row for its choice at `position`, of which masked logits are
      counted. A position may come again, with another token: what followed is forgotten.
    - `allow(scores, states)`: the scores that each state allows, float32 (n, logits_width); states are int32 (n,) on
      their device.

    `MEASURED`, without a model:

    - `laps`: the times of the parts of its calls (`Laps`).
    - `seek(row, tokens)`: put a row where it stands after an answer of these tokens.
    """

    @property
    def masked_logits(self) -> list[int] | None:
        """Logits set to -inf so far, by row, steps on finished rows included; None where they are not counted.

        Read after the last step.
        """

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the masked scores.

        Args:
            input_ids: prompt and answer so far, int64 (batch, prompt_width + position).
            scores: float32 (batch, logits_width), a fresh copy that may be written to. What is returned has the same
                shape, dtype and device, and must last until the next call.
        """


FORCED_RUNS, STATES, MEASURED = ("reads_tokens", "forced", "mask"), ("state", "allow"), ("laps", "seek")


def has(processor: Any, names: Sequence[str]) -> bool:
    """Return True if a batch processor has all of these members of `BatchProcessor`."""
    return all(hasattr(processor, name) for name in names)


class Laps:
    """Host time of a batch processor's calls by part, in ns: of the last call, and of all.

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
        """The last time of each lap, ns."""
        return dict(zip(self.names, self.last, strict=True))

    @property
    def total_ns(self) -> dict[str, int]:
        """The total time of each lap, ns."""
        return dict(zip(self.names, self.total, strict=True))


@dataclass(frozen=True)
class RowPositions:
    """The positions of a step's rows in molprof's own decoding loop, where rows differ in length."""

    rows: tuple[int, ...]  # of the batch, in the order of the scores; finished ones may be missing
    positions: tuple[int, ...]  # answer position of the next token, by row
    row_ids: Tensor  # the same on the logits' device, int64 (rows,)
    position_ids: Tensor


class Processor(Protocol):
    """A processor for a whole run, with all that depends on the vocabulary only. Only `start` is required.

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
        """Return the processor of one batch."""
