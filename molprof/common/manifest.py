"""The run manifest's schema: what `molprof capture` stores beside the events. Standard library only.

Both sides import this module: the profiler writes a `Manifest`, the analysis reads one.
"""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from molprof.common.errors import TraceError

SCHEMA = 1
KEY = "molprof"
# Instead of the manifest, in what was recorded until a capture failed: `problem`, `processor`, `command`.
INCOMPLETE_KEY = "molprof_incomplete"
# Beside the manifest, or alone, in what was cut out of another trace: a `Trimmed`.
TRIMMED_KEY = "molprof_trimmed"
KINDS = ("free", "copy", "junk", "filler", "eos")
# `setup` is `generate` before the first step (checks, KV cache); `text` moves the answer to the host and
# decodes it.
# Host timestamps that the timed passes take in each step: where forward, processor, sampling and bookkeeping begin.
MARKS_PER_STEP = 4
PHASES = (
    "template",
    "tokenize",
    "setup",
    "prefill",
    "forward",
    "processor",
    "sampling",
    "bookkeeping",
    "text",
)


@dataclass(frozen=True)
class Environment:
    """Hardware and software of the run; None where the thing does not exist there."""

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


@dataclass(frozen=True)
class Model:
    """What generated.

    Attributes:
        name: preset, path or hub id, as given.
        family: transformers `model_type`.
        parameters: parameters, tied weights once.
        logits_width: columns of the logits, padding included.
        vocabulary: tokens of the tokenizer, added ones included.
        dtype, device, attention: as used.
        size: of a preset that was not run at its own size, as asked for; None: its own, or not recorded.
        weights: of a preset `trained` or `random`; None: of another model, or not recorded.
        head_dim, mlp: width of a head and of the feed-forward part; None if not recorded.
    """

    name: str
    family: str
    parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    logits_width: int
    tokenizer: str
    vocabulary: int
    dtype: str
    device: str
    attention: str
    size: str | None = None
    weights: str | None = None
    head_dim: int | None = None
    mlp: int | None = None


@dataclass(frozen=True)
class Generation:
    """How tokens were chosen.

    Attributes:
        processor: name of the studied logits processor, None without one.
        processor_parameters: its parameters by name.
        placeholder: the coordinate placeholder of the templates, None without a processor.
        sampling: `greedy` or `sample`.
        sampling_parameters: temperature, top_p, top_k where they apply.
        cache: KV cache implementation.
        max_new_tokens: the most tokens that any sequence could get.
        sorted: batches were cut by length, longest first; None if not recorded.
        forced_runs: forced tokens were fed with the token before them; drop_finished: rows that had ended left
            the batch. Either means molprof's own decoding loop. None if not recorded.
        compile: as asked by `--compile`; None if not recorded.
        host_reads: times that the own loop read chosen tokens back in one pass; None in `generate`.
        generations: times that each prompt was generated.
        template_threads: threads that built templates; None without a processor.
        template_cache: whether a prompt that came again kept its template; None without a processor.
    """

    processor: str | None
    processor_parameters: dict[str, Any]
    placeholder: str | None
    sampling: str
    sampling_parameters: dict[str, Any]
    cache: str
    batch_size: int
    seed: int
    max_new_tokens: int
    sorted: bool | None = None
    forced_runs: bool | None = None
    drop_finished: bool | None = None
    compile: str | None = None
    host_reads: int | None = None
    generations: int = 1
    template_threads: int | None = None
    template_cache: bool | None = None


@dataclass(frozen=True)
class Repeat:
    """One unprofiled, synchronized pass over all molecules.

    Attributes:
        wall_ns: from before the first batch's templates to after the last batch's text, device synchronized.
        phases_ns: host time per phase of `PHASES`, summed over batches and steps.
        steps_ns: wall time of each step, batch after batch (step 0 of a batch is its prefill step).
        compiles: frames that torch.compile compiled during the pass, first or again; None if not recorded.
        compile_ns: time in that; None as above.
    """

    wall_ns: int
    phases_ns: dict[str, int]
    steps_ns: list[list[int]]
    compiles: int | None = None
    compile_ns: int | None = None


