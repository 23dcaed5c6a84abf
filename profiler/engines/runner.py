"""One pass: all molecules, batch by batch, through transformers' `generate` or molprof's own loop, marked or not."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch.nn.attention import sdpa_kernel

from molprof.common.errors import ProcessorError, UsageError
from molprof.common.settings import AUTO, STATIC_CACHES, CaptureSettings
from molprof.profiler.constraints.base import BatchProcessor, Processor
from molprof.profiler.engines import Engine
from molprof.profiler.engines.batches import BatchPlan, BatchResult, Need, PassResult, check_context, cut, fitted
from molprof.profiler.engines.compilation import compiles_so_far
from molprof.profiler.engines.explained import KERNELS
from molprof.profiler.engines.forced import Forced
from molprof.profiler.engines.generate import Generate
from molprof.profiler.models.device import synchronize
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.template import PLACEHOLDER, Templates, default_threads
from molprof.profiler.recording.marks import Marks

# Without a processor each of the three numbers of a block may be one token longer than its placeholder (a minus, or a
# second digit before the point). The slack beyond that cuts only texts that went astray.
_SLACK_PER_BLOCK, _SLACK = 3, 8

Wrap = Callable[[BatchProcessor], BatchProcessor]


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
        if settings.forced_runs and self.processor is None:
            raise UsageError("without a processor no token is forced", hint="--lp, or leave out --forced-runs")
        if getattr(self.processor, "needs_templates", False) and any(prompt.molecule is None for prompt in prompts):
            assert self.processor is not None
            raise UsageError(
                f"the processor {self.processor.name!r} needs molecules: plain text has no skeleton to keep to",
                hint="--smiles FILE, or a processor of your own: --processor package.module:factory",
            )
        self._check_placeholder()
        needs = [self._need(prompt) for prompt in prompts]
        check_context(prompts, needs, self.loaded.context)
        static = settings.kv_cache in STATIC_CACHES
        sort = self.sorts(prompts)
        plans = cut(prompts, needs, settings.batch_size, sort, one_width=static, full_rows=self.compiled)
        return fitted(plans, settings.padding_multiple, settings.max_cache_length, self.loaded.context)

    def sorts(self, prompts: Sequence[Prompt]) -> bool:
        """Whether batches are cut by length: as `sort` says, else if all prompts are of molecules."""
        told = all(prompt.molecule is not None for prompt in prompts)
        if self.settings.sort and not told:
            raise UsageError("prompts of plain text have no expected length to sort by", hint="leave out --sort")
        return told if self.settings.sort is None else self.settings.sort

    @property
    def compiled(self) -> bool:
        """Whether the forward of a decode step is compiled."""
        if self.settings.drop_finished or self.settings.kv_cache not in STATIC_CACHES:
            return False
        return self.loaded.on_gpu if self.settings.compile == AUTO else self.settings.compile != "off"

    @functools.cached_property
    def engine(self) -> Engine:
        if self.settings.own_loop:
            return Forced(self.loaded, self.settings, self.compiled)
        return Generate(self.loaded, self.settings)

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

    def _check_placeholder(self) -> None:
        if self.settings.placeholder is None or self.processor is None:
            return
        name = self.processor.name
        if getattr(self.processor, "fits_placeholder", False):
            raise UsageError(f"the processor {name!r} chooses its placeholder itself", hint="leave out --placeholder")
        if not getattr(self.processor, "fixed_length", True):
            raise UsageError(
                f"the processor {name!r} lets coordinates take as many tokens as they need: it has no placeholder",
                hint="leave out --placeholder",
            )

    @property
    def template_threads(self) -> int:
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
        """Waits for the GPU, if there is one."""
        synchronize(self.loaded.target.device)

    def _need(self, prompt: Prompt) -> Need:
        max_new_tokens = self.settings.max_new_tokens
        width = len(self.loaded.tokenizer(prompt.text)["input_ids"])
        if prompt.molecule is None:
            if max_new_tokens is None:
                raise UsageError("a plain-text prompt has no template to bound its answer", hint="--max-new-tokens N")
            return Need(width, max_new_tokens, max_new_tokens)
        (template,) = self.templates.build([prompt.molecule])
        # The same bound for all runs, constrained or not, so that their caches are alike.
        bound = len(template.ids) + 1 + _SLACK_PER_BLOCK * len(prompt.molecule.atoms) + _SLACK
        if (longest := getattr(self.processor, "longest", None)) is not None:
            bound = max(bound, int(longest(template)))  # the end token included
        # With forced runs a step is a choice.
        steps = int(template.free.sum()) if self.settings.forced_runs else len(template.ids) + 1
        return Need(width, bound if max_new_tokens is None else max_new_tokens, steps)

    def _batch(self, engine: Engine, number: int, plan: BatchPlan, marks: Marks, wrap: Wrap | None) -> BatchResult:
        studied: BatchProcessor | None = None
        if self.processor is not None:
            with marks.setup("template", number):
                molecules = [prompt.molecule for prompt in plan.row_prompts if prompt.molecule is not None]
                templates = self.templates.build(molecules)
                if (set_prompts := getattr(self.processor, "set_prompts", None)) is not None:
                    set_prompts(plan.row_prompts)
                studied = self.processor.start(templates, plan.prompt_width)
                studied = studied if wrap is None else wrap(studied)
        if self.settings.sampling != "greedy":
            torch.manual_seed(self.settings.seed * 1_000_003 + number)
        return engine.generate(number, plan, studied, marks)
