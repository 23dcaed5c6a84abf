"""What a capture is asked to do: the options of `molprof capture` by name. Standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from molprof.common.errors import UsageError
from molprof.common.text_format import ANSWER, PROMPT, TextFormat

AUTO = "auto"
# What --lp constrains with, whatever the tokenizer, so that runs of two models differ in the tokenizer alone.
LP_PROCESSOR = "generic"
_NUMBER = r"-?[0-9]+\.[0-9]+"
_PLACEHOLDER = re.compile(rf"{_NUMBER},{_NUMBER},{_NUMBER}")
TRAINED, RANDOM = "trained", "random"
WEIGHTS = (TRAINED, RANDOM)
# They restrict torch to one of its scaled-dot-product kernels; the names of `ATTENTION` are transformers'.
_SDPA = ("sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn")
ATTENTION = ("eager", "sdpa", *_SDPA, "flash_attention_2", "flash_attention_3", "flex_attention")
DTYPES = (AUTO, "float32", "bfloat16", "float16")
# transformers' names. Static caches have one shape, which a compiled forward needs.
KV_CACHES = ("dynamic", "static", "offloaded", "offloaded_static", "quantized")
STATIC_CACHES = ("static", "offloaded_static")
SAMPLING = ("greedy", "sample", "top_p", "top_k")
# `auto`: transformers decides (it compiles with a static cache on a GPU). `eager`: traced, not compiled. The others
# are modes of torch.compile.
COMPILE = (AUTO, "off", "eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# torch's seeds have 64 bits, and each batch adds its number.
MOST_SEED = 2**32 - 1
# A thread that cannot be started ends the process without a message.
MOST_THREADS = 1024
# Of molecules, rows, passes and tokens: more is a slip of the keyboard.
MOST_NUMBER = 1_000_000
# Help of the options that captures and benchmarks share.
HELP = {
    "tf32": "Multiply float32 matrices in TF32.",
    "cudnn_benchmark": "Let cuDNN try out its kernels.",
    "padding_multiple": "Pad prompts to a multiple of N tokens.",
    "max_cache_length": "Give a static KV cache room for N tokens.",
}
_TF32_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class CaptureSettings:
    """One capture: the options of `molprof capture` by name, whose help describes them. Checks what needs no device."""

    model: str
    size: str | None = None  # see `sizes.sized`; None: the preset's own
    weights: str = TRAINED
    tokenizer: str | None = None
    processor: str | None = None  # name, `package.module:factory`, `auto` (that of --lp), or None: unconstrained
    placeholder: str | None = None  # what templates write for a coordinate; None: the processor's own
    smiles: str | None = None
    prompts: str | None = None
    count: int | None = None  # None: all of the input
    batch_size: int = 32
    generations: int = 1
    strict: bool = False
    sampling: str = "greedy"  # `greedy`, or from the distribution: `sample`; `top_p` and `top_k` set their default
    temperature: float = 1.0  # divides the logits, except in greedy sampling
    # top_p, top_k, min_p: what is drawn from, together; None: not restricted, but see `sampling_parameters`
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int = 0  # seeds every batch together with its number, so that each pass writes the same text
    attention: str = "sdpa"
    kv_cache: str = "dynamic"
    sort: bool | None = None  # None: if all prompts are of molecules, whose templates tell how long answers get
    forced_runs: bool = False
    drop_finished: bool = False
    compile: str = AUTO
    dtype: str = AUTO
    device: str = AUTO
    max_new_tokens: int | None = None  # None: what the longest template of a batch needs
    repeats: int = 3
    warmup: int = 1
    # first and last step to record, of the first batch; None: see `recorded_pass.choose_window`
    window: tuple[int, int] | None = None
    full: bool = False
    modules: bool = False  # of the Python functions that stacks record, those of modules
    stacks: bool = False
    disagreement: bool = False
    template_threads: int | None = None  # None: see `templates.default_threads`
    template_cache: bool = False
    threads: int | None = None
    trust_remote_code: bool = False
    processor_args: tuple[str, ...] = ()  # `KEY=VALUE` texts for a processor of the user's own
    prompt_format: str = PROMPT  # prompt_format, answer_format: see `TextFormat`
    answer_format: str = ANSWER
    tf32: bool = False  # multiply float32 matrices in TF32
    cudnn_benchmark: bool = False  # let cuDNN try out its kernels
    padding_multiple: int = 1  # prompts of a batch are padded to a multiple of so many tokens
    max_cache_length: int | None = None  # columns of a static KV cache; None: what the longest batch needs

    def __post_init__(self) -> None:
        if not self.model:
            raise UsageError("no model is named", hint="use a preset (qwen, llama), a folder, or a hub id")
        if self.processor == "":
            raise UsageError("no processor is named", hint="leave out --processor for none; molprof presets lists them")
        for name, accepted in _ACCEPTED.items():
            one_of(name.replace("_", "-"), getattr(self, name), accepted)
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) is not None:
                at_least(_option(name), value, least)
        for name in _NUMBERS:
            _at_most(_option(name), getattr(self, name) or 0, MOST_NUMBER)
        _at_most("--seed", self.seed, MOST_SEED)
        _at_most("--window", max(self.window or (0,)), MOST_NUMBER)
        for name in ("threads", "template_threads"):
            _at_most(_option(name), getattr(self, name) or 1, MOST_THREADS)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UsageError(
                f"--temperature {self.temperature} is not a number above 0", hint="--sampling greedy takes the top"
            )
        for option, share, hint in (
            ("--top-p", self.top_p, "0.9 keeps 90 % of the mass"),
            ("--min-p", self.min_p, "0.05 keeps tokens with 5 % of the largest probability or more"),
        ):
            if share is not None and not 0 < share <= 1:
                raise UsageError(f"{option} {share} is not in (0, 1]", hint)
        if self.placeholder is not None and not _PLACEHOLDER.fullmatch(self.placeholder):
            raise UsageError(
                f"--placeholder {self.placeholder!r} is not three decimal numbers", hint="such as 0.000,0.000,0.000"
            )
        object.__setattr__(self, "processor_args", tuple(self.processor_args))  # JSON has lists
        _ = self.text_format
        for message, hint in self._conflicts():
            raise UsageError(message, hint)

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        """Settings that exclude each other: the message, and what to do about it."""
        compiled = self.compile not in (AUTO, "off")
        first, last = self.window or (0, 0)
        if self.drop_finished and compiled:
            text = f"rows that leave the batch change the shape that compile {self.compile!r} is made for"
            yield text, "leave out --drop-finished or --compile"
        if self.own_loop and self.kv_cache not in ("dynamic", "static"):
            text = f"kv-cache {self.kv_cache!r} is transformers' own; forced runs and dropped rows do not use it"
            yield text, "--kv-cache dynamic or static"
        if compiled and self.kv_cache not in STATIC_CACHES:
            yield f"compile {self.compile!r} needs a cache of fixed shape, not {self.kv_cache!r}", "--kv-cache static"
        if self.max_cache_length is not None and self.kv_cache not in STATIC_CACHES:
            yield f"--max-cache-length is for a cache of fixed shape, not {self.kv_cache!r}", "--kv-cache static"
        if self.padding_multiple > 1 and self.own_loop:
            yield "forced runs and dropped rows give prompts no columns of padding", "leave out --pad-multiple"
        if self.disagreement and self.processor is None:
            text = "disagreement is between the model and a logits processor, and this run has none"
            yield text, "--lp or --processor NAME"
        if self.placeholder is not None and self.processor is None:
            yield "--placeholder is for the templates of a processor, and this run has none", "--lp or --processor NAME"
        if self.processor_args and ":" not in (self.processor or ""):
            yield "--processor-arg is for a processor of your own", "--processor package.module:Class"
        if self.prompts is not None and self.smiles is not None:
            yield "molecules and plain-text prompts exclude each other", "leave one of them out"
        if self.prompts is not None and self.max_new_tokens is None:
            yield "plain-text prompts have no template to bound their answers", "--max-new-tokens N"
        if self.window is not None and self.full:
            yield "a window and a full recording exclude each other", "leave one of them out"
        if not 0 <= first <= last:
            yield f"the window {first}:{last} is not FIRST:LAST with 0 <= FIRST <= LAST", "e.g. --window 20:39"

    @property
    def text_format(self) -> TextFormat:
        """How prompts and answers are written; UsageError where a pattern is none."""
        return TextFormat(self.prompt_format, self.answer_format)

    def without_device(self, capability: tuple[int, int] | None) -> str | None:
        """Why a device cannot run this; None if nothing is known against it.

        Args:
            capability: compute capability of the GPU, major and minor; None: the device is no GPU.
        """
        if self.tf32 and (capability is None or capability < _TF32_CAPABILITY):
            return "TF32 requires an NVIDIA GPU of compute capability 8.0 or higher"
        if self.cudnn_benchmark and capability is None:
            return "cuDNN runs on GPUs only"
        if self.kv_cache.startswith("offloaded") and capability is None:
            return f"kv-cache {self.kv_cache!r} requires a GPU: without one, every cache is in host memory"
        return None

    @property
    def own_loop(self) -> bool:
        """Whether molprof's own decoding loop runs, not transformers' `generate`."""
        return self.forced_runs or self.drop_finished

    @property
    def sampling_parameters(self) -> dict[str, Any]:
        """The parameters that apply to `sampling`, by name, in the order in which transformers applies them."""
        if self.sampling == "greedy":
            return {}
        usual = {"top_k": 50 if self.sampling == "top_k" else None, "top_p": 0.9 if self.sampling == "top_p" else None}
        asked = {"top_k": self.top_k or usual["top_k"], "top_p": self.top_p or usual["top_p"], "min_p": self.min_p}
        return {"temperature": self.temperature, **{name: value for name, value in asked.items() if value is not None}}


_ACCEPTED = {
    "weights": WEIGHTS,
    "sampling": SAMPLING,
    "attention": ATTENTION,
    "kv_cache": KV_CACHES,
    "compile": COMPILE,
    "dtype": DTYPES,
}
_LEAST = {"warmup": 0, "seed": 0} | dict.fromkeys(
    (
        "count", "batch_size", "repeats", "generations", "template_threads", "threads", "max_new_tokens", "top_k",
        "padding_multiple", "max_cache_length",
    ), 1
)  # fmt: skip
_NUMBERS = (
    "count", "batch_size", "generations", "repeats", "warmup", "max_new_tokens", "padding_multiple", "max_cache_length",
    "top_k",
)  # fmt: skip
_OPTIONS = {"count": "-n", "padding_multiple": "--pad-multiple"}


def _option(name: str) -> str:
    """The option that sets a field."""
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def one_of(name: str, value: str, accepted: tuple[str, ...]) -> None:
    """Raises UsageError where `value` is none of `accepted`."""
    if value not in accepted:
        raise UsageError(f"no {name} {value!r}", hint=f"use one of: {', '.join(accepted)}")


def at_least(name: str, value: int, least: int) -> None:
    """Raises UsageError where `value` is below `least`."""
    if value < least:
        raise UsageError(f"{name} {value} is below {least}", hint=f"{name}: a whole number from {least} on")


def _at_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise UsageError(f"{name} {value} is above {most}", hint=f"{name}: a whole number up to {most}")
