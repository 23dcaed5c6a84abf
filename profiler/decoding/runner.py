"""One pass: all molecules, batch by batch, through transformers' `generate` or molprof's own loop, marked or not."""

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
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.utils.import_utils import is_optimum_quanto_available

from molprof.common.errors import ProcessorError, RunError, UsageError
from molprof.common.settings import AUTO, STATIC_CACHES, CaptureSettings
from molprof.profiler.decoding.batches import BatchPlan, Need, check_context, cut
from molprof.profiler.decoding.compilation import compile_settings, compiles_so_far
from molprof.profiler.decoding.loop import Decoder, check_model
from molprof.profiler.decoding.marks import Marks, NoMarks, marked
from molprof.profiler.decoding.results import BatchResult, PassResult
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.smiles import Molecule
from molprof.profiler.molecules.template import PLACEHOLDER, Template, Templates, default_threads
from molprof.profiler.processors.base import BatchProcessor, Processor

_KERNELS = {
    "sdpa-math": SDPBackend.MATH,
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
}
# What torch says of a row that nothing can be sampled from.
_NO_CHOICE = "probability tensor contains"
# What torch says where the only kernels that it may take cannot run: on a GPU, on a CPU.
NO_KERNEL = ("No available kernel", "No viable backend")
# Without a processor a coordinate may be longer than its placeholder: a minus that merges with nothing, or a
# second digit before the point, for each of three numbers; and a few tokens more, so that only a text that
# went astray is cut.
_SLACK_PER_BLOCK, _SLACK = 3, 8


