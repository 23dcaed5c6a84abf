"""What a capture is asked to do, checked before any work. Imports no torch, so that `--help` stays quick."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from molprof.common.errors import UsageError
from molprof.profiler.models.architecture import ARCHITECTURES
from molprof.profiler.models.sizes import TRAINED, WEIGHTS, sized

PRESETS = tuple(ARCHITECTURES)
# `sdpa-*` keep torch to one of its scaled-dot-product kernels; the others are transformers' names.
ATTENTION = (
    "eager",
    "sdpa",
    "sdpa-math",
    "sdpa-flash",
    "sdpa-efficient",
    "sdpa-cudnn",
    "flash_attention_2",
    "flash_attention_3",
    "flex_attention",
)
DTYPES = ("auto", "float32", "bfloat16", "float16")
# transformers' names; the static ones have one shape, which a compiled forward needs.
KV_CACHES = ("dynamic", "static", "offloaded", "offloaded_static", "quantized")
STATIC_CACHES = ("static", "offloaded_static")
SAMPLING = ("greedy", "sample", "top_p", "top_k")
AUTO = "auto"
# torch's own seeds are of 64 bits, and each batch has one of its own.
MOST_SEED = 2**32 - 1
# Far more than any host has cores: a thread that cannot be started ends the process without a word.
MOST_THREADS = 1024
# `auto`: as transformers decides (a static cache on a GPU); `eager`: traced, not compiled; the others are the modes
# of torch.compile.
COMPILE = (AUTO, "off", "eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen.

    Attributes:
        sampling: `greedy`, or from the distribution: all of it (`sample`), `top_p`, or `top_k`.
        temperature: divides the logits where a token is sampled.
        top_p: mass kept by `top_p`; top_k: tokens kept by `top_k`.
        seed: every batch is seeded by it and by its number, so that each pass writes the same text.
    """

    sampling: str = "greedy"
    temperature: float = 1.0
    top_p: float = 0.9
    top_k: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("sampling", self.sampling, SAMPLING)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UsageError(
                f"--temperature {self.temperature} is not a number above 0",
                hint="--sampling greedy takes the top",
            )
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p} is not in (0, 1]", hint="0.9 keeps 90 % of the mass")
        at_least("--top-k", self.top_k, 1)
        at_least("--seed", self.seed, 0)
        at_most("--seed", self.seed, MOST_SEED)

    def parameters(self) -> dict[str, Any]:
        """What applies, by name."""
        if self.sampling == "greedy":
            return {}
        own = {"top_p": self.top_p} if self.sampling == "top_p" else {}
        own |= {"top_k": self.top_k} if self.sampling == "top_k" else {}
        return {"temperature": self.temperature, **own}


@dataclass(frozen=True)
class Loop:
    """How the tokens are computed. Nothing here changes which tokens greedy decoding writes.

    Attributes:
        sort: molecules of alike length share a batch; None: where a processor gives templates.
        forced_runs: tokens that are forced are appended by the forward of the token before them.
        drop_finished: rows that have ended leave the batch.
        compile: the compiled forward, one of `COMPILE`.
    """

    sort: bool | None = None
    forced_runs: bool = False
    drop_finished: bool = False
    compile: str = AUTO

    def __post_init__(self) -> None:
        one_of("compile", self.compile, COMPILE)
        if self.drop_finished and self.compile not in (AUTO, "off"):
            raise UsageError(
                f"rows that leave the batch change the shape that compile {self.compile!r} is made for",
                hint="leave out --drop-finished or --compile",
            )

    @property
    def own(self) -> bool:
        """True where molprof's own decoding loop runs, not transformers' `generate`."""
        return self.forced_runs or self.drop_finished