@dataclass(frozen=True)
class Timings:
    """Unprofiled timings, and what the profiler cost.

    Attributes:
        warmup_ns: wall time of each warm-up pass.
        repeats: the timed passes, in order.
        mark_ns: measured cost of one host timestamp; a step takes four.
        unmarked_wall_ns: wall time of a timed pass without any marks, None if not measured.
        profiled_steps_ns: wall time of the recorded steps in the profiled pass.
        unprofiled_steps_ns: median over repeats of the wall time of the same steps.
        signature_ns: measured cost of one signature inspection, which transformers makes before it calls a
            logits processor; a step's `processor` phase holds one per studied processor and one more. None
            if not measured.
        profiled_wall_ns: wall time of the profiled pass where it recorded everything, else None.
        warmup_compiles: frames that torch compiled during each warm-up pass; warmup_compile_ns: the part of its
            wall time that took. None if not recorded.
    """

    warmup_ns: list[int]
    repeats: list[Repeat]
    mark_ns: float
    unmarked_wall_ns: int | None
    profiled_steps_ns: int
    unprofiled_steps_ns: int
    signature_ns: float | None = None
    profiled_wall_ns: int | None = None
    warmup_compiles: list[int | None] | None = None
    warmup_compile_ns: list[int | None] | None = None


@dataclass(frozen=True)
class Window:
    """The recorded decode steps: of one batch, or all of all batches."""

    full: bool
    batch: int
    first_step: int
    last_step: int


@dataclass(frozen=True)
class TemplateCounts:
    """Sizes of one molecule's position template: tokens, FREE ones, blocks, FREE positions of each block."""

    tokens: int
    free: int
    blocks: int
    free_per_block: list[int]


@dataclass(frozen=True)
class Disagreement:
    """What the model gave each generated token before the processor's masks, from an untimed pass.

    Attributes:
        probabilities: of the token that was written, in the softmax over all logits that reach the processor,
            rounded to six significant digits.
        ranks: how many tokens the model gave more than that one; 0 is its first choice.
        choices: one letter per token: c(opy), all other tokens were forbidden; f(ree), some were; o(pen), none was.
        forbidden: one digit per token: 1 where the model's first choice was forbidden, else 0.
    """

    probabilities: list[float]
    ranks: list[int]
    choices: str
    forbidden: str


@dataclass(frozen=True)
class MoleculeRun:
    """One prompt and what came of it.

    Attributes:
        sequence: number in the run, from 0, in the order of the input; `batch` and `row` say where it ran.
        smiles: canonical SMILES; None for a plain-text prompt.
        prompt_tokens: tokens of the prompt, padding excluded.
        token_ids: generated tokens, EOS included, padding after it not.
        kinds: one letter per token: f(ree) c(opy) j(unk) l(filler) e(os).
        blocks: coordinate block of each token, -1 outside.
        text: the generated text without special end tokens.
        valid: None where there is nothing to check against.
        problem: why it is not valid, None where it is.
        malformed_blocks: blocks that do not begin with three decimal numbers.
        masked_logits: logits set to -inf for this row, all its row-steps together; None without a processor.
        template: None without a processor, and with one that does not fix the answer's length.
        cut_blocks: malformed blocks, 0 or 1, that the bound on new tokens cut short; None where not recorded.
        needed_per_block: tokens that the coordinates of each block need, at least so many of a malformed one that
            can become `x,y,z`; None of any other and of one that was never closed. None if not recorded.
        disagreement: what the model would have chosen, None if not recorded.
        step_tokens: tokens that each step of its batch appended, until it ended; None: one in each.
    """

    sequence: int
    batch: int
    row: int
    smiles: str | None
    prompt: str
    prompt_tokens: int
    token_ids: list[int]
    kinds: str
    blocks: list[int]
    text: str
    valid: bool | None
    problem: str | None
    malformed_blocks: int
    masked_logits: int | None
    template: TemplateCounts | None
    cut_blocks: int | None = None
    needed_per_block: list[int | None] | None = None
    disagreement: Disagreement | None = None
    step_tokens: list[int] | None = None

    @property
    def busy_steps(self) -> int:
        """Steps until it ended."""
        return len(self.token_ids if self.step_tokens is None else self.step_tokens)


