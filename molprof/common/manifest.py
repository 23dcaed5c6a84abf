"""The run manifest: what `molprof capture` stores with the events. The profiler writes it, the analysis reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from statistics import median
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field, to_builtins

from molprof.common.drafts import Drafts, MaskFills
from molprof.common.errors import TraceError
from molprof.common.measured import MeasuredRun
from molprof.common.paired import PairedRuns
from molprof.common.sampled import SampledFunctions
from molprof.common.settings import CaptureSettings
from molprof.common.typed_json import read_typed
from molprof.common.values import percent_text

SCHEMA = 2
KEY = "molprof"
# In place of the manifest, in the trace of a capture that failed: `problem`, `processor`, `command`.
INCOMPLETE_KEY = "molprof_incomplete"
# Beside the manifest, or alone, in a part of another trace: a `Trimmed`.
TRIMMED_KEY = "molprof_trimmed"
# The phases of a run, in the order in which they occur.
# Before the first step of a batch; `compile` makes the processor of the batch, such as its grammar; `setup` is
# `generate` before the step: checks, KV cache.
SETUP_PHASES = ("template", "compile", "tokenize", "setup")
# Of each decode step. The first step of a batch has `prefill` in place of `forward`.
STEP_PHASES = ("forward", "processor", "sampling", "bookkeeping")
# `text` moves the answer to the host and decodes it.
PHASES = (*SETUP_PHASES, "prefill", *STEP_PHASES, "text")
# What a program of one's own does between its batches; no run of `molprof capture` has it.
BETWEEN = "between"
CHOICE_LETTERS = {"copy": "c", "free": "f", "open": "o"}
KIND_LETTERS = {"free": "f", "copy": "c", "junk": "j", "filler": "l", "eos": "e"}
# From these on, on the median over the timed passes, times are in doubt.
BUSY_CORES = 0.25
_STEAL_RATIO = 0.02
_THROTTLED_RATIO = 0.01


class Environment(Struct, frozen=True):
    """Hardware and software of the run; None: there is no such part."""

    gpu: str | None
    gpu_memory_bytes: int | None
    driver: str | None
    cuda: str | None
    cudnn: str | None
    torch: str
    transformers: str
    flash_attn: str | None
    molprof: str
    python: str
    platform: str
    cpu: str
    cores: int
    threads: int
    wait_policy: str | None = None  # of OpenMP: threads that wait for each other sleep (`passive`) or spin
    vllm: str | None = None  # of a run by vLLM


class Resolved(Struct, frozen=True):
    """Facts known only after loading: the model, and the values used for `auto` and missing settings.

    None: a program of one's own does not tell.
    """

    family: str | None  # transformers `model_type`
    parameters: int | None  # parameters, tied weights once
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    logits_width: int | None  # columns of the logits, padding included
    vocabulary: int | None  # tokens of the tokenizer, added ones included
    dtype: str | None  # dtype, device: as used
    device: str | None
    max_new_tokens: int | None  # the most tokens that any sequence could get
    processor: str | None  # name of the studied logits processor, None without one
    processor_parameters: dict[str, Any]  # its parameters by name
    placeholder: str | None  # the coordinate placeholder of the templates, None without a processor
    sorted: bool | None = None  # batches were cut by length, longest first; None if not recorded
    weights: str | None = None  # of a preset `trained` or `random`; None: of another model, or not recorded
    head_dim: int | None = None  # head_dim, mlp: width of a head and of the feed-forward part; None if not recorded
    mlp: int | None = None
    # how often molprof's own decoding loop read chosen tokens back in one pass; None in `generate`
    host_reads: int | None = None
    template_threads: int | None = None  # threads that built templates; None without a processor
    cannot_drop: str | None = None  # why finished rows cannot be dropped; None: they can, or not recorded
    # what the model's generation config declares and the run did not do, by name
    declared_otherwise: dict[str, Any] = field(default_factory=dict)
    # settings that the trace does not hold, so that their values are mere defaults
    not_recorded: list[str] = field(default_factory=list)


class Repeat(Struct, frozen=True):
    """One unprofiled, synchronized pass over all molecules."""

    wall_ns: int  # from before the first batch's templates to after the last batch's text, device synchronized
    phases_ns: dict[str, int]  # host time per phase of `PHASES` or `BETWEEN`, summed over batches and steps
    steps_ns: list[list[int]]  # wall time of each step, batch after batch (step 0 of a batch is its prefill step)
    # compiles, compile_ns: frames that torch.compile compiled during the pass, and the time in that; None if not
    # recorded
    compiles: int | None = None
    compile_ns: int | None = None
    # time of each phase of `STEP_PHASES` and `prefill` in each step that has it, batch after batch; of a program of
    # one's own without the steps under the profiler. Empty if not recorded
    step_phases_ns: dict[str, list[list[int]]] = field(default_factory=dict)
    draft_ns: int | None = None  # host time of drafting, of vLLM in bookkeeping, else in forwards; None without drafts
    mask_fills: MaskFills | UnsetType = UNSET  # in the phase `processor`; unset where they were not counted
    # host time of a constraint engine's calls in the phase `processor`, summed over steps: to `read` the chosen tokens
    # (on a GPU, waiting for the forward too), `accept` them, `fill` masks, `apply` them. Empty if not recorded
    constraint_ns: dict[str, int] = field(default_factory=dict)


class Timings(Struct, frozen=True):
    """Unprofiled timings, and the profiler's overhead."""

    warmup_ns: list[int]  # wall time of each warm-up pass, without that of counting masked logits and of checks
    repeats: list[Repeat]  # the timed passes, in order
    mark_ns: float  # measured cost of one host timestamp; a step takes four
    unmarked_wall_ns: int | None  # wall time of a timed pass without phase timestamps, None if not measured
    profiled_steps_ns: int  # wall time of the recorded steps in the recorded pass
    unprofiled_steps_ns: int  # median over repeats of the wall time of the same steps
    # measured cost of one signature inspection, which transformers makes before it calls a logits processor; the
    # `processor` phase of a step holds one per studied processor and one more. None if not measured
    signature_ns: float | None = None
    processor_once_ns: int | None = None  # making the processor, once before all passes; None without one
    # its parts: `package` (the import), `vocabulary`, `constraint`; empty if not recorded. What another run of the same
    # process made before has the time that it took there
    processor_parts_ns: dict[str, int] = field(default_factory=dict)
    profiled_wall_ns: int | None = None  # wall time of the recorded pass if it recorded everything, else None
    # warmup_compiles, warmup_compile_ns: frames that torch compiled during each warm-up pass, and the time in that;
    # None if not recorded
    warmup_compiles: list[int | None] | None = None
    warmup_compile_ns: list[int | None] | None = None
    load_ns: int | None = None  # loading the model; None if not recorded, as the next two
    kv_cache_bytes: int | None = None  # the most of transformers' KV cache before a forward of a warm-up pass
    graph_breaks: int | None = None  # where torch.compile ended a graph, in all passes; 0 without compiling
    # peak_memory_bytes, peak_memory_of: the most memory in the timed passes, and which memory that is
    peak_memory_bytes: int | None = None
    peak_memory_of: str | None = None


