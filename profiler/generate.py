"""One pass: all molecules, batch by batch, through transformers' `generate`, with or without marks."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from molprof.errors import ProcessorError, RunError, UsageError
from molprof.profiler.marks import Marks, marked
from molprof.profiler.models import LoadedModel
from molprof.profiler.processors.base import BatchProcessor, Processor
from molprof.profiler.prompts import Prompt
from molprof.profiler.settings import Decoding
from molprof.profiler.smiles import Molecule
from molprof.profiler.template import PLACEHOLDER, Template
from molprof.profiler.templates import Templates

_KERNELS = {
    "sdpa-math": SDPBackend.MATH,
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
}
# Without a processor a coordinate may be longer than its placeholder: a minus that merges with nothing, or a
# second digit before the point, for each of three numbers; and a few tokens more, so that only a text that
# went astray is cut.
_SLACK_PER_BLOCK, _SLACK = 3, 8


@dataclass(frozen=True)
class BatchPlan:
    """One batch: its prompts, the bound of its answers in tokens, the columns its prompts are padded to."""

    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    prompt_width: int


@dataclass(frozen=True)
class BatchResult:
    """What one batch wrote.

    Attributes:
        rows: generated ids by row, EOS included, padding after it not.
        steps: forwards, the prefill included.
        masked_logits: by row; None without a processor.
    """

    rows: tuple[tuple[int, ...], ...]
    steps: int
    masked_logits: tuple[int, ...] | None


@dataclass(frozen=True)
class PassResult:
    """What one pass over all batches wrote, and its wall time with the device synchronized at both ends."""

    batches: tuple[BatchResult, ...]
    wall_ns: int


@dataclass(frozen=True)
class Runner:
    """A model, a processor (None: unconstrained) and how to decode: makes passes over batches."""

    loaded: LoadedModel
    processor: Processor | None
    decoding: Decoding
    attention: str = "sdpa"
    kv_cache: str = "dynamic"
    template_threads: int = 1
    template_cache: bool = False

    def plan(self, prompts: Sequence[Prompt], batch_size: int, max_new_tokens: int | None = None) -> list[BatchPlan]:
        """Cuts prompts into batches and bounds their answers by their templates, before anything is timed.

        With a static cache all batches share one prompt width and one bound, so that a compiled forward sees
        one cache shape.

        Raises:
            UsageError: a molecule needs more tokens than the model's context.
        """
        if getattr(self.processor, "needs_templates", False) and any(prompt.molecule is None for prompt in prompts):
            assert self.processor is not None
            raise UsageError(
                f"the processor {self.processor.name!r} needs molecules: plain text has no skeleton to keep to",
                hint="--smiles FILE, or a processor of your own: --processor package.module:factory",
            )
        tokenizer = self.loaded.tokenizer
        widths = [len(tokenizer(prompt.text)["input_ids"]) for prompt in prompts]
        bounds = [self._bound(prompt) if max_new_tokens is None else max_new_tokens for prompt in prompts]
        context = self.loaded.context
        for prompt, width, bound in zip(prompts, widths, bounds, strict=True):
            if context is not None and width + bound > context:
                raise UsageError(
                    f"line {prompt.line}: {prompt.text} needs {width} + {bound} tokens of {context}",
                    hint="leave the molecule out, or bound the answers by --max-new-tokens",
                )
        shared = (max(widths), max(bounds)) if self.kv_cache == "static" else None
        plans = []
        for start in range(0, len(prompts), batch_size):
            rows = slice(start, start + batch_size)
            width, bound = shared or (max(widths[rows]), max(bounds[rows]))
            plans.append(BatchPlan(tuple(prompts[rows]), bound, width))
        return plans

    def template(self, molecule: Molecule) -> Template:
        """The molecule's template with the processor's placeholder."""
        return self.templates.build([molecule])[0]

    @functools.cached_property
    def templates(self) -> Templates:
        """What builds the templates."""
        placeholder = getattr(self.processor, "placeholder", PLACEHOLDER)
        return Templates(self.loaded.tokenizer, placeholder, self.template_threads, self.template_cache)

    def run(self, plans: Sequence[BatchPlan], marks: Marks | None, only: int | None = None) -> PassResult:
        """One pass over all batches, or over batch `only`.

        Raises:
            RunError: out of memory, or the attention asked for has no kernel here.
            ProcessorError: a user's processor failed.
        """
        results = []
        self.templates.clear()
        with self._attention():
            self.synchronize()
            began = time.perf_counter_ns()
            for number, plan in enumerate(plans):
                if only is None or number == only:
                    try:
                        results.append(self._batch(number, plan, marks))
                    except ProcessorError as problem:
                        raise problem.in_batch(number) from problem.__cause__
            self.synchronize()
        return PassResult(tuple(results), time.perf_counter_ns() - began)

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.loaded.target.device.type == "cuda":
            torch.cuda.synchronize(self.loaded.target.device)

    def _bound(self, prompt: Prompt) -> int:
        if prompt.molecule is None:
            raise UsageError("a plain-text prompt has no template to bound its answer", hint="--max-new-tokens N")
        template = self.template(prompt.molecule)
        length = len(template.ids)
        if self.processor is not None:
            longest = getattr(self.processor, "longest", None)
            return length + 1 if longest is None else int(longest(template))  # the end token included
        return length + 1 + _SLACK_PER_BLOCK * len(prompt.molecule.atoms) + _SLACK

    def _batch(self, number: int, plan: BatchPlan, marks: Marks | None) -> BatchResult:
        loaded, device = self.loaded, self.loaded.target.device
        studied: BatchProcessor | None = None
        if self.processor is not None:
            with _setup(marks, "template", number):
                molecules = [prompt.molecule for prompt in plan.prompts if prompt.molecule is not None]
                templates = self.templates.build(molecules)
                studied = self.processor.start(templates, plan.prompt_width)
        with _setup(marks, "tokenize", number):
            encoded = loaded.tokenizer(
                [prompt.text for prompt in plan.prompts],
                padding="max_length",
                max_length=plan.prompt_width,
                padding_side="left",
                return_tensors="pt",
            )
            inputs = {name: encoded[name].to(device) for name in ("input_ids", "attention_mask")}
        if self.decoding.sampling != "greedy":
            torch.manual_seed(self.decoding.seed * 1_000_003 + number)
        processors: list[Any] = [] if studied is None else [studied]
        with _explained(plan, self.attention):
            output = self._generate(number, plan, inputs, processors, marks)
        with _setup(marks, "text", number):
            answers = output[:, plan.prompt_width :].tolist()
            loaded.tokenizer.batch_decode(answers, skip_special_tokens=False)
        rows = tuple(_until_end(answer, loaded.eos) for answer in answers)
        counted = None if studied is None else studied.masked_logits
        masked = None if counted is None else tuple(counted)
        return BatchResult(rows, len(answers[0]), masked)

    def _generate(
        self,
        number: int,
        plan: BatchPlan,
        inputs: dict[str, Tensor],
        processors: list[LogitsProcessor],
        marks: Marks | None,
    ) -> Tensor:
        """Prompt and answer ids, int64 (batch, prompt_width + steps)."""
        model: Any = self.loaded.model
        settings = self._config(plan.max_new_tokens)
        if marks is None:
            return model.generate(  # type: ignore[no-any-return]
                **inputs, generation_config=settings, logits_processor=LogitsProcessorList(processors)
            )
        arguments: tuple[LogitsProcessorList, StoppingCriteriaList]
        with marked(model, marks, len(plan.prompts), processors) as arguments:
            marks.begin(number)
            output: Tensor = model.generate(
                **inputs,
                generation_config=settings,
                logits_processor=arguments[0],
                stopping_criteria=arguments[1],
            )
            marks.end()
        return output

    def _config(self, max_new_tokens: int) -> GenerationConfig:
        """All that molprof decides is set explicitly, so that the model's own generation config does not."""
        settings: dict[str, Any] = {"do_sample": False}
        if self.decoding.sampling != "greedy":
            # 0 and 1.0 switch top-k and top-p off where the model's own config would have them on.
            settings = {"do_sample": True, "top_k": 0, "top_p": 1.0, **self.decoding.parameters()}
        return GenerationConfig(
            max_new_tokens=max_new_tokens,
            num_beams=1,
            use_cache=True,
            cache_implementation=None if self.kv_cache == "dynamic" else self.kv_cache,
            eos_token_id=sorted(self.loaded.eos),
            pad_token_id=self.loaded.target.pad,
            **settings,
        )

    def _attention(self) -> AbstractContextManager[None]:
        return sdpa_kernel(_KERNELS[self.attention]) if self.attention in _KERNELS else nullcontext()


def _setup(marks: Marks | None, name: str, batch: int) -> AbstractContextManager[None]:
    return nullcontext() if marks is None else marks.setup(name, batch)


def _until_end(answer: list[int], eos: frozenset[int]) -> tuple[int, ...]:
    """The tokens up to the first end token, that one included: transformers pads finished rows."""
    for place, token in enumerate(answer):
        if token in eos:
            return tuple(answer[: place + 1])
    return tuple(answer)


@contextmanager
def _explained(plan: BatchPlan, attention: str) -> Iterator[None]:
    """Turns the failures that settings cause into errors that name the setting."""
    try:
        yield
    except torch.OutOfMemoryError as problem:
        raise RunError(
            f"out of GPU memory: {len(plan.prompts)} x ({plan.prompt_width} + {plan.max_new_tokens}) tokens",
            hint="a smaller --batch-size",
        ) from problem
    except RuntimeError as problem:
        if "No available kernel" not in str(problem):
            raise
        raise RunError(
            f"the attention {attention!r} has no kernel for this model, mask, dtype and device: {problem}",
            hint="--attention sdpa lets torch choose",
        ) from problem