@dataclass(frozen=True)
class Runner:
    """Makes passes over batches: a model, a processor (None: unconstrained), and how to decode."""

    loaded: LoadedModel
    processor: Processor | None
    settings: CaptureSettings

    def plan(self, prompts: Sequence[Prompt]) -> list[BatchPlan]:
        """Cuts prompts into batches and bounds their answers by their templates, before anything is timed.

        With a static cache all batches share one prompt width and one bound, so that a compiled forward sees
        one cache shape; where it is compiled, the last batch gets spare rows for the same reason.

        Raises:
            UsageError: a molecule needs more tokens than the model's context, or there is no telling how long
                an answer may become or is expected to.
        """
        settings = self.settings
        if settings.own_loop:
            check_model(self.loaded, settings.attention)
        if settings.forced_runs and self.processor is None:
            raise UsageError("without a processor no token is forced", hint="--lp, or leave out --forced-runs")
        if getattr(self.processor, "needs_templates", False) and any(prompt.molecule is None for prompt in prompts):
            assert self.processor is not None
            raise UsageError(
                f"the processor {self.processor.name!r} needs molecules: plain text has no skeleton to keep to",
                hint="--smiles FILE, or a processor of your own: --processor package.module:factory",
            )
        needs = [self._need(prompt) for prompt in prompts]
        check_context(prompts, needs, self.loaded.context)
        static = settings.kv_cache in STATIC_CACHES
        sort = self.sorts(prompts)
        return cut(prompts, needs, settings.batch_size, sort, one_width=static, full_rows=self.compiled)

    def sorts(self, prompts: Sequence[Prompt]) -> bool:
        """Whether batches are cut by length: as asked, else where the templates of a processor tell the length.

        Raises:
            UsageError: asked for, and a prompt has no template.
        """
        told = all(prompt.molecule is not None for prompt in prompts)
        if self.settings.sort and not told:
            raise UsageError("prompts of plain text have no expected length to sort by", hint="leave out --sort")
        return (self.processor is not None and told) if self.settings.sort is None else self.settings.sort

    @property
    def compiled(self) -> bool:
        """Whether the forward of a decode step is compiled."""
        on_gpu = self.loaded.target.device.type == "cuda"
        if self.settings.drop_finished or self.settings.kv_cache not in STATIC_CACHES:
            return False
        return on_gpu if self.settings.compile == AUTO else self.settings.compile != "off"

    def template(self, molecule: Molecule) -> Template:
        """The molecule's template with the processor's placeholder."""
        return self.templates.build([molecule])[0]

    @functools.cached_property
    def templates(self) -> Templates:
        """What builds the templates."""
        placeholder = getattr(self.processor, "placeholder", PLACEHOLDER)
        return Templates(self.loaded.tokenizer, placeholder, self.template_threads, self.settings.template_cache)

    @property
    def template_threads(self) -> int:
        """Threads that build templates."""
        return self.settings.template_threads or default_threads()

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
            if self.settings.own_loop:
                _ = self._decoder  # made once per run, in no phase of a pass
            before = compiles_so_far()
            began = time.perf_counter_ns()
            for number, plan in enumerate(plans):
                if only is None or number == only:
                    try:
                        results.append(self._batch(number, plan, marks or NoMarks()))
                    except ProcessorError as problem:
                        raise problem.in_batch(number) from problem.__cause__
            self.synchronize()
            wall_ns = time.perf_counter_ns() - began
        compiled = compiles_so_far().since(before)
        return PassResult(tuple(results), wall_ns, compiled.count, compiled.time_ns)

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.loaded.target.device.type == "cuda":
            torch.cuda.synchronize(self.loaded.target.device)

    def _need(self, prompt: Prompt) -> Need:
        max_new_tokens = self.settings.max_new_tokens
        width = len(self.loaded.tokenizer(prompt.text)["input_ids"])
        if prompt.molecule is None:
            if max_new_tokens is None:
                raise UsageError("a plain-text prompt has no template to bound its answer", hint="--max-new-tokens N")
            return Need(width, max_new_tokens, max_new_tokens)
        template = self.template(prompt.molecule)
        bound = len(template.ids) + 1  # the end token
        if self.processor is None:
            bound += _SLACK_PER_BLOCK * len(prompt.molecule.atoms) + _SLACK
        elif (longest := getattr(self.processor, "longest", None)) is not None:
            bound = int(longest(template))  # the end token included
        # With forced runs a step is a choice.
        steps = int(template.free.sum()) if self.settings.forced_runs else len(template.ids) + 1
        return Need(width, bound if max_new_tokens is None else max_new_tokens, steps)

    def _batch(self, number: int, plan: BatchPlan, marks: Marks) -> BatchResult:
        studied: BatchProcessor | None = None
        if self.processor is not None:
            with marks.setup("template", number):
                molecules = [prompt.molecule for prompt in plan.row_prompts if prompt.molecule is not None]
                templates = self.templates.build(molecules)
                studied = self.processor.start(templates, plan.prompt_width)
        if self.settings.sampling != "greedy":
            torch.manual_seed(self.settings.seed * 1_000_003 + number)
        return (self._jump if self.settings.own_loop else self._generate)(number, plan, studied, marks)

    def _jump(self, number: int, plan: BatchPlan, studied: BatchProcessor | None, marks: Marks) -> BatchResult:
        """A batch by molprof's own loop."""
        with marks.setup("tokenize", number):
            prompts = self.loaded.tokenizer([prompt.text for prompt in plan.row_prompts])["input_ids"]
        with _explained(plan, self.settings.attention):
            finish = self._decoder.decode(prompts, plan.max_new_tokens, plan.prompt_width, studied, marks, number)
        with marks.setup("text", number):
            decoded = finish()
            self.loaded.tokenizer.batch_decode(decoded.answers, skip_special_tokens=False)
        count = len(plan.prompts)
        return BatchResult(
            rows=tuple(map(tuple, decoded.answers[:count])),
            steps=len(decoded.rows_per_step),
            masked_logits=_masked(studied, count),
            appended=tuple(map(tuple, decoded.appended[:count])),
            rows_per_step=tuple(decoded.rows_per_step),
            host_reads=decoded.host_reads,
        )

    @functools.cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self.loaded, self.settings, self.compiled)

    def _generate(self, number: int, plan: BatchPlan, studied: BatchProcessor | None, marks: Marks) -> BatchResult:
        """A batch by transformers' `generate`."""
        loaded, device = self.loaded, self.loaded.target.device
        with marks.setup("tokenize", number):
            encoded = loaded.tokenizer(
                [prompt.text for prompt in plan.row_prompts],
                padding="max_length",
                max_length=plan.prompt_width,
                padding_side="left",
                return_tensors="pt",
            )
            inputs = {name: encoded[name].to(device) for name in ("input_ids", "attention_mask")}
        with _explained(plan, self.settings.attention):
            output = self._call(number, plan, inputs, [] if studied is None else [studied], marks)
        with marks.setup("text", number):
            answers = output[:, plan.prompt_width :].tolist()
            loaded.tokenizer.batch_decode(answers, skip_special_tokens=False)
        count, steps = len(plan.prompts), len(answers[0])
        return BatchResult(
            rows=tuple(_until_end(answer, loaded.eos) for answer in answers[:count]),
            steps=steps,
            masked_logits=_masked(studied, count),
            appended=None,
            rows_per_step=(plan.rows,) * steps,
            host_reads=None,
        )

    def _call(
        self, number: int, plan: BatchPlan, inputs: dict[str, Tensor], processors: list[Any], marks: Marks
    ) -> Tensor:
        """Prompt and answer ids, int64 (batch, prompt_width + steps)."""
        model: Any = self.loaded.model
        config = self._config(plan.max_new_tokens)
        if isinstance(marks, NoMarks):
            return model.generate(  # type: ignore[no-any-return]
                **inputs, generation_config=config, logits_processor=LogitsProcessorList(processors)
            )
        arguments: tuple[LogitsProcessorList, StoppingCriteriaList]
        with marked(model, marks, plan.rows, processors) as arguments:
            marks.begin(number)
            output: Tensor = model.generate(
                **inputs,
                generation_config=config,
                logits_processor=arguments[0],
                stopping_criteria=arguments[1],
            )
            marks.end()
        return output

    def _config(self, max_new_tokens: int) -> GenerationConfig:
        """All that molprof decides is set explicitly, so that the model's own generation config does not."""
        settings, sampling = self.settings, {"do_sample": False}
        if settings.sampling != "greedy":
            # 0 and 1.0 switch top-k and top-p off where the model's own config would have them on.
            sampling = {"do_sample": True, "top_k": 0, "top_p": 1.0, **settings.sampling_parameters}
        return GenerationConfig(
            max_new_tokens=max_new_tokens,
            num_beams=1,
            use_cache=True,
            cache_implementation=None if settings.kv_cache == "dynamic" else settings.kv_cache,
            eos_token_id=sorted(self.loaded.eos),
            pad_token_id=self.loaded.target.pad,
            **compile_settings(settings.compile),
            **sampling,
        )

    def _attention(self) -> AbstractContextManager[None]:
        kernel = _KERNELS.get(self.settings.attention)
        return nullcontext() if kernel is None else sdpa_kernel(kernel)


