"""Figures of a captured run: `run` in the JSON of `report`. None means "not recorded"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, UnsetType, defstruct

from molprof.analysis.figures.drift import Drift, ModelDisagreement
from molprof.common.drafts import Drafts, MaskFills
from molprof.common.engine_settings import AUTO, GENERATE
from molprof.common.manifest import STEP_PHASES, Machine, MaskedLogits, ProgramTotals, Session, Window
from molprof.common.sampled import SampledFunctions
from molprof.common.settings import SETTINGS
from molprof.common.values import per


class PassTimes(Struct, frozen=True):
    """Unprofiled wall time of the timed passes, ns; None without any."""

    median: int | None
    low: int | None
    high: int | None
    repeats: int


class PhaseBound(Struct, frozen=True):
    """Bounds of the `count` recorded phases of one name; the three parts add up to their `host_ns`."""

    count: int
    gpu_busy_ns: int  # a device was busy, whoever launched its work
    sync_idle_ns: int  # the CPU was in a host sync, and no device busy
    launch_ns: int


class RepeatFigures(Struct, frozen=True):
    """One timed pass: host time by phase, where it occurred; frames that torch.compile compiled, and their time."""

    wall_ns: int
    phases_ns: dict[str, int]
    compiles: int | None
    compile_ns: int | None
    draft_ns: int | None = None
    mask_fills: MaskFills | UnsetType = UNSET
    latency: dict[str, int | None] | UnsetType = UNSET  # of requests, by figure


class PhaseFigures(Struct, frozen=True):
    """One phase: unprofiled time in the timed pass with the median wall time; all else in the recorded steps."""

    wall_ns: int | None = None
    host_ns: int | None = None
    gpu_ns: int | None = None  # of the GPU work that the phase launched
    launches: int | None = None
    kernels: int | None = None
    syncs: int | None = None
    sync_ns: int | None = None
    leaf_operators: int | None = None
    bound: PhaseBound | None = None
    graph_launches: int | None = None


class ClassFigures(Struct, frozen=True):
    """GPU work of one class in the recorded steps."""

    count: int
    time_ns: int


class WindowFigures(Window, frozen=True):
    """The recorded steps, prefill included, and their tokens; `unattributed_gpu_ns` is of the whole trace."""

    steps: int
    tokens: int
    gpu_recorded: bool
    launches: int | None
    kernels: int | None
    gpu_ns: int | None
    leaf_operators: int | None
    classes: dict[str, ClassFigures] | None
    unattributed_gpu_ns: int | None
    graph_launches: int | None = None
    syncs: int | None = None


class ForcedText(Struct, frozen=True):
    """Tokens of all answers that their masks forced: no other token was allowed."""

    tokens: int
    runs: int  # one after the other in an answer
    longest_run: int
    least_steps: int  # with as many rows: no answer has fewer than its tokens that were not forced
    # Tokens by where they stood: free, tag, forced, inside; only where an engine's masks were filled again.
    stood: dict[str, int] | UnsetType = UNSET


class SequenceFigures(Struct, frozen=True, omit_defaults=True):
    """One molecule or prompt: its tokens by kind (from the trace), its validity (from the manifest)."""

    sequence: int
    smiles: str | None
    tokens: int
    free: int
    copy: int
    junk: int
    filler: int
    blocks: int
    junk_blocks: int
    malformed_blocks: int
    cut_blocks: int | None
    masked_logits: int | None
    valid: bool | None
    problem: str | None
    prompt: str | None = None
    text: str | None = None  # of an answer to plain text, without the end token
    stood: str | None = None  # of each token a letter of `STOOD`; None where no engine's masks were filled again

    @property
    def cut(self) -> bool:
        """True if it stopped at the token limit: every token is of one of these kinds or the end."""
        return self.tokens == self.free + self.copy + self.junk + self.filler


class RunTotal(Struct, frozen=True):
    """A count over all steps of a run.

    An estimate gives every other step the mean of the recorded ones; `low` and `high` give it their least and most.
    """

    value: int
    low: int
    high: int
    exact: bool  # all steps were recorded
    recorded_steps: int
    steps: int


class Setup(Struct, frozen=True):
    """Model, processor and settings of a run; None: a program of the user does not record it.

    `size` is of a preset with another size than its own; `weights` of a preset: trained or random.

    It has the settings of `ASKED` too.
    """

    label: str
    model: str
    family: str | None
    parameters: int | None
    tokenizer: str
    vocabulary: int | None
    logits_width: int | None
    processor: str | None
    placeholder: str | None
    sampling: str
    sampling_parameters: dict[str, Any]
    cache: str
    attention: str
    dtype: str | None
    device: str | None
    gpu: str | None
    batch_size: int
    max_new_tokens: int | None  # None: not known, or not one number
    seed: int | None
    torch: str
    transformers: str
    sorted: bool | None
    forced_runs: bool | None
    drop_finished: bool | None
    compile: str | None
    size: str | None = None
    weights: str | None = None
    threads: int | None = None  # that torch computed with
    processor_parameters: dict[str, Any] | None = None
    cannot_drop: str | None = None  # why finished rows cannot be dropped; None: they can, or not recorded
    declared_otherwise: dict[str, Any] | None = None  # by the model's generation config, and not done
    engine: str | None = None  # as asked for
    vllm: str | None = None  # its version
    arrivals: float | None = None  # requests per step of continuous batching; None: all at the start
    assistant: str | None = None
    speculative: str | None = None  # vLLM's config of drafts
    free_drafts: bool | None = None

    @property
    def random(self) -> bool:
        """True if the weights are random, so that tokens and drift mean nothing."""
        return self.weights == "random"

    @property
    def own_loop(self) -> bool:
        """True if another engine than transformers' `generate` ran."""
        return bool(self.forced_runs or self.drop_finished or self.assistant) or self.engine not in (
            None,
            AUTO,
            GENERATE,
        )

    @property
    def loop(self) -> str | None:
        """The forming of batches and the decoding in a few words."""
        if self.sorted is None:
            return None
        parts = ["sorted" if self.sorted else "input order"]
        parts += [f"engine {self.engine}"] if self.engine not in (None, AUTO, GENERATE, "forced") else []
        parts += [f"speculative {self.speculative}"] if self.speculative else []
        parts += [f"{self.arrivals:g} arrivals per step"] if self.arrivals else []
        parts += [f"assistant {self.assistant}{', free drafts' if self.free_drafts else ''}"] if self.assistant else []
        parts += ["forced runs"] if self.forced_runs else []
        parts += ["finished dropped"] if self.drop_finished else []
        parts += [f"compile {self.compile}"] if self.compile not in (None, "auto") else []
        return ", ".join(parts)


