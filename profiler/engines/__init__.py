"""Engines: generate tokens and call marks. Packages older than supported are refused here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from molprof.common.engine_settings import VLLM
from molprof.common.setting import one_of
from molprof.profiler.environment import check_versions

if TYPE_CHECKING:
    from molprof.common.drafts import Drafts, MaskFills
    from molprof.common.settings import CaptureSettings
    from molprof.profiler.constraints.base import BatchProcessor
    from molprof.profiler.models.load import LoadedModel
    from molprof.profiler.molecules.prompts import Prompt
    from molprof.profiler.recording.marks import Marks

check_versions()

# Module and class by name (`CaptureSettings.engine`); imported when it is used.
ENGINES = {
    "generate": "molprof.profiler.engines.generate:Generate",
    "forced": "molprof.profiler.engines.forced:Forced",
    "assisted": "molprof.profiler.engines.assisted:Assisted",
    "continuous": "molprof.profiler.engines.continuous:Continuous",
    VLLM: "molprof.profiler.engines.vllm:VLLM",
}


class Engine(Protocol):
    """Generates the tokens of batches.

    It may load its model itself (`load`, a static method as `models.load.load`), and tell what constrains where no
    processor of molprof does (`constraint`, a name and its parameters, or None).

    Made once per run, outside of what is timed. Raises UsageError then for settings that it cannot follow.
    """

    def __init__(self, loaded: LoadedModel, settings: CaptureSettings) -> None: ...

    def generate(self, number: int, plan: BatchPlan, studied: BatchProcessor | None, marks: Marks) -> BatchResult:
        """Generate batch `number`; call `marks` where its phases begin, and `studied` between P1 and P2."""


def check_engine(name: str) -> None:
    """Raise UsageError if there is no engine of that name."""
    one_of("engine", name, tuple(ENGINES))


def make_engine(name: str, loaded: LoadedModel, settings: CaptureSettings) -> Engine:
    """Return the engine of that name."""
    engine: Engine = _kind(name)(loaded, settings)
    return engine


def loader(name: str) -> Callable[..., LoadedModel]:
    """Return the loader of an engine's model: its own `load`, else that of transformers."""
    from molprof.profiler.models.load import load

    load_model: Callable[..., LoadedModel] = getattr(_kind(name), "load", load)
    return load_model


def _kind(name: str) -> Any:
    check_engine(name)
    module, _, attribute = ENGINES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class BatchPlan:
    """Prompts that are generated together."""

    prompts: tuple[Prompt, ...]
    sequences: tuple[int, ...]  # number of each prompt in the run, from 0, before sorting
    max_new_tokens: int
    prompt_width: int  # columns that its prompts are padded to
    spare_rows: int = 0  # copies of the last prompt that only keep the batch's shape
    most_waiting: int = 0  # the most steps that a prompt may wait for its first

    @property
    def rows(self) -> int:
        """Rows that are computed."""
        return len(self.prompts) + self.spare_rows

    @property
    def most_steps(self) -> int:
        """The most steps of the batch."""
        return self.most_waiting + self.max_new_tokens

    @property
    def row_prompts(self) -> tuple[Prompt, ...]:
        """One prompt per row that is computed."""
        return self.prompts + self.prompts[-1:] * self.spare_rows


@dataclass(frozen=True)
class BatchResult:
    """The generated tokens of a batch, by row."""

    rows: tuple[tuple[int, ...], ...]  # generated ids by prompt, with the end token, without padding
    rows_per_step: tuple[int, ...]  # rows that each step computed, the prefill first, spare rows included
    # By prompt, the number of tokens that each step appended until the row ended; None: one in each.
    appended: tuple[tuple[int, ...], ...] | None = None
    joined: tuple[int, ...] | None = None  # by prompt, the step that computed it first, where rows join
    arrived: tuple[int, ...] | None = None  # by prompt, the step before which it arrived; None: all when the pass began
    host_reads: int | None = None  # how often the host read chosen tokens back while the batch ran; None: in each step
    masked_logits: tuple[int, ...] | None = None  # by prompt, as the processor counts; `Runner` fills it in
    drafts: tuple[Drafts, ...] | None = None  # by prompt; None: nothing drafts
    draft_ns: int | None = field(default=None, compare=False)  # host time of drafting
    mask_fills: MaskFills | None = field(default=None, compare=False)  # None: not counted

    @property
    def steps(self) -> int:
        """Number of forwards, the prefill included."""
        return len(self.rows_per_step)

    def busy_steps(self, row: int) -> int:
        """Return the steps until the row ended."""
        return len(self.rows[row] if self.appended is None else self.appended[row])

    def written(self, row: int, steps: int) -> tuple[int, ...]:
        """Return the tokens that the row had after that many steps."""
        return self.rows[row][: steps if self.appended is None else sum(self.appended[row][:steps])]
