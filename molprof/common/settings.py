"""What a capture is asked to do: the table of its settings, each declared in one place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Meta

from molprof.common.engine_settings import (
    ASSISTED,
    AUTO,
    BACKENDS,
    CONSTRAINTS,
    CONTINUOUS,
    ENGINES,
    FORCED,
    GENERATE,
    OTHERS,
    TABLE,
    VLLM,
    Problem,
    engine_problems,
)
from molprof.common.errors import UsageError
from molprof.common.generate_args import read_arguments
from molprof.common.setting import Decides, Setting, rows, setting
from molprof.common.text_format import ANSWER, PROMPT, TextFormat

# Engines whose prompts are one batch, which they join as others end.
JOINED = (CONTINUOUS, VLLM)
# What --lp constrains with, whatever the tokenizer, so that runs of two models differ in the tokenizer alone.
LP_PROCESSOR = "generic"
# What stands for it, and for no processor, in place of a processor's name.
LP_WORD, NO_PROCESSOR = "lp", "none"
_NUMBER = r"-?[0-9]+\.[0-9]+"
_PLACEHOLDER = re.compile(rf"{_NUMBER},{_NUMBER},{_NUMBER}")
WHOLE_TEXT = (TABLE, *ENGINES, *OTHERS)
TRAINED: Final = "trained"
RANDOM: Final = "random"
# transformers' names, and those that restrict torch to one of its scaled-dot-product kernels.
Attention = Literal[
    "eager", "sdpa", "sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn",
    "flash_attention_2", "flash_attention_3", "flex_attention",
]  # fmt: skip
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
# transformers' names. Static caches have one shape, which a compiled forward needs.
KvCache = Literal["dynamic", "static", "offloaded", "offloaded_static", "quantized"]
STATIC_CACHES = ("static", "offloaded_static")
Sampling = Literal["greedy", "sample", "top_p", "top_k"]
# `auto`: transformers decides (it compiles with a static cache on a GPU). `eager`: traced, not compiled. The others
# are modes of torch.compile.
Compile = Literal["auto", "off", "eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
ATTENTION, DTYPES, COMPILE = get_args(Attention), get_args(Dtype), get_args(Compile)
# torch's seeds have 64 bits, and each batch adds its number.
_MOST_SEED = 2**32 - 1
# A thread that cannot be started ends the process without a message.
_MOST_THREADS = 1024
# Of molecules, rows, passes and tokens: more is a slip of the keyboard.
_MOST_NUMBER = 1_000_000
Number = Annotated[int, Meta(ge=0, le=_MOST_NUMBER)]
Positive = Annotated[int, Meta(ge=1, le=_MOST_NUMBER)]
Threads = Annotated[int, Meta(ge=1, le=_MOST_THREADS)]
_TF32_CAPABILITY = (8, 0)


# A check of a value: None, or the message and the hint.
_Check = Callable[[Any], tuple[str, str] | None]


def _named(what: str, hint: str) -> _Check:
    return lambda name: None if name else (f"no {what} is named", hint)


def _share(option: str, hint: str) -> _Check:
    return lambda share: None if 0 < share <= 1 else (f"{option} {share} is not in (0, 1]", hint)


def _above_zero(option: str, hint: str) -> _Check:
    return lambda value: None if 0 < value < math.inf else (f"{option} {value} is not a number above 0", hint)


def _placeholder(text: str) -> tuple[str, str] | None:
    if _PLACEHOLDER.fullmatch(text):
        return None
    return f"--placeholder {text!r} is not three decimal numbers", "such as 0.000,0.000,0.000"


def _choices(text: str) -> tuple[str, str] | None:
    choices = text.split(",")
    if "" in choices or len(set(choices)) < len(choices):
        return f"--choices {text!r} has an empty text or one twice", "e.g. --choices yes,no"
    return None


@dataclass(frozen=True)
class CaptureSettings:
    """One capture: the options of `molprof capture` by name, in the order of its help. Checks what needs no device."""

    # fmt: off
    model: str = setting(
        decides="forward", label="model", role="subject", metavar="NAME",
        help="Preset (qwen, llama), folder, hub id, or a name of molprof.toml; or several: NAME,NAME.",
        check=_named("model", "use a preset (qwen, llama), a folder, or a hub id"))
    size: str | None = setting(  # see `sizes.sized`; None: the preset's own
        None, decides="forward", label="model size", role="setting", metavar="SIZE",
        help="Spread a preset over another size, the same function: {sizes}, or numbers, such as layers=8,hidden=512.")
    weights: Literal["trained", "random"] = setting(
        TRAINED, decides="forward", label="weights", role="subject",
        help="Weights of a preset. Random ones fit any size, but make tokens and drift meaningless.")
    tokenizer: str | None = setting(
        None, decides="forward", label="tokenizer", role="subject", metavar="NAME",
        help="Preset, folder or hub id.", unset="the model's own")
    processor: str | None = setting(  # name, `package.module:builder`, or None: unconstrained
        None, decides="tokens", label="logits processor", role="subject", metavar="NAME",
        help="Constrain with this processor (molprof presets lists them, package.module:Class is your own), or none; or"
        " several: none,NAME,NAME. With --engine vllm: " + ", ".join(BACKENDS) + ".",
        check=_named("processor", "leave out --processor for none; molprof presets lists them"))
    processor_args: tuple[str, ...] = setting(
        (), decides="tokens", recorded="processor_parameters", flag="--processor-arg", metavar="KEY=VALUE",
        help="Parameter of a processor of your own; VALUE is JSON, or else text. Repeatable.")
    placeholder: str | None = setting(  # None: the processor's own
        None, decides="tokens", label="placeholder", role="subject", metavar="TEXT", check=_placeholder,
        help="What templates write for a coordinate, such as 0.000,0.000,0.000.")
    count: Positive | None = setting(
        None, decides="input", flag="-n", metavar="N",
        help="Take the first N prompts or molecules.", unset="all of FILE, or the 64 built-in molecules")
    fill: bool = setting(
        False, decides="input", help="Repeat prompts where there are fewer than N, and to fill the last batch.")
    batch_size: Positive = setting(
        32, decides="forward", label="batch size", role="setting", metavar="N",
        help="Prompts or molecules to generate together.")
    smiles: str | None = setting(
        None, decides="input", kind="file", metavar="FILE[:COLUMN]",
        help="SMILES, one per line, or in CSV, TSV, JSON, JSON lines or a pickle of plain data.  [COLUMN: smiles, else"
        " the first]")
    prompts: str | None = setting(
        None, decides="input", kind="file", metavar="FILE",
        help="Prompts of plain text, one per line; or JSON lines with prompt or messages (FILE.jsonl).")
    requests: str | None = setting(None, decides="input", kind="file", metavar="FILE", help="In place of --prompts, for"
        " --engine vllm: bodies of the OpenAI API, one a line, or lines of its batches.")
    # CONSTRAINTS: what they constrain to is a parameter of the processor, which decides tokens
    schema: str | None = setting(
        None, decides="nothing", label="schema", role="setting", quiet=True, kind="file", metavar="FILE",
        help="JSON schema of answers to --prompts: table, xgrammar, llguidance and vLLM constrain to it, and it judges"
        " all.")
    regex: str | None = setting(
        None, decides="nothing", label="regular expression", role="setting", quiet=True, metavar="PATTERN",
        help="The same with a regular expression.")
    choices: str | None = setting(
        None, decides="nothing", label="choices", role="setting", quiet=True, metavar="A,B", check=_choices,
        help="The same with one of these texts, which have no commas.")
    grammar_file: str | None = setting(
        None, decides="nothing", label="grammar", role="setting", quiet=True, kind="file", metavar="FILE",
        help="Constrain to a grammar, in GBNF for xgrammar, in Lark for llguidance. It judges no answer.")
    check: str | None = setting(
        None, decides="nothing", label="check of answers", role="setting", quiet=True, metavar="MODULE:FUNCTION",
        help="Judge answers with this function of the answer, or of answer and prompt, which returns what is wrong.")
    # prompt_format, answer_format: see `TextFormat`
    prompt_format: str = setting(
        PROMPT, decides="input", label="prompt format", role="subject", quiet=True, kind="text", metavar="PATTERN",
        help="Text of a prompt, with {smiles}.")
    answer_format: str = setting(
        ANSWER, decides="tokens", label="answer format", role="subject", quiet=True, kind="text", metavar="PATTERN",
        help="Text of an answer: tags, and how a coordinate block opens, separates and closes.")
    generations: Positive = setting(
        1, decides="input", metavar="K", help="Generate each prompt or molecule K times.")
    strict: bool = setting(
        False, decides="input", help="Refuse a SMILES that RDKit cannot read instead of skipping it.")
    # `greedy`, or from the distribution: `sample`; `top_p` and `top_k` set their default; None: see `generation.py`
    sampling: Sampling | None = setting(
        None, decides="tokens", label="sampling", role="work",
        help="How tokens are chosen.", unset="as the model's generation_config says")
    temperature: float = setting(
        1.0, decides="tokens", recorded="sampling_parameters",
        check=_above_zero("--temperature", "--sampling greedy takes the top"),
        help="Divide the logits; implies --sampling sample, as do the next three.")
    # top_p, top_k, min_p: what is drawn from, together; None: not restricted, but see `sampling_parameters`
    top_p: float | None = setting(
        None, decides="tokens", recorded="sampling_parameters",
        check=_share("--top-p", "0.9 keeps 90 % of the mass"),
        help="Draw from the likeliest tokens of this total probability. They combine.")
    top_k: Positive | None = setting(
        None, decides="tokens", recorded="sampling_parameters",
        help="Draw from this many of the likeliest tokens.")
    min_p: float | None = setting(
        None, decides="tokens", recorded="sampling_parameters",
        check=_share("--min-p", "0.05 keeps tokens with 5 % of the largest probability or more"),
        help="Draw from tokens with this share of the largest probability or more.")
    generate_args: tuple[str, ...] = setting(  # see `common/generate_args.py`
        (), decides="forward", label="parameters of generate", role="work", quiet=True, flag="--generate-arg",
        metavar="KEY=VALUE",
        help="Parameter of transformers' generate, such as repetition_penalty=1.2; VALUE is JSON. Repeatable.",
        unset="those of the model's generation_config")
    # seeds every batch together with its number, so that each pass writes the same text
    seed: Annotated[int, Meta(ge=0, le=_MOST_SEED)] = setting(
        0, decides="input", label="seed", role="subject", help="Seed for sampling.")
    attention: Attention = setting(
        "sdpa", decides="forward", label="attention", role="setting")
    kv_cache: KvCache = setting(
        "dynamic", decides="forward", recorded="cache", label="KV cache", role="setting")
    sort: bool | None = setting(  # None: if all prompts are of molecules, whose templates tell how long answers get
        None, decides="input", unset="sort molecules",
        help="Batch molecules of similar length, longest first, or keep their order.")
    engine: str = setting(  # a name of `profiler/engines/__init__.py`
        AUTO, decides="forward", metavar="NAME",
        help="What generates tokens: generate or continuous (batching) of transformers, vllm, or forced, molprof's own"
        " loop. auto: forced for --forced-runs and --drop-finished, assisted for --assistant.")
    assistant: str | None = setting(
        None, decides="forward", metavar="NAME",
        help="Let this smaller model draft tokens, which the model checks; requires --batch-size 1.",
        check=_named("assistant", "a preset, a folder or a hub id"))
    speculative: str | None = setting(None, decides="forward", label="speculative", role="setting", metavar="JSON",
        help='With --engine vllm: its speculative_config, such as {"method": "ngram", "num_speculative_tokens": 4}.')
    free_drafts: bool = setting(
        False, decides="forward",
        help="Let the assistant draft without the constraint.")
    arrivals: float | None = setting(
        None, decides="input", metavar="N",
        check=_above_zero("--arrivals", "0.5: a request every other step"),
        help="With --engine continuous: let N requests arrive per step, such as 0.5.", unset="all at the start")
    forced_runs: bool = setting(
        False, decides="forward", help="Append forced tokens in the forward of the token before them.")
    drop_finished: bool = setting(False, decides="forward", help="Drop finished rows from the batch.")
    compile: Compile = setting(
        AUTO, decides="forward",
        help="Compile the forward of decode steps; requires --kv-cache static. auto: on a GPU.")
    dtype: Dtype = setting(AUTO, decides="forward", label="dtype", role="setting")
    tf32: bool = setting(
        False, decides="forward", label="TF32", role="setting", help="Multiply float32 matrices in TF32.")
    cudnn_benchmark: bool = setting(
        False, decides="forward", label="cuDNN benchmark", role="setting", help="Let cuDNN try out its kernels.")
    padding_multiple: Positive = setting(
        1, decides="forward", label="prompt padding", role="setting", flag="--pad-multiple", metavar="N",
        help="Pad prompts to a multiple of N tokens.")
    max_cache_length: Positive | None = setting(
        None, decides="forward", label="KV cache length", role="setting", quiet=True, metavar="N",
        help="Give a static KV cache room for N tokens.", unset="what the longest batch needs")
    device: str = setting(
        AUTO, decides="forward", label="device", role="setting", metavar="NAME", help="auto, cpu, cuda or cuda:N.")
    max_new_tokens: Positive | None = setting(
        None, decides="input", label="token limit (max_new_tokens)", role="subject", metavar="N",
        help="Most tokens of an answer.", unset="what templates need")
    repeats: Positive = setting(
        3, decides="nothing", metavar="N", help="Timed passes, without the profiler.")
    warmup: Number = setting(
        1, decides="nothing", metavar="N", help="Warm-up passes before the timed ones.")
    timed_only: bool = setting(
        False, decides="nothing", help="Record no pass: OUT holds settings and times alone, for molprof sweep show.")
    window: tuple[Number, Number] | None = setting(  # of the first batch; None: see `choose_window` of captures
        None, decides="nothing", metavar="FIRST:LAST",
        unset="20 from step 20 on, or earlier where answers are shorter", help="Steps of the first batch to record.")
    full: bool = setting(False, decides="nothing", help="Record every step of every batch; the trace gets large.")
    modules: bool = setting(  # of the Python functions that stacks record, those of modules
        False, decides="nothing", help="Record modules too, for molprof report by module.")
    stacks: bool = setting(
        False, decides="nothing", help="Record modules and Python functions too, for molprof report by.")
    functions: bool | None = setting(
        None, decides="nothing", flag="--functions", unset="on, unless --stacks records all",
        help="Sample the functions of processors in the recorded steps.")
    shapes: bool = setting(
        False, decides="nothing",
        help="Record shapes and types of operators' arguments too, for molprof report by shape, replay and predict.")
    memory: bool = setting(
        False, decides="nothing", help="Record allocations and frees of memory too, for molprof report by memory.")
    disagreement: bool = setting(
        False, decides="nothing", help="Record what the model would have chosen, token by token, in an untimed pass.")
    # template_threads, template_cache: the template phase counts as equal work only in runs of one capture, which have
    # both in common.
    template_threads: Threads | None = setting(
        None, decides="nothing", metavar="N", help="Threads that build templates.",
        unset="SLURM_CPUS_PER_TASK, else half the cores and 1; at most 8")
    template_cache: bool = setting(
        False, decides="nothing", help="Keep the template of a molecule that a pass generates again.")
    threads: Threads | None = setting(
        None, decides="forward", metavar="N", help="CPU threads for torch.",
        unset="one core fewer than there are")
    trust_remote_code: bool = setting(
        False, decides="nothing", help="Let a model from the hub run its own code.")
    # fmt: on

    def __post_init__(self) -> None:
        for name, row in SETTINGS.items():
            row.check_value(getattr(self, name))
        for name in ("processor_args", "generate_args"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has lists
        _ = self.text_format, self.generate_arguments
        for message, hint in self._conflicts():
            raise UsageError(message, hint)

    def _conflicts(self) -> Iterator[Problem]:
        """Yield settings that exclude each other: the message, and the advice."""
        yield from engine_problems(self)
        compiled = self.compile not in (AUTO, "off")
        first, last = self.window or (0, 0)
        if compiled and self.kv_cache not in STATIC_CACHES:
            yield f"compile {self.compile!r} needs a cache of fixed shape, not {self.kv_cache!r}", "--kv-cache static"
        if self.max_cache_length is not None and self.kv_cache not in STATIC_CACHES:
            yield f"--max-cache-length is for a cache of fixed shape, not {self.kv_cache!r}", "--kv-cache static"
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
        flags = [SETTINGS[name].flag for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(flags) > 1:
            yield f"{flags[0]} and {flags[1]} exclude each other", "leave one of them out"
        if flags and self.prompts is None:
            yield f"{flags[0]} is of answers to prompts of your own", "--prompts FILE"
        takes = ENGINES if self.engine != VLLM else (None, *BACKENDS)
        if self.grammar_file is not None and (self.processor == TABLE or self.processor not in takes):
            yield "a grammar is for a processor that takes one", f"--processor {' or '.join(ENGINES)}"
        # In vLLM a line may say it.
        if self.processor in (TABLE, *OTHERS) and not flags and self.engine != VLLM:
            yield f"the processor {self.processor!r} has nothing to keep to", "--schema, --regex or --choices"
        names = ("window", "full", "modules", "stacks", "shapes", "memory")
        if self.timed_only and (of_recording := [SETTINGS[name].flag for name in names if getattr(self, name)]):
            yield f"{of_recording[0]} is of the recorded pass, and --timed-only makes none", "leave one of them out"
        if self.window is not None and self.full:
            yield "a window and a full recording exclude each other", "leave one of them out"
        if not 0 <= first <= last:
            yield f"the window {first}:{last} is not FIRST:LAST with 0 <= FIRST <= LAST", "e.g. --window 20:39"

    @staticmethod
    def rows() -> Mapping[str, Setting]:
        """Return the table of settings, by name."""
        return SETTINGS

    @property
    def text_format(self) -> TextFormat:
        """The format of prompts and answers; UsageError if a pattern is invalid."""
        return TextFormat(self.prompt_format, self.answer_format)

    def without_device(self, capability: tuple[int, int] | None) -> str | None:
        """Return why a device cannot run this; None if no reason is known.

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
    def engine_name(self) -> str:
        """The engine: the chosen one, or the one that `auto` selects."""
        if self.engine != AUTO:
            return self.engine
        if self.forced_runs or self.drop_finished:
            return FORCED
        return GENERATE if self.assistant is None else ASSISTED

    @property
    def samples(self) -> bool:
        """True if tokens are drawn at random."""
        return self.sampling not in (None, "greedy")

    @property
    def generate_arguments(self) -> dict[str, Any]:
        """The parameters of `generate_args` by name."""
        return read_arguments(self.generate_args)

    @property
    def sampling_parameters(self) -> dict[str, Any]:
        """The parameters that apply to `sampling`, by name, in the order in which transformers applies them."""
        if not self.samples:
            return {}
        usual = {"top_k": 50 if self.sampling == "top_k" else None, "top_p": 0.9 if self.sampling == "top_p" else None}
        values = {"top_k": self.top_k or usual["top_k"], "top_p": self.top_p or usual["top_p"], "min_p": self.min_p}
        return {"temperature": self.temperature, **{name: value for name, value in values.items() if value is not None}}


SETTINGS = rows(CaptureSettings)


def recorded(*decides: Decides) -> tuple[str, ...]:
    """Return keys of a report's `setup` for the settings that decide this aspect of the work."""
    return tuple(dict.fromkeys(row.recorded for row in SETTINGS.values() if row.decides in decides))
