"""One pass: all prompts, cut into batches, batch by batch through an engine, marked or not."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention import sdpa_kernel

from molprof.common.errors import ProcessorError, UsageError
from molprof.common.settings import JOINED, STATIC_CACHES, CaptureSettings
from molprof.common.text import shortened
from molprof.profiler.constraints.base import BatchProcessor, Processor, Rows
from molprof.profiler.engines import BatchPlan, BatchResult, Engine, make_engine
from molprof.profiler.engines.backends import KERNELS, compiles_so_far, is_compiled
from molprof.profiler.models.device import synchronize
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.bodies import most_tokens
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.template import PLACEHOLDER, Template, Templates, default_threads
from molprof.profiler.recording.marks import Marks

# Without a processor each of the three numbers of a block may be one token longer than its placeholder (a minus, or a
# second digit before the point). The slack beyond that cuts only texts that went astray.
_SLACK_PER_BLOCK, _SLACK = 3, 8

Wrap = Callable[[BatchProcessor], BatchProcessor]


def check_fit(settings: CaptureSettings, processor: Any, prompts: Sequence[Prompt]) -> None:
    """Raise UsageError where settings, processor and prompts exclude each other.

    Args:
        processor: a `Processor`, or a class or factory of molprof that makes one, which needs no model; None: none.
    """
    name = getattr(processor, "name", settings.processor)
    if settings.forced_runs and processor is None:
        raise UsageError("without a processor no token is forced", hint="--lp, or leave out --forced-runs")
    if getattr(processor, "needs_templates", False) and not _told(prompts):
        raise UsageError(
            f"the processor {name!r} needs molecules: plain text has no skeleton to keep to",
            hint="--smiles FILE; xgrammar and llguidance take --schema or --regex; or a processor of your own",
        )
    if settings.placeholder is not None and getattr(processor, "fits_placeholder", False):
        raise UsageError(f"the processor {name!r} chooses its placeholder itself", hint="leave out --placeholder")
    if settings.placeholder is not None and not getattr(processor, "fixed_length", True):
        raise UsageError(
            f"the processor {name!r} lets coordinates take as many tokens as they need: it has no placeholder",
            hint="leave out --placeholder",
        )
    if settings.sort and not _told(prompts):
        raise UsageError("prompts of plain text have no expected length to sort by", hint="leave out --sort")


def _told(prompts: Sequence[Prompt]) -> bool:
    """Return True if all prompts are of molecules, so that the length of each answer is known."""
    return all(prompt.molecule is not None for prompt in prompts)


@dataclass(frozen=True)
class _Need:
    """What one prompt needs: its own tokens, the most tokens of its answer, and the expected steps of its answer."""

    width: int
    bound: int
    length: int


@dataclass(frozen=True)
class PassResult:
    """The tokens that one pass over all batches wrote."""

    batches: tuple[BatchResult, ...]
    wall_ns: int  # the device synchronized at both ends
    compiles: int | None  # frames that torch compiled meanwhile; None if it does not say
    compile_ns: int | None


@dataclass(frozen=True)
class Runner:
    """Makes passes over batches: a model, a processor (None: unconstrained), and how to decode."""

    loaded: LoadedModel
    processor: Processor | None
    settings: CaptureSettings

    def plan(self, prompts: Sequence[Prompt]) -> list[BatchPlan]:
        """Cuts prompts into batches and bounds their answers by their templates.

        With a static cache all batches share one prompt width and one bound, so that a compiled forward sees one cache
        shape. A compiled run fills the last batch up with spare rows for the same reason.
        """
        settings = self.settings
        _ = self.engine  # refuses what it cannot do
        check_fit(settings, self.processor, prompts)
        needs = [self._need(prompt) for prompt in prompts]
        _check_context(prompts, needs, self.loaded.context)
        static = settings.kv_cache in STATIC_CACHES
        sort = self.sorts(prompts)
        full = is_compiled(settings, self.loaded.on_gpu)
        joined = settings.engine_name in JOINED
        size = max(len(prompts), 1) if joined else settings.batch_size
        plans = _cut(prompts, needs, size, sort, one_width=static, full_rows=full)
        if joined:
            plans = [replace(plan, most_waiting=_most_waiting(plan, settings)) for plan in plans]
        return _fitted(plans, settings.padding_multiple, settings.max_cache_length, self.loaded.context)

    def sorts(self, prompts: Sequence[Prompt]) -> bool:
        """Whether batches are cut by length: as `sort` says, else if all prompts are of molecules."""
        return _told(prompts) if self.settings.sort is None else self.settings.sort

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine of the settings."""
        return make_engine(self.settings.engine_name, self.loaded, self.settings)

    @functools.cached_property
    def templates(self) -> Templates:
        """Builds templates with the processor's placeholder."""
        form = self.loaded.target.form
        placeholder = self.placeholder or form.numbers(PLACEHOLDER)
        threads, cache = self.template_threads, self.settings.template_cache
        return Templates(self.loaded.tokenizer, placeholder, threads, cache, form)

    @property
    def placeholder(self) -> str | None:
        """What templates write for a coordinate: as the settings say, else the processor's own; None without one."""
        if self.settings.placeholder is not None:
            return self.loaded.target.form.numbers(self.settings.placeholder)
        return getattr(self.processor, "placeholder", None)

    @property
    def template_threads(self) -> int:
        """The number of threads that build templates."""
        return self.settings.template_threads or default_threads()

    def run(
        self, plans: Sequence[BatchPlan], marks: Marks | None, only: int | None = None, wrap: Wrap | None = None
    ) -> PassResult:
        """One pass over all batches, or over batch `only`. Raises ProcessorError where a user's processor fails.

        Args:
            wrap: what stands in for the processor of each batch.
        """
        results = []
        self.templates.clear()
        kernel = KERNELS.get(self.settings.attention.removeprefix("sdpa-"))
        with nullcontext() if kernel is None else sdpa_kernel(kernel):
            self.synchronize()
            engine = self.engine  # made once per run, outside the timed span
            before = compiles_so_far()
            began = time.perf_counter_ns()
            for number, plan in enumerate(plans):
                if only is None or number == only:
                    try:
                        results.append(self._batch(engine, number, plan, marks or Marks(), wrap))
                    except ProcessorError as problem:
                        raise problem.in_batch(number) from problem.__cause__
            self.synchronize()
            wall_ns = time.perf_counter_ns() - began
        compiled = compiles_so_far().since(before)
        return PassResult(tuple(results), wall_ns, compiled.count, compiled.time_ns)

    def synchronize(self) -> None:
        """Wait for the GPU, if there is one."""
        synchronize(self.loaded.target.device)

    def _need(self, prompt: Prompt) -> _Need:
        max_new_tokens = self.settings.max_new_tokens
        width = len(self.loaded.tokenizer(prompt.text)["input_ids"])
        if prompt.body is not None:
            max_new_tokens = most_tokens(prompt.body) or max_new_tokens
        if prompt.molecule is None:
            if max_new_tokens is None:
                raise UsageError("a plain-text prompt has no template to bound its answer", hint="--max-new-tokens N")
            return _Need(width, max_new_tokens, max_new_tokens)
        (template,) = self.templates.build([prompt.molecule])
        # The same bound for all runs, constrained or not, so that their caches are alike.
        bound = len(template.ids) + 1 + _SLACK_PER_BLOCK * len(prompt.molecule.atoms) + _SLACK
        if (longest := getattr(self.processor, "longest", None)) is not None:
            bound = max(bound, int(longest(template)))  # the end token included
        # With forced runs a step is a choice.
        steps = int(template.free.sum()) if self.settings.forced_runs else len(template.ids) + 1
        return _Need(width, bound if max_new_tokens is None else max_new_tokens, steps)

    def _batch(self, engine: Engine, number: int, plan: BatchPlan, marks: Marks, wrap: Wrap | None) -> BatchResult:
        studied: BatchProcessor | None = None
        if self.processor is not None:
            molecules = [prompt.molecule for prompt in plan.row_prompts if prompt.molecule is not None]
            compiles = getattr(self.processor, "compiles", False)
            templates: Sequence[Template] = ()
            if molecules or not compiles:
                with marks.setup("template", number):
                    templates = self.templates.build(molecules)
                    if not compiles:
                        studied = self.processor.start(Rows(plan.row_prompts, plan.prompt_width, templates))
            if compiles:
                with marks.setup("compile", number):
                    studied = self.processor.start(Rows(plan.row_prompts, plan.prompt_width, templates))
            assert studied is not None
            studied = studied if wrap is None else wrap(studied)
        if self.settings.samples:
            torch.manual_seed(self.settings.seed * 1_000_003 + number)
        result = engine.generate(number, plan, studied, marks)
        if studied is None or (masked := studied.masked_logits) is None:
            return result
        return replace(result, masked_logits=tuple(masked[: len(plan.prompts)]))


