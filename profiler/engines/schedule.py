"""Choice of the tokens for each forward of molprof's own decoding loop. Without torch.

A row's answer is a chain of choices, each followed by a forced run. A step chooses one token per row and feeds it with
its run in one chunk, so that a row needs as many forwards as it has choices. Chunks are padded on the left: the last
column holds every row's last token, whose logits decide the next choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

CHOSEN = -1
# Longer runs take several steps: a step is as wide as its longest run, for all rows.
RUN_LIMIT = 64
# A compiled forward is compiled for each of these widths; torch.compile gives up after 8.
COMPILED_WIDTHS = (1, 4, 8, 16, 32, RUN_LIMIT)

# (row, position, the token just chosen or None) -> the tokens that are forced at that position and after it.
Forced = Callable[[int, int, "int | None"], Sequence[int]]


@dataclass(frozen=True)
class Chunk:
    """One forward: R rows of W tokens; arrays are int64."""

    rows: np.ndarray  # (R,), of the batch
    kept: np.ndarray | None  # (R,), places of these rows in the chunk before; None if its rows are the same
    tokens: np.ndarray  # (R, W), `CHOSEN` for the token that the step before chose
    columns: np.ndarray  # (R, W), of the cache; padding goes to a column that is never read
    # (R, W), number of each token in its row, prompt included; 0 for padding. A token sees the columns up to its own.
    positions: np.ndarray
    places: np.ndarray  # (R,), answer position of the next choice
    used: int  # columns in use after it, in the longest row


@dataclass(frozen=True)
class Rules:
    """Rules for all rows of a batch."""

    ends: frozenset[int]  # ids that end a row
    bound: int  # most tokens of an answer
    trash: int  # the column for padding
    pad: int = 0
    jump: bool = True  # feed forced runs whole; else one token per row and step, as `generate` does
    drop: bool = False  # rows that have ended leave the next chunk
    widths: Sequence[int] = ()  # accepted widths of chunks after the first; empty: any


class Schedule:
    """The rows of one batch, chunk by chunk.

    `forced` is called once before the first choice of a row and once after each; None: no token is known to be forced.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], forced: Forced | None, rules: Rules) -> None:
        # By row, the tokens so far, `CHOSEN` for unknown choices; and how many each step appended until the row ended.
        self.answers: list[list[int]] = [[] for _ in prompts]
        self.appended: list[list[int]] = [[] for _ in prompts]
        self._prompts = prompts
        self._forced = forced or (lambda row, position, chosen: ())
        self._rules = rules
        self._queues: list[list[int]] = [[] for _ in prompts]
        self._live = [True] * len(prompts)
        self._rows = list(range(len(prompts)))
        self._choices: list[list[tuple[int, int, int]]] = []

    def first(self) -> Chunk:
        """Return the prompts, and the run forced before any choice."""
        parts = []
        for row, prompt in enumerate(self._prompts):
            self._queues[row] = list(self._forced(row, 0, None))
            self.appended[row].append(0)
            parts.append([*prompt, *(self._take(row) if self._rules.jump else ())])
        return self._chunk(parts, None, ())

    def next(self, chosen: Sequence[int] | None) -> Chunk | None:
        """Return the chunk after a choice; None if every row has ended.

        The choice is by row of the chunk before; None: not known here.
        """
        self._choices.append([])
        parts: dict[int, list[int]] = {}
        for index, row in enumerate(self._rows):
            if self._live[row]:
                part = self._step(index, row, None if chosen is None else chosen[index])
                if self._live[row]:  # the last tokens of a row are not fed
                    parts[row] = part
        if not any(self._live):
            return None
        kept = [index for index, row in enumerate(self._rows) if self._live[row]]
        if not self._rules.drop or len(kept) == len(self._rows):
            return self._chunk([parts.get(row, []) for row in self._rows], None, self._rules.widths)
        self._rows = [self._rows[index] for index in kept]
        return self._chunk([parts[row] for row in self._rows], np.array(kept), self._rules.widths)

    def fill(self, step: int, chosen: Sequence[int]) -> None:
        """Replace `CHOSEN` by the choices of a step, by row of its chunk."""
        for index, row, position in self._choices[step]:
            self.answers[row][position] = chosen[index]

    def cut(self, steps: int) -> None:
        """Drop what later steps append, for a batch that ended early."""
        for row, counts in enumerate(self.appended):
            self.appended[row] = counts[:steps]
            self.answers[row] = self.answers[row][: sum(self.appended[row])]

    def _step(self, index: int, row: int, chosen: int | None) -> list[int]:
        """Return the tokens that a row appends after a forward."""
        if len(self.appended[row]) < len(self._choices):
            self.appended[row].append(0)
        queue, position = self._queues[row], len(self.answers[row])
        if not queue:
            token = CHOSEN if chosen is None else chosen
            queue.append(token)
            if chosen is None:
                self._choices[-1].append((index, row, position))
            if token not in self._rules.ends:
                queue.extend(self._forced(row, position + 1, chosen))
        return self._take(row)

    def _take(self, row: int) -> list[int]:
        """Move tokens from a row's queue to its answer, as many as one chunk may hold."""
        answer, queue = self.answers[row], self._queues[row]
        count = min(RUN_LIMIT if self._rules.jump else 1, self._rules.bound - len(answer))
        taken, self._queues[row] = queue[:count], queue[count:]
        answer += taken
        self.appended[row][-1] += len(taken)
        self._live[row] = len(answer) < self._rules.bound and not (taken and taken[-1] in self._rules.ends)
        return taken

    def _chunk(self, parts: list[list[int]], kept: np.ndarray | None, widths: Sequence[int]) -> Chunk:
        longest = max(map(len, parts))
        width = min((size for size in widths if size >= longest), default=longest)
        shape = len(parts), width
        tokens = np.full(shape, self._rules.pad, dtype=np.int64)
        columns = np.full(shape, self._rules.trash, dtype=np.int64)
        positions = np.zeros(shape, dtype=np.int64)
        lengths = [len(self._prompts[row]) + len(self.answers[row]) for row in self._rows]
        for index, (part, length) in enumerate(zip(parts, lengths, strict=True)):
            if part:
                tokens[index, -len(part) :] = part
                columns[index, -len(part) :] = positions[index, -len(part) :] = np.arange(length - len(part), length)
        return Chunk(
            rows=np.array(self._rows),
            kept=kept,
            tokens=tokens,
            columns=columns,
            positions=positions,
            places=np.array([len(self.answers[row]) for row in self._rows]),
            used=max(length for part, length in zip(parts, lengths, strict=True) if part),
        )