class Window(Struct, frozen=True):
    """The recorded decode steps: of one batch, or all of all batches."""

    full: bool
    batch: int
    first_step: int
    last_step: int


class Session(Struct, frozen=True):
    """A capture of several runs with interleaved timed passes: each round has one pass per run, in random order.

    Two runs of one session are compared round by round.
    """

    id: str  # the same in all traces of the capture
    seed: int  # of the order
    run: str = ""  # name of this run
    others: list[str] = field(default_factory=list)  # names of the others
    rounds: list[int] = field(default_factory=list)  # by timed pass, its round, from 0
    places: list[int] = field(default_factory=list)  # by timed pass, its place in the round, from 0
    # Those of the runs that differ in the processor alone, this one included
    measured: list[MeasuredRun] | UnsetType = UNSET


class TemplateCounts(Struct, frozen=True):
    """Sizes of one molecule's position template: tokens, FREE ones, blocks, FREE positions of each block."""

    tokens: int
    free: int
    blocks: int
    free_per_block: list[int]


class Disagreement(Struct, frozen=True):
    """The model's own choice at each generated token, from an untimed pass."""

    # of the written token, in the softmax over all logits that reach the processor, with six digits
    probabilities: list[float]
    ranks: list[int]  # how many tokens the model preferred to it; 0 is its first choice
    choices: str  # one letter per token: c(opy), all other tokens were forbidden; f(ree), some were; o(pen), none was
    forbidden: str  # one digit per token: 1 if the model's first choice was forbidden, else 0
    # of all tokens that were forbidden, with six digits; None if not recorded, as `unlike`
    removed: list[float] | None = None
    unlike: str | None = None  # one digit per token: 1 if the tokenizer cuts the answer's text otherwise there, else 0


class MaskedLogits(Struct, frozen=True):
    """Masked logits of one prompt, counted by molprof in an untimed pass, by the kind of the row's position.

    Their logits are -inf, or so far below the largest that their probability is 0 in float32.
    """

    free: int  # at choices that left more than one token
    copy: int  # at choices that left one, but the end token
    end: int  # at the choice of the end token, if nothing else was left
    idle: int  # after the row's end
    free_choices: int  # choices that left more than one token
    own: int | None  # what the processor counted itself in this pass; None if it does not count

    @property
    def total(self) -> int:
        """The masked logits of all kinds of positions."""
        return self.free + self.copy + self.end + self.idle