def _check_context(prompts: Sequence[Prompt], needs: Sequence[_Need], context: int | None) -> None:
    """Raise UsageError where a prompt and its answer need more tokens than the model's context."""
    for prompt, need in zip(prompts, needs, strict=True):
        if context is not None and need.width + need.bound > context:
            what = "molecule" if prompt.molecule is not None else "prompt"
            remedy = "leave it out" if prompt.molecule is not None else "shorten it, or leave it out"
            needed = f"needs {need.width:,} + {need.bound:,} tokens (prompt + answer) of {context:,}"
            if need.width >= context:
                hint = f"the {what} alone fills the model's context: {remedy}"
            else:
                hint = f"leave the {what} out, or bound its answer: --max-new-tokens {context - need.width}"
            raise UsageError(f"line {prompt.line}: {shortened(prompt.text)} {needed}", hint=hint)


def _cut(
    prompts: Sequence[Prompt],
    needs: Sequence[_Need],
    batch_size: int,
    sort: bool = False,
    one_width: bool = False,
    full_rows: bool = False,
) -> list[BatchPlan]:
    """Batches of at most `batch_size` prompts.

    Args:
        sort: by expected length, so that few rows idle; the longest first, so that a lack of memory shows at once.
        one_width: all batches share the widest prompt and the highest bound, and so one cache shape.
        full_rows: the last batch gets spare rows, so that all have one shape.
    """
    order = list(range(len(prompts)))
    if sort:
        order.sort(key=lambda index: -needs[index].length)
    plans = []
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        sized = range(len(prompts)) if one_width else chosen
        plans.append(
            BatchPlan(
                prompts=tuple(prompts[index] for index in chosen),
                sequences=tuple(chosen),
                max_new_tokens=max(needs[index].bound for index in sized),
                prompt_width=max(needs[index].width for index in sized),
                spare_rows=batch_size - len(chosen) if full_rows and start > 0 else 0,
            )
        )
    return plans


