"""What `molprof trim` writes of the trace that it cut a part out of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from molprof.common.typed_json import read_typed

# Beside the manifest, or alone, in a part of another trace: a `Trimmed`.
TRIMMED_KEY = "molprof_trimmed"


@dataclass(frozen=True)
class Trimmed:
    """The part of another trace that was kept; None and empty lists: all."""

    source: str  # name of the other trace's file
    whole_steps: bool  # the kept steps are whole, so that their figures are unchanged
    batch: int | None = None  # batch of the recorded steps
    first_step: int | None = None  # first_step, last_step: numbers of the first and the last step
    last_step: int | None = None
    phases: list[str] = field(default_factory=list)  # names of phases
    categories: list[str] = field(default_factory=list)  # kept categories
    without: list[str] = field(default_factory=list)  # those left out
    start_ns: int | None = None  # start_ns, end_ns: since the earliest event of the source
    end_ns: int | None = None

    def text(self) -> str:
        """In words, for a report."""
        parts = []
        if self.first_step is not None:
            of = "" if self.batch is None else f" of batch {self.batch}"
            parts.append(f"steps {self.first_step} to {self.last_step}{of}")
        if self.start_ns is not None or self.end_ns is not None:
            until = "the end" if self.end_ns is None else f"{self.end_ns / 1e6:.3f} ms"
            parts.append(f"{(self.start_ns or 0) / 1e6:.3f} ms to {until}")
        for what, names in (("phases", self.phases), ("categories", self.categories), ("no", self.without)):
            if names:
                parts.append(f"{what} {', '.join(names)}")
        return f"trimmed from {self.source}: {'; '.join(parts)}"


def trimmed_from_json(raw: Any) -> Trimmed | None:
    """The value of the key TRIMMED_KEY; None without one. Raises TraceError where it is something else."""
    return None if raw is None else read_typed(raw, Trimmed, TRIMMED_KEY)