class SequenceRun(Struct, frozen=True):
    """One prompt and its answer. Fields that only molecules have are None, 0 or -1 for other prompts."""

    sequence: int  # number in the run, from 0, in the order of the input; `batch` and `row` say where it ran
    batch: int
    row: int
    smiles: str | None  # canonical SMILES; None for a plain-text prompt
    prompt: str
    prompt_tokens: int  # tokens of the prompt, padding excluded
    token_ids: list[int]  # generated tokens, with the end token, without padding
    kinds: str  # one letter per token: f(ree) c(opy) j(unk) l(filler) e(os)
    blocks: list[int]  # coordinate block of each token, -1 outside
    text: str  # the generated text without special end tokens
    valid: bool | None = None  # None if there is nothing to check against, or if it was not checked (`unchecked`)
    problem: str | None = None  # why it is not valid, None if it is or if `valid` is None
    malformed_blocks: int = 0  # blocks that do not begin with three decimal numbers
    masked_logits: int | None = None  # tokens made impossible for this row, over all steps; None without a processor
    template: TemplateCounts | None = None  # None without a processor, or if it does not fix the length of the answer
    cut_blocks: int | None = None  # malformed blocks, 0 or 1, that the bound on tokens cut short; None: not recorded
    # tokens that the coordinates of each block need; the least, of a malformed block that can become `x,y,z`; None of
    # other malformed blocks and of one that was never closed. None if not recorded
    needed_per_block: list[int | None] | None = None
    disagreement: Disagreement | None = None  # None if not recorded
    # tokens that each step of its batch appended, until the row ended; 0 before it joined. None: one in each
    step_tokens: list[int] | None = None
    masked: MaskedLogits | None = None  # `masked_logits` by kind; None without a processor, or if not recorded
    forced: str | None = None  # of each token 1 where the mask left no other, else 0; None where `masked` is
    stood: str | None = None  # of each token a letter of `STOOD`; None where no engine's own masks were filled again
    drafts: Drafts | None = None  # None without an assistant
    joined: int | None = None  # of a request that joined its batch, the step that computed it first; else None
    arrived: int | None = None  # the step before which it arrived; None or 0: when its batch began
    needed_tokens: int | None = None  # in which the tokenizer writes `text`; None of a molecule, or if not recorded

    @property
    def unchecked(self) -> bool:
        """True if recording lacked RDKit, without which a skeleton other than the prompt's cannot be judged."""
        return self.smiles is not None and self.valid is None

    @property
    def busy_steps(self) -> int:
        """Steps from joining the batch, or from its first token, to its end."""
        counts = [1] * len(self.token_ids) if self.step_tokens is None else self.step_tokens
        first = next((index for index, count in enumerate(counts) if count), 0) if self.joined is None else self.joined
        return len(counts) - first


class ProcessorCalls(Struct, frozen=True):
    """A logits processor of the user's program."""

    name: str  # of its class
    place: int  # among the processors of a step
    own: bool  # the program gave it; else transformers made it of arguments or the generation config
    batches: int  # calls of `generate` that had it
    # unprofiled: host time of its calls, and the steps in which it was timed; None: its time is within a phase
    time_ns: int | None = None
    steps: int | None = None


class Skipped(Struct, frozen=True):
    """A part of the input that made no prompt."""

    line: int
    text: str
    problem: str
    place: str = "line"  # what `line` counts: line, row or entry


class MachineSpan(Struct, frozen=True):
    """A span of time; None: the machine does not report it."""

    wall_ns: int
    other_cores: float | None = None  # of the cores that the run may use, those that other programs kept busy
    steal_ratio: float | None = None  # of the time of these cores, what a hypervisor gave to other machines
    throttled_ratio: float | None = None  # of the wall time, what the control group had used up its share
    waiting_ratio: float | None = None  # of the wall time, in which some program of the machine waited for a core
    mhz: float | None = None  # mean clock of these cores at the end
    gpu_mhz: float | None = None  # clock of the GPU at the end
    gpu_slowed: list[str] = field(default_factory=list)  # why the driver held the clock down at the end
    gpu_others: int | None = None  # other processes on the GPU at the end