def _most_waiting(plan: BatchPlan, settings: CaptureSettings) -> int:
    """Return the steps until the last request has arrived, and those before it have had their turn."""
    arrived = int(plan.rows / settings.arrivals) if settings.arrivals else 0
    return arrived + -(-plan.rows * plan.max_new_tokens // settings.batch_size)


def _fitted(
    plans: Sequence[BatchPlan], multiple: int, cache_length: int | None, context: int | None
) -> list[BatchPlan]:
    """Return the batches with prompts padded to a multiple of `multiple` tokens.

    Raises UsageError where one is longer than the model's context, or than a static cache of `cache_length` columns.
    """
    wide = [replace(plan, prompt_width=-(-plan.prompt_width // multiple) * multiple) for plan in plans]
    for plan in wide:
        columns = plan.prompt_width + plan.max_new_tokens
        needed = f"{plan.prompt_width:,} + {plan.max_new_tokens:,} tokens (prompt + answer) of a batch"
        if multiple > 1 and context is not None and columns > context:
            raise UsageError(
                f"padded to a multiple of {multiple:,}, the {needed} exceed the context of {context:,}",
                hint="a smaller --pad-multiple or --max-new-tokens",
            )
        if cache_length is not None and columns > cache_length:
            raise UsageError(
                f"--max-cache-length {cache_length:,} is less than the {needed}",
                hint=f"--max-cache-length {columns}, or a smaller --max-new-tokens",
            )
    return wide