# Settings that a report holds as they were asked for, and that no code here reads by name: their keys, in `Setup` too.
ASKED = {row.recorded: row for row in SETTINGS.values() if row.reported and row.recorded not in Setup.__struct_fields__}
if not TYPE_CHECKING:
    _MORE = [(name, row.type | None, None) for name, row in ASKED.items()]
    Setup = defstruct("Setup", _MORE, bases=(Setup,), frozen=True, module=__name__)


class BatchShapes(Struct, frozen=True):
    """Shapes of a batch that decide the work of its forwards."""

    rows: tuple[int, ...]  # of the first step
    prompt_widths: tuple[int, ...]  # tokens, padding included
    steps: tuple[int, ...]


class MarkCost(Struct, frozen=True):
    """Time that marks of phases added to the timed passes."""

    mark_ns: float
    per_step: int
    time_ratio: float | None  # all of them over the wall time of a pass
    unmarked_wall_ns: int | None
    signature_ns: float | None  # of one signature inspection by transformers; a step has one per processor


class StepTime(Struct, frozen=True):
    """Steps at neighbouring positions (0: prefill) of all batches, each as its median over the timed passes."""

    first_step: int
    last_step: int
    steps: int
    median_ns: int
    low_ns: int  # 10th percentile
    high_ns: int  # 90th percentile


class StepPhase(Struct, frozen=True):
    """A phase step by step, each step as its median over the timed passes. Percentiles are by nearest rank."""

    phase: str
    steps: int
    p50_ns: int
    p90_ns: int | None  # None of fewer than 10 steps
    p99_ns: int | None  # None of fewer than 100 steps
    longest_ns: int