@dataclass(frozen=True)
class Skipped:
    """An input line that gave no prompt."""

    line: int
    text: str
    problem: str


@dataclass(frozen=True)
class Manifest:
    """Everything about a run that is not an event.

    Attributes:
        rows_per_step: per batch, the rows that each step computed; None: one per molecule in every step.
    """

    schema: int
    created: str
    command: list[str]
    environment: Environment
    model: Model
    generation: Generation
    timings: Timings
    window: Window
    steps_per_batch: list[int]
    molecules: list[MoleculeRun]
    skipped: list[Skipped]
    rows_per_step: list[list[int]] | None = None

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON-ready dicts and lists."""
        return asdict(self)


@dataclass(frozen=True)
class Trimmed:
    """What was kept of another trace; None and empty lists: all.

    Attributes:
        source: name of the file that it was cut out of.
        whole_steps: the kept steps are whole, so that figures per step, phase and token are what they were.
        batch: the batch of steps that molprof recorded.
        first_step, last_step: numbers of the first and the last step.
        phases: names of phases. categories: categories that were kept; without: those left out.
        start_ns, end_ns: times from the earliest event of the source.
    """

    source: str
    whole_steps: bool
    batch: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    phases: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    start_ns: int | None = None
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
    """What the key TRIMMED_KEY of a trace says; None without one.

    Raises:
        TraceError: it says nothing of the kind.
    """
    found: Trimmed | None = None if raw is None else _read(Trimmed, raw, TRIMMED_KEY)
    return found


CHOICE_LETTERS = {"copy": "c", "free": "f", "open": "o"}
KIND_LETTERS = {"free": "f", "copy": "c", "junk": "j", "filler": "l", "eos": "e"}
_T = TypeVar("_T")


def from_json(raw: Any) -> Manifest:
    """The manifest of a trace.

    Raises:
        TraceError: a newer schema, or not a manifest.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("schema"), int):
        raise TraceError("the trace's 'molprof' key holds no manifest (no integer 'schema')")
    if raw["schema"] > SCHEMA:
        raise TraceError(
            f"the trace was written with manifest schema {raw['schema']}; this molprof reads up to {SCHEMA}",
            hint="pip install --upgrade molprof",
        )
    manifest: Manifest = _read(Manifest, raw, KEY)
    return manifest


def _read(kind: Any, raw: Any, where: str) -> Any:
    """`raw` as `kind`, every field checked by its annotation; unknown keys are left out."""
    origin = typing.get_origin(kind)
    if kind is Any:
        return raw
    if origin in (types.UnionType, typing.Union):
        options = typing.get_args(kind)
        if raw is None and type(None) in options:
            return None
        return _read(next(option for option in options if option is not type(None)), raw, where)
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(raw, dict):
            raise TraceError(f"manifest: {where} is {type(raw).__name__}, expected an object")
        hints = typing.get_type_hints(kind)
        needed = [item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING]
        missing = [name for name in needed if name not in raw]
        if missing:
            raise TraceError(f"manifest: {where} lacks {', '.join(missing)}")
        return kind(**{name: _read(hints[name], raw[name], f"{where}.{name}") for name in hints if name in raw})
    if origin is list:
        if not isinstance(raw, list):
            raise TraceError(f"manifest: {where} is {type(raw).__name__}, expected a list")
        (inner,) = typing.get_args(kind)
        return [_read(inner, item, f"{where}[{index}]") for index, item in enumerate(raw)]
    if origin is dict:
        if not isinstance(raw, dict):
            raise TraceError(f"manifest: {where} is {type(raw).__name__}, expected an object")
        _, inner = typing.get_args(kind)
        return {str(key): _read(inner, item, f"{where}.{key}") for key, item in raw.items()}
    if kind is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if not isinstance(raw, kind) or (kind is int and isinstance(raw, bool)):
        raise TraceError(f"manifest: {where} is {raw!r}, expected {kind.__name__}")
    return raw
