"""The run manifest: what `molprof capture` stores beside the events. The profiler writes it, the analysis reads it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from molprof.common.errors import TraceError
from molprof.common.molecule_records import MoleculeRun, Skipped
from molprof.common.typed_json import read_typed

SCHEMA = 1
KEY = "molprof"
# Instead of the manifest, in what was recorded until a capture failed: `problem`, `processor`, `command`.
INCOMPLETE_KEY = "molprof_incomplete"


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
    return read_typed(raw, Manifest, "manifest")