class Run(Struct, frozen=True):
    """A run that molprof captured."""

    setup: Setup
    wall_ns: PassTimes
    first_pass_extra_ns: int | None  # wall time of the first warm-up pass minus the median
    profiled_ratio: float | None  # wall time of the recorded steps, profiled over unprofiled
    marks: MarkCost
    molecules: int
    valid_molecules: int | None  # None if some were not checked (plain text, or recorded without RDKit)
    skipped: int  # input lines without a prompt
    batches: int
    steps: int  # of all batches, prefill included
    decode_steps: int  # those after the first of each batch
    generated_tokens: int
    row_steps: int  # rows that each step computed, summed
    idle_row_steps: int  # of these, finished rows and rows that only kept a batch's shape
    launches_per_token: float | None
    launches_per_step: float | None
    launches_per_molecule: float | None  # launches_per_step times steps over molecules: exact if all steps are recorded
    leaf_operators_per_token: float | None
    leaf_operators_per_step: float | None
    masked_logits: int | None
    blocks: int
    free_positions_per_block: float | None
    coordinate_tokens_per_block: float | None
    junk_tokens: int
    filler_tokens: int
    junk_blocks: int
    malformed_blocks: int
    cut_blocks: int | None  # malformed blocks that end at the token limit
    phases: dict[str, PhaseFigures]
    residual_ratio: float | None  # share of wall time outside any phase
    window: WindowFigures
    sequences: tuple[SequenceFigures, ...]
    repeats: tuple[RepeatFigures, ...]
    drift: Drift | None = None
    disagreement: ModelDisagreement | None = None
    needed_tokens: int | None = None  # in which the tokenizer writes all answers to plain text, end tokens aside
    step_times: tuple[StepTime, ...] = ()
    processor_once_ns: int | None = None  # making the processor, once before all passes, in none of their times
    peak_memory_bytes: int | None = None  # in the timed passes; `peak_memory_of` says which memory that is
    peak_memory_of: str | None = None
    totals: dict[str, RunTotal] | None = None  # launches and kernels, else leaf_operators; None where steps lack parts
    masked: MaskedLogits | None = (
        None  # summed over molecules; None without a processor, or where not every molecule was counted
    )
    forced: ForcedText | UnsetType = UNSET  # where the masks of every answer were looked at
    drafts: Drafts | None = None  # summed over prompts; None without an assistant
    session: Session | None = None  # None: the capture had one run
    shapes: BatchShapes | None = None
    machine: Machine | None = None  # None: not recorded
    step_phases: tuple[StepPhase, ...] | UnsetType = UNSET  # where the passes recorded them
    program: ProgramTotals | UnsetType = UNSET  # only of a program of one's own
    latency: dict[str, int | None] | UnsetType = UNSET  # where requests join a batch: means over the middle passes
    # constraint_ns, processor_parts_ns: see `Repeat` and `Timings`; of a step, the mean over the middle passes
    constraint_ns: dict[str, float] | UnsetType = UNSET
    processor_parts_ns: dict[str, int] | UnsetType = UNSET
    functions: SampledFunctions | UnsetType = UNSET  # of its processors, where they were sampled

    @property
    def of_molecules(self) -> bool:
        """True if it generated molecules; False for answers to plain prompts, which have no coordinates."""
        return not self.sequences or any(item.smiles is not None for item in self.sequences)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens of a row in a step before it ends: more than 1 with drafts, or where forced text is appended."""
        return per(self.generated_tokens, self.row_steps - self.idle_row_steps)

    @property
    def decode_ns(self) -> float:
        """The unprofiled time of decode steps, ns; 0 where there is none."""
        return sum(self.phases[name].wall_ns or 0 for name in STEP_PHASES) if self.decode_steps > 0 else 0

    @property
    def has_answers(self) -> bool:
        """True if the generated text is recorded: a user's own loop may mark steps alone."""
        return self.molecules > 0

    @property
    def has_processor(self) -> bool:
        """True if logits processors ran in their phase: its own, or those that `generate` makes of its arguments.

        The phase of any other run has no time but that of its marks.
        """
        return self.setup.processor is not None or bool(getattr(self.setup, "generate_args", None))

    @property
    def noun(self) -> str:
        """The noun for one of its sequences."""
        return "molecule" if self.of_molecules else "prompt"

    def per_molecule(self, column: str) -> float | None:
        """Return a column of the recorded steps per molecule: exact if all steps are recorded."""
        value = per(getattr(self.window, column), self.window.steps)
        return per(None if value is None else value * self.steps, self.molecules)

    @property
    def cut_answers(self) -> int:
        """Number of answers that stopped at the token limit."""
        if not isinstance(self.program, ProgramTotals):
            return sum(item.cut for item in self.sequences)
        return sum(item.tokens == self.setup.max_new_tokens for item in self.sequences if item.cut)