class Machine(Struct, frozen=True):
    """The machine before the timed passes and during each of them."""

    cores: int  # that the run may use
    before: MachineSpan | None
    passes: list[MachineSpan]

    def doubts(self) -> tuple[str, ...]:
        """Return the reasons to doubt the times of the timed passes."""
        return tuple(self._doubts())

    def _doubts(self) -> Iterator[str]:
        if (other := self._median("other_cores")) >= BUSY_CORES:
            yield f"other programs kept {other:.1f} of {self.cores} cores busy"
        if (steal := self._median("steal_ratio")) >= _STEAL_RATIO:
            yield f"the hypervisor gave {percent_text(steal)} of the cores' time to other machines"
        if (throttled := self._median("throttled_ratio")) >= _THROTTLED_RATIO:
            yield f"the control group was out of its share of CPU time for {percent_text(throttled)} of the time"
        if reasons := sorted({reason for span in self.passes for reason in span.gpu_slowed}):
            yield f"the GPU's clock was held down ({', '.join(reasons)})"
        if others := max((span.gpu_others or 0 for span in self.passes), default=0):
            yield f"{others} other process{'' if others == 1 else 'es'} on the GPU"

    def _median(self, name: str) -> float:
        values: list[float] = [value for span in self.passes if (value := getattr(span, name)) is not None]
        return median(values) if values else 0.0


class ProgramTotals(Struct, frozen=True):
    """Totals of a user's program, without molprof's own work."""

    # before_ns, after_ns, own_ns: None where all was recorded, so that nothing is timed
    before_ns: int | None = None  # before its first batch
    after_ns: int | None = None  # after its last one
    own_ns: int | None = None  # molprof's own work meanwhile: starting and stopping the profiler, reading tokens
    missed: int = 0  # calls of `generate` in other threads while one was recorded
    # steps that ran under the profiler, and so count with the median time of the others
    estimated_steps: int = 0
    processors: list[ProcessorCalls] = field(default_factory=list)
    switched_off: list[str] | UnsetType = UNSET  # of a run without its logits processors: what was switched off
    paired: PairedRuns | UnsetType = UNSET  # of a program that ran several times, beside runs without


class Manifest(Struct, frozen=True):
    """Everything about a run that is not an event."""

    schema: int
    created: str
    command: list[str]
    environment: Environment
    settings: CaptureSettings
    resolved: Resolved
    timings: Timings
    window: Window
    steps_per_batch: list[int]
    molecules: list[SequenceRun]
    skipped: list[Skipped]
    # by batch, the rows that each step computed; None: one per molecule in every step
    rows_per_step: list[list[int]] | None = None
    session: Session | None = None  # None: the capture had one run
    machine: Machine | None = None  # what else it did; None: not recorded
    # how the passes contradict each other, so that figures of one are not those of another: one line each
    problems: list[str] = field(default_factory=list)
    program: ProgramTotals | UnsetType = UNSET  # only of a program of one's own
    functions: SampledFunctions | UnsetType = UNSET  # of its processors; only where they were sampled

    def setting(self, name: str) -> Any:
        """Return a setting by name; None if not recorded."""
        return None if name in self.resolved.not_recorded else getattr(self.settings, name)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as it is written to JSON."""
        fields: dict[str, Any] = to_builtins(self)
        return fields


class Trimmed(Struct, frozen=True):
    """The kept part of another trace; None and empty lists: all."""

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
        """Return it as text, for a report."""
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
    """Return the record of a trim; None where the trace is not trimmed."""
    return None if raw is None else read_typed(raw, Trimmed, TRIMMED_KEY)


def from_json(raw: Any) -> Manifest:
    """Return the manifest of a trace's JSON. Raises TraceError."""
    if not isinstance(raw, dict) or not isinstance(raw.get("schema"), int):
        raise TraceError("the trace's 'molprof' key holds no manifest (no integer 'schema')")
    if raw["schema"] > SCHEMA:
        raise TraceError(
            f"the trace was written with manifest schema {raw['schema']}; this molprof reads up to {SCHEMA}",
            hint="pip install --upgrade molprof",
        )
    return read_typed(raw if raw["schema"] > 1 else _from_schema_1(raw), Manifest, "manifest")


def _from_schema_1(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of schema 1, whose `model` and `generation` hold settings and results, as one of schema 2."""
    model = read_typed(raw.get("model"), dict[str, Any], "manifest: model")
    generation = read_typed(raw.get("generation"), dict[str, Any], "manifest: generation")
    resolved = {**generation, **model}
    parameters = read_typed(generation.get("sampling_parameters") or {}, dict[str, Any], "manifest: generation")
    values = {**resolved, **parameters, "model": model.get("name"), "kv_cache": generation.get("cache")}
    for name in ("max_new_tokens", "template_threads", "placeholder"):  # only what they became
        values.pop(name, None)
    if generation.get("sorted") is not None:
        values["sort"] = generation["sorted"]
    if values.get("tokenizer") == values["model"]:
        values["tokenizer"] = None
    if values.get("sampling") == "sample":
        values["sampling"] = next((name for name in ("top_p", "top_k") if name in parameters), "sample")
    settings = {name: value for name, value in values.items() if value is not None}
    not_recorded = [
        item.name
        for item in fields(CaptureSettings)
        if item.name not in settings and (item.default is not None or item.name not in values)
    ]
    return {**raw, "settings": settings, "resolved": {**resolved, "not_recorded": not_recorded}}