def check_cache(kv_cache: str, device: torch.device) -> None:
    """Refuses a KV cache that cannot be there, before a model is loaded for it.

    Raises:
        UsageError: it needs a GPU, or a package that is not installed.
    """
    if kv_cache.startswith("offloaded") and device.type != "cuda":
        raise UsageError(
            f"kv-cache {kv_cache!r} lies in the host's memory, and so does any cache on the device {device.type!r}",
            hint="--kv-cache dynamic or static",
        )
    if kv_cache == "quantized" and not is_optimum_quanto_available():
        raise UsageError(
            "kv-cache 'quantized' needs the package optimum-quanto, which is not installed",
            hint="pip install optimum-quanto",
        )


def _masked(studied: BatchProcessor | None, count: int) -> tuple[int, ...] | None:
    """What the processor counted, of the rows that are prompts; None without one, or with one that does not count."""
    counted = None if studied is None else studied.masked_logits
    return None if counted is None else tuple(counted[:count])


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
            f"out of GPU memory: {plan.rows} x ({plan.prompt_width} + {plan.max_new_tokens}) tokens",
            hint="a smaller --batch-size",
        ) from problem
    except RuntimeError as problem:
        if _NO_CHOICE in str(problem):
            raise RunError(
                "nothing can be sampled: among a row's scores is a NaN or +inf, or all of them are -inf",
                hint="is the processor the cause, or a temperature near 0, or --dtype float16? "
                "--sampling greedy takes the top",
            ) from problem
        if not any(words in str(problem) for words in NO_KERNEL):
            raise
        raise RunError(
            f"the attention {attention!r} has no kernel for this model, mask, dtype and device: {problem}",
            hint="--attention sdpa lets torch choose",
        ) from problem
