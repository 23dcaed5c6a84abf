"""What generates tokens under marks. Older packages than engines are made for are refused here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from molprof.profiler.environment import check_versions

if TYPE_CHECKING:
    from molprof.profiler.constraints.base import BatchProcessor
    from molprof.profiler.engines.batches import BatchPlan, BatchResult
    from molprof.profiler.recording.marks import Marks

check_versions()


class Engine(Protocol):
    """Generates the tokens of batches: `generate.Generate`, `forced.Forced`.

    Made once per run, outside of what is timed, with a `LoadedModel` and settings. Raises UsageError then for settings
    that it cannot follow.
    """

    def generate(self, number: int, plan: BatchPlan, studied: BatchProcessor | None, marks: Marks) -> BatchResult:
        """Generates batch `number` and calls `marks` where its phases begin, with `studied` between P1 and P2."""