@dataclass(frozen=True)
class CaptureSettings:
    """One capture.

    Attributes:
        model: a preset (`qwen`, `llama`), a folder, or a hub id.
        output: the trace, `.json` or `.json.gz`.
        size: another size of a preset, see `sizes.sized`; None: its own.
        weights: `trained`, spread over that size, or `random`; of presets only.
        tokenizer: preset, folder or hub id; None: the model's own.
        processor: name, `package.module:factory`, `auto` (by tokenizer family), or None: unconstrained.
        smiles: file of molecules; None: those that come with molprof.
        prompts: file of plain-text prompts instead of molecules.
        count: how many of them; batch_size: how many are generated together.
        generations: times that each of them is generated.
        strict: refuse an unreadable molecule instead of skipping it.
        dtype: `auto` is bfloat16 on a GPU and float32 on a CPU.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        max_new_tokens: None: what the longest template of a batch needs.
        repeats: timed passes; warmup: passes before them.
        window: first and last step to record, of the first batch; None: 20 steps from step 20 on, or what
            there is.
        full: record all steps of all batches.
        disagreement: one more untimed pass, which records what the model would have chosen.
        force: replace an existing output.
        template_threads: threads that build templates; None: as `templates.default_threads` says.
        template_cache: keep the template of a molecule that comes again in the same pass.
        threads: CPU threads for torch; None leaves torch's own choice, one per core.
        command: the command line, for the manifest.
    """

    model: str
    output: Path
    size: str | None = None
    weights: str = TRAINED
    tokenizer: str | None = None
    processor: str | None = None
    smiles: Path | None = None
    prompts: Path | None = None
    count: int = 64
    batch_size: int = 32
    generations: int = 1
    strict: bool = False
    decoding: Decoding = field(default_factory=Decoding)
    loop: Loop = field(default_factory=Loop)
    attention: str = "sdpa"
    kv_cache: str = "dynamic"
    dtype: str = "auto"
    device: str = "auto"
    max_new_tokens: int | None = None
    repeats: int = 3
    warmup: int = 1
    window: tuple[int, int] | None = None
    full: bool = False
    disagreement: bool = False
    force: bool = False
    trust_remote_code: bool = False
    template_threads: int | None = None
    template_cache: bool = False
    threads: int | None = None
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.model:
            raise UsageError("no model is named", hint=f"use a preset ({', '.join(PRESETS)}), a folder, or a hub id")
        one_of("weights", self.weights, WEIGHTS)
        if self.size is not None:
            sized(self.model, self.size, self.weights)
        elif self.weights != TRAINED and self.model not in PRESETS:
            raise UsageError(
                f"weights {self.weights!r}: the model {self.model!r} has weights of its own",
                hint=f"random weights are for the presets: {', '.join(PRESETS)}",
            )
        if not self.output.name.endswith((".json", ".json.gz")):
            raise UsageError(f"{self.output} ends in neither .json nor .json.gz", hint="e.g. -o trace.json.gz")
        one_of("attention", self.attention, ATTENTION)
        one_of("kv-cache", self.kv_cache, KV_CACHES)
        one_of("dtype", self.dtype, DTYPES)
        if self.loop.own and self.kv_cache not in ("dynamic", "static"):
            raise UsageError(
                f"kv-cache {self.kv_cache!r} is transformers' own, which forced runs and dropped rows do without",
                hint="--kv-cache dynamic or static",
            )
        if self.loop.compile not in (AUTO, "off") and self.kv_cache not in STATIC_CACHES:
            raise UsageError(
                f"compile {self.loop.compile!r} needs a cache of fixed shape, not {self.kv_cache!r}",
                hint="--kv-cache static",
            )
        for name, value, least in (
            ("-n", self.count, 1),
            ("--batch-size", self.batch_size, 1),
            ("--repeats", self.repeats, 1),
            ("--warmup", self.warmup, 0),
            ("--generations", self.generations, 1),
            ("--template-threads", 1 if self.template_threads is None else self.template_threads, 1),
            ("--threads", 1 if self.threads is None else self.threads, 1),
            ("--max-new-tokens", 1 if self.max_new_tokens is None else self.max_new_tokens, 1),
        ):
            at_least(name, value, least)
        at_most("--threads", 1 if self.threads is None else self.threads, MOST_THREADS)
        if self.processor == "":
            raise UsageError("no processor is named", hint="leave out --processor for none; molprof presets lists them")
        if self.disagreement and self.processor is None:
            raise UsageError(
                "disagreement is between the model and a logits processor, and this run has none",
                hint="--lp or --processor NAME",
            )
        if self.prompts is not None:
            if self.smiles is not None:
                raise UsageError("molecules and plain-text prompts exclude each other", hint="leave one of them out")
            if self.max_new_tokens is None:
                raise UsageError("plain-text prompts have no template to bound their answers", "--max-new-tokens N")
        if self.window is not None:
            first, last = self.window
            if self.full:
                raise UsageError("a window and a full recording exclude each other", hint="leave one of them out")
            if not 0 <= first <= last:
                raise UsageError(
                    f"the window {first}:{last} is not FIRST:LAST with 0 <= FIRST <= LAST",
                    hint="e.g. --window 20:39",
                )


def one_of(name: str, value: str, accepted: tuple[str, ...]) -> None:
    """Raises UsageError where `value` is none of `accepted`."""
    if value not in accepted:
        raise UsageError(f"no {name} {value!r}", hint=f"use one of: {', '.join(accepted)}")


def at_least(name: str, value: int, least: int) -> None:
    """Raises UsageError where `value` is below `least`."""
    if value < least:
        raise UsageError(f"{name} {value} is below {least}", hint=f"{name}: a whole number from {least} on")


def at_most(name: str, value: int, most: int) -> None:
    """Raises UsageError where `value` is above `most`."""
    if value > most:
        raise UsageError(f"{name} {value} is above {most}", hint=f"{name}: a whole number up to {most}")
