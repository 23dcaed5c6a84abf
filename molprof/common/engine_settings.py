"""What each engine makes of a capture's settings: those that it alone has, and the values that it takes of others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from molprof.common.generate_args import PASSED_ON, active

AUTO = "auto"
GENERATE = "generate"  # the engine of transformers' `generate`
FORCED = "forced"  # molprof's own loop
CONTINUOUS = "continuous"  # that of transformers' continuous batching
ASSISTED = "assisted"  # that of its assisted decoding
VLLM = "vllm"
TABLE = "table"  # takes no grammar
# What makes masks in vLLM: its own, by their names, and molprof's table. They are the processors of this engine.
BACKENDS = ("xgrammar", "guidance", "outlines", "lm-format-enforcer", TABLE)
# Processors that take a JSON schema, a regular expression, choices or a grammar, and the settings that name one.
ENGINES = ("xgrammar", "llguidance")
OTHERS = ("outlines", "lm-format-enforcer")  # no grammar
CONSTRAINTS = ("schema", "regex", "choices", "grammar_file")
# Those of molprof without a table of states, which continuous batching takes and drafts go back in.
WITHOUT_STATES = ("generic", "qwen", *ENGINES, *OTHERS)
# What vLLM does in its own way.
NOT_OF_VLLM = (
    *("placeholder", "generate_args", "attention", "kv_cache", "padding_multiple", "max_cache_length"),
    *("disagreement", "tokenizer", "arrivals", "assistant"),
)
_NOT_COMPILED = (AUTO, "off")
_OF_STATES = "--processor vectorized, truncate, grammar or table"
Problem = tuple[str, str]  # the message and the hint


class Taken(NamedTuple):
    """The values of a setting that an engine takes, and what to say of another, which stands for `{}`."""

    values: tuple[Any, ...]  # empty: all, `but` those
    message: str
    hint: str
    but: tuple[Any, ...] = ()


class EngineSettings:
    """What an engine makes of `CaptureSettings`, which checks itself by it.

    Attributes:
        own: what to say where a setting that it alone has is given to another engine: `{name!r}`, or `{what}` for
            people.
        takes: of settings that others have too, the values that it takes; those that are not named it all takes.
    """

    own: ClassVar[Mapping[str, Problem]] = {}
    takes: ClassVar[Mapping[str, Taken]] = {}

    def problems(self, settings: Any) -> Iterator[Problem]:
        """Yield what it cannot follow, or would leave out or replace without saying so."""
        for name, taken in self.takes.items():
            value = getattr(settings, name)
            if value in taken.but or (taken.values and value not in taken.values):
                yield taken.message.format(value), taken.hint


class AssistedSettings(EngineSettings):
    """An assistant drafts for one sequence; drafts that fail are taken back."""

    own: ClassVar[Mapping[str, Problem]] = {
        "assistant": ("engine {name!r} has no assistant", "leave out --assistant"),
        "free_drafts": ("an assistant drafts, and this run has none", "--assistant NAME"),
    }
    takes: ClassVar[Mapping[str, Taken]] = {
        "assistant": Taken((), "assisted decoding has an assistant", "--assistant NAME", but=(None,)),
        "batch_size": Taken((1,), "transformers lets an assistant draft for one sequence at a time", "--batch-size 1"),
        "kv_cache": Taken(
            ("dynamic",), "drafts that fail are taken back out of the KV cache, which {!r} is not made for",
            "leave out --kv-cache",
        ),
        "processor": Taken(
            (), "the processor {!r} has no table of states, which drafts go back in", _OF_STATES, but=WITHOUT_STATES
        ),
    }  # fmt: skip

    def problems(self, settings: Any) -> Iterator[Problem]:
        """Yield these, and drafts that nothing constrains."""
        yield from super().problems(settings)
        if settings.free_drafts and settings.processor is None:
            yield "without a processor all drafts are free", "--processor NAME, or leave out --free-drafts"


class ContinuousSettings(EngineSettings):
    """Requests arrive and join; the KV cache is paged, and a thread of its own calls the forward as it is."""

    own: ClassVar[Mapping[str, Problem]] = {
        "arrivals": ("requests arrive in continuous batching only", "--engine continuous")
    }
    takes: ClassVar[Mapping[str, Taken]] = {
        "processor": Taken(
            (), "the processor {!r} has no table of states, which continuous batching takes",
            f"{_OF_STATES}; or one with `state` and `allow`", but=WITHOUT_STATES,
        ),
        "kv_cache": Taken(
            ("dynamic",), "continuous batching has a paged KV cache, not {!r}", "leave out --kv-cache"
        ),
        "compile": Taken(
            _NOT_COMPILED, "continuous batching calls its forward as it is, and cannot compile it",
            "leave out --compile",
        ),
        "padding_multiple": Taken(
            (1,), "continuous batching gives prompts no columns of padding", "leave out --pad-multiple"
        ),
        "attention": Taken(
            (), "continuous batching has no attention {!r}", "--attention sdpa", but=("flex_attention",)
        ),
        "disagreement": Taken(
            (False,), "disagreement is recorded in batches, not in continuous batching", "leave out --engine"
        ),
    }  # fmt: skip

    def problems(self, settings: Any) -> Iterator[Problem]:
        """Yield these, and what its thread and its sampling leave out."""
        yield from super().problems(settings)
        if settings.full and (settings.stacks or settings.modules):
            text = (
                "torch records no Python functions of the thread of continuous batching, which starts under the"
                " profiler"
            )
            yield text, "--window FIRST:LAST in place of --full"
        yield from _not_applied(settings, "continuous batching does not apply", "leave out --engine")


class ForcedSettings(EngineSettings):
    """Forced tokens are fed with the token before them, and rows that have ended leave the batch."""

    own: ClassVar[Mapping[str, Problem]] = dict.fromkeys(
        ("forced_runs", "drop_finished"), ("{what} neither feeds forced runs nor drops rows", "leave out --engine")
    )
    takes: ClassVar[Mapping[str, Taken]] = {
        "kv_cache": Taken(
            ("dynamic", "static"),
            "kv-cache {!r} is transformers' own; forced runs and dropped rows do not use it",
            "--kv-cache dynamic or static",
        ),
        "padding_multiple": Taken(
            (1,), "forced runs and dropped rows give prompts no columns of padding", "leave out --pad-multiple"
        ),
    }

    def problems(self, settings: Any) -> Iterator[Problem]:
        """Yield these, a compiled shape that dropped rows change, and what its sampling leaves out."""
        if settings.drop_finished and settings.compile not in _NOT_COMPILED:
            text = f"rows that leave the batch change the shape that compile {settings.compile!r} is made for"
            yield text, "leave out --drop-finished or --compile"
        yield from super().problems(settings)
        what = "forced runs and dropped rows are of molprof's own loop, which does not apply"
        yield from _not_applied(settings, what, "leave out those options")


class VllmSettings(EngineSettings):
    """vLLM loads the model, batches requests and makes masks itself."""

    own: ClassVar[Mapping[str, Problem]] = {
        "speculative": ("--speculative is of vLLM", "--engine vllm, or --assistant for transformers"),
        "requests": ("requests of the OpenAI API are for vLLM", "--engine vllm"),
    }
    takes: ClassVar[Mapping[str, Taken]] = {
        "processor": Taken(
            (None, *BACKENDS), "vLLM calls no logits processor {!r}: it makes masks itself",
            f"--processor with none or one of {', '.join(BACKENDS)}",
        ),
        "compile": Taken(_NOT_COMPILED, "vLLM compiles in its own way, not {!r}", "--compile auto or off"),
    }  # fmt: skip

    def problems(self, settings: Any) -> Iterator[Problem]:
        """Yield these, what vLLM does in its own way, and what requests say themselves."""
        yield from super().problems(settings)
        rows = settings.rows()
        for name in NOT_OF_VLLM:
            if (value := getattr(settings, name)) != rows[name].default:
                flag = rows[name].flag
                yield f"vLLM takes no {flag} {value}", f"leave out {flag}, or --engine vllm"
        if settings.requests is None:
            return
        for name in ("prompts", "smiles", *CONSTRAINTS):
            if getattr(settings, name) is not None:
                flag = rows[name].flag
                text = f"--requests have their own prompts and constraints, not those of {flag}"
                yield text, f"leave out {flag}"
        if settings.samples:
            yield "requests say themselves how they sample", "temperature, top_p and so on in each line"


def _not_applied(settings: Any, what: str, else_hint: str) -> Iterator[Problem]:
    for name, value in list(active(settings.generate_arguments, settings.samples).items())[:1]:
        yield f"{what} {name} {value}", f"--generate-arg {name}={json.dumps(PASSED_ON[name])}, or {else_hint}"


# By the engine's name; an engine that is not named takes all but what these have of their own.
OF_ENGINES: dict[str, EngineSettings] = {
    ASSISTED: AssistedSettings(),
    CONTINUOUS: ContinuousSettings(),
    FORCED: ForcedSettings(),
    VLLM: VllmSettings(),
}


def engine_problems(settings: Any) -> Iterator[Problem]:
    """Yield why the engine of the settings cannot follow them: the message, and what to do about it."""
    name = settings.engine_name
    what = "transformers' generate" if name == GENERATE else f"engine {name!r}"
    for engine, others in OF_ENGINES.items():
        for setting, (message, hint) in others.own.items():
            if engine != name and getattr(settings, setting) not in (None, False):
                yield message.format(name=name, what=what), hint
    yield from OF_ENGINES.get(name, EngineSettings()).problems(settings)
