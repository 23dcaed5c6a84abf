"""What a pass and its batches wrote."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchResult:
    """What one batch wrote.

    Attributes:
        rows: generated ids by prompt, with the end token, without padding.
        steps: forwards, the prefill included.
        masked_logits: by prompt; None without a processor.
        appended: by prompt, the number of tokens that each step appended until the row ended; None: one in each.
        rows_per_step: rows that each step computed, spare ones included.
        host_reads: how often the host read chosen tokens back while the batch ran; None in `generate`.
    """

    rows: tuple[tuple[int, ...], ...]
    steps: int
    masked_logits: tuple[int, ...] | None
    appended: tuple[tuple[int, ...], ...] | None
    rows_per_step: tuple[int, ...]
    host_reads: int | None

    def busy_steps(self, row: int) -> int:
        """Steps until the row ended."""
        return len(self.rows[row] if self.appended is None else self.appended[row])

    def written(self, row: int, steps: int) -> tuple[int, ...]:
        """What the row had written after so many steps."""
        count = steps if self.appended is None else sum(self.appended[row][:steps])
        return self.rows[row][:count]


@dataclass(frozen=True)
class PassResult:
    """What one pass over all batches wrote.

    Attributes:
        wall_ns: wall time, with the device synchronized at both ends.
        compiles, compile_ns: frames that torch compiled meanwhile, and the time in that; None if torch does not say.
    """

    batches: tuple[BatchResult, ...]
    wall_ns: int
    compiles: int | None
    compile_ns: int | None
