"""molprof's own decoding loop: it feeds forced runs in one forward and drops finished rows.

A step has the phases of transformers' `generate`. It chooses one token per row; the next forward feeds that token with
the tokens forced after it (schedule.py). If positions alone decide what is forced, the whole schedule is on the device
before the first forward, and the host reads nothing back before the end. Otherwise it reads the chosen tokens once per
step, in `bookkeeping`.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.constraints.base import FORCED_RUNS, BatchProcessor, RowPositions, has
from molprof.profiler.engines import BatchPlan, BatchResult
from molprof.profiler.engines.backends import compile_config, explained, is_compiled
from molprof.profiler.engines.cache import RaggedCache
from molprof.profiler.engines.schedule import CHOSEN, COMPILED_WIDTHS, Chunk, Rules, Schedule
from molprof.profiler.models.device import pinned
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.models.target import ProcessorTarget
from molprof.profiler.recording.marks import Marks

# The schedule with all answers, the rows that each step computed, and how often the host read chosen tokens back.
Decoded = tuple[Schedule, tuple[int, ...], int]


def check_model(loaded: LoadedModel, attention: str) -> None:
    """Raise UsageError for an attention without masks, or layers that do not see all earlier tokens."""
    features = "forced runs and dropped rows"
    if attention in ("flash_attention_2", "flash_attention_3", "flex_attention"):
        raise UsageError(f"{features} need an attention that takes a mask", hint="--attention sdpa")
    config = loaded.model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) and not hasattr(config, "layer_types")
    takes = inspect.signature(loaded.model.forward).parameters
    if kinds != {"full_attention"} or sliding or config.is_encoder_decoder or "position_ids" not in takes:
        family = loaded.model.config.model_type
        raise UsageError(f"{features} need a decoder whose layers see all earlier tokens; {family!r} is none")


def cannot_drop(loaded: LoadedModel, settings: CaptureSettings) -> str | None:
    """Return why a run of these settings cannot drop finished rows; None if it can."""
    try:
        check_model(loaded, replace(settings, drop_finished=True).attention)
    except UsageError as problem:
        return str(problem)
    return None


class Forced:
    """The engine `forced`, which keeps the cache for the next batch of its shape."""

    def __init__(self, loaded: LoadedModel, settings: CaptureSettings) -> None:
        check_model(loaded, settings.attention)
        self._loaded, self._settings = loaded, settings
        self._compiled = is_compiled(settings, loaded.on_gpu)
        self._device = loaded.target.device
        self._choose = chooser(settings)
        self._cache: RaggedCache | None = None
        model: Any = loaded.model
        self._forward: Callable[..., Any] = model
        self._decode = model.get_compiled_call(compile_config(settings.compile)) if self._compiled else model
        takes = inspect.signature(model.forward).parameters
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._additive = model.config._attn_implementation == "eager"

    def generate(self, number: int, plan: BatchPlan, studied: BatchProcessor | None, marks: Marks) -> BatchResult:
        """Generate a batch in which forced tokens need no forward of their own."""
        tokenizer = self._loaded.tokenizer
        with marks.setup("tokenize", number):
            prompts = tokenizer([prompt.text for prompt in plan.row_prompts])["input_ids"]
        with explained(plan, self._settings.attention):
            finish = self._run(prompts, plan, studied, marks, number)
        with marks.setup("text", number):
            decoded, rows_per_step, host_reads = finish()
            tokenizer.batch_decode(decoded.answers, skip_special_tokens=False)
        count = len(plan.prompts)
        return BatchResult(
            rows=tuple(map(tuple, decoded.answers[:count])),
            appended=tuple(map(tuple, decoded.appended[:count])),
            rows_per_step=rows_per_step,
            host_reads=host_reads,
        )

    @torch.no_grad()
    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        plan: BatchPlan,
        batch_processor: BatchProcessor | None,
        marks: Marks,
        number: int,
    ) -> Callable[[], Decoded]:
        """Decode batch `number`, `prompts` by row; return a function that copies the answers to the host.

        Raises UsageError where forced runs are asked for, and the processor has not what `FORCED_RUNS` names.
        """
        studied: Any = None
        whole: _WholeBatch | None = None
        if batch_processor is not None and has(batch_processor, FORCED_RUNS):
            studied = batch_processor
        elif batch_processor is not None:
            if self._settings.forced_runs:
                raise UsageError(
                    f"the processor {self._settings.processor!r} does not say which tokens are forced",
                    hint="leave out --forced-runs, or write `reads_tokens`, `forced` and `mask`",
                )
            studied = whole = _WholeBatch(batch_processor, prompts, plan, self._loaded.target)
        marks.begin(number)
        is_planned = studied is not None and not studied.reads_tokens
        columns = max(plan.prompt_width + plan.max_new_tokens, self._settings.max_cache_length or 0)
        cache = self._fresh_cache(len(prompts), columns + 1)
        rules = Rules(
            ends=self._loaded.eos,
            bound=plan.max_new_tokens,
            trash=cache.capacity - 1,
            pad=self._loaded.target.pad,
            jump=self._settings.forced_runs,
            drop=self._settings.drop_finished,
            widths=COMPILED_WIDTHS if self._compiled else (),
        )
        schedule = Schedule(prompts, None if studied is None else studied.forced, rules)
        chunks = [schedule.first()]
        while is_planned and (chunk := schedule.next(None)) is not None:
            chunks.append(chunk)
        waiting = upload(chunks, self._device)
        chosen: list[Tensor] = []
        step, ended = 0, False
        while not ended:
            marks.forward()
            fed = waiting[step]
            scores = self._scores(cache, fed, chosen[-1] if chosen else None, prefill=step == 0)
            marks.processor()
            if studied is not None:
                scores = studied.mask(scores, fed.at)
            marks.sampling()
            chosen.append(self._choose(scores))
            if whole is not None:
                whole.chose(chosen[-1], fed.at)
            marks.bookkeeping()
            if not is_planned and (following := schedule.next(chosen[-1].tolist())) is not None:
                chunks.append(following)
                waiting += upload([following], self._device)
            step += 1
            ended = step == len(waiting) or marks.enough()
        marks.end()

        def finish() -> Decoded:
            rows_per_step = tuple(len(chunk.rows) for chunk in chunks[:step])
            if is_planned:  # the choices are still on the device
                tokens = iter(torch.cat(chosen).tolist())
                for index, count in enumerate(rows_per_step):
                    schedule.fill(index, list(itertools.islice(tokens, count)))
            schedule.cut(step)
            return schedule, rows_per_step, 0 if is_planned else step

        return finish

    def _scores(self, cache: RaggedCache, fed: _Fed, chosen: Tensor | None, prefill: bool) -> Tensor:
        """Return the scores of the next token of every row, float32 (rows, logits_width)."""
        tokens = fed.tokens
        if fed.kept is not None and chosen is not None:
            cache.select(fed.kept)
            chosen = chosen.index_select(0, fed.kept)
        if chosen is not None:
            tokens = torch.where(tokens == CHOSEN, chosen[:, None], tokens)
        seen: Tensor = cache.feed(fed.columns, fed.positions, fed.used)
        if self._additive:
            dtype = self._loaded.model.dtype
            seen = torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)
        forward = self._forward if prefill else self._decode
        logits: Tensor = forward(
            input_ids=tokens,
            attention_mask=seen,
            position_ids=fed.positions,
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
            **self._options,
        ).logits
        return logits[:, -1].to(torch.float32, copy=True)

    def _fresh_cache(self, rows: int, capacity: int) -> RaggedCache:
        """Return the cache of the last batch if it has the right shape: its old content is never read."""
        cache = self._cache
        if cache is None or (cache.rows, cache.capacity) != (rows, capacity):
            self._cache = None  # frees its memory before the next one takes it
            whole = self._settings.kv_cache == "static"
            layers = self._loaded.model.config.get_text_config(decoder=True).num_hidden_layers
            cache = self._cache = RaggedCache(layers, rows, capacity, whole, self._device)
        return cache


class _WholeBatch:
    """A processor that is called with the whole batch in every step, as in `generate`; it forces no token.

    Rows that have left the batch are there with their end token and padding, and with scores of 0.
    """

    reads_tokens = True

    def __init__(
        self, studied: BatchProcessor, prompts: Sequence[Sequence[int]], plan: BatchPlan, target: ProcessorTarget
    ) -> None:
        self._studied, self._width = studied, plan.prompt_width
        columns = plan.prompt_width + plan.max_new_tokens
        padded = [[target.pad] * (self._width - len(prompt)) + list(prompt) for prompt in prompts]
        self._ids = torch.full((len(prompts), columns), target.pad, dtype=torch.int64)
        self._ids[:, : self._width] = torch.tensor(padded)
        self._ids = self._ids.to(target.device)

    @property
    def masked_logits(self) -> list[int] | None:
        return self._studied.masked_logits

    def forced(self, row: int, position: int, chosen: int | None) -> Sequence[int]:
        return ()

    def mask(self, scores: Tensor, at: RowPositions) -> Tensor:
        ids = self._ids[:, : self._width + at.positions[0]]  # no row is ahead of another
        if len(scores) == len(ids):
            return self._studied(ids, scores)
        whole = scores.new_zeros((len(ids), scores.shape[1])).index_copy_(0, at.row_ids, scores)
        return self._studied(ids, whole).index_select(0, at.row_ids)

    def chose(self, tokens: Tensor, at: RowPositions) -> None:
        """Record the chosen tokens of the step at these positions."""
        self._ids[at.row_ids, self._width + at.positions[0]] = tokens


@dataclass(frozen=True)
class _Fed:
    """A `Chunk` on the device."""

    at: RowPositions
    kept: Tensor | None
    tokens: Tensor
    columns: Tensor
    positions: Tensor
    used: int


def upload(chunks: Sequence[Chunk], device: torch.device) -> list[_Fed]:
    """Copy all chunks to the device at once, without a host sync."""
    arrays: list[np.ndarray] = []
    for chunk in chunks:
        arrays += (chunk.tokens, chunk.columns, chunk.positions, chunk.rows, chunk.places)
        arrays += () if chunk.kept is None else (chunk.kept,)
    table = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    parts = iter(pinned(table, device).to(device, non_blocking=True).split([array.size for array in arrays]))
    fed = []
    for chunk in chunks:
        tokens, columns, positions = (next(parts).view(chunk.tokens.shape) for _ in range(3))
        at = RowPositions(tuple(chunk.rows.tolist()), tuple(chunk.places.tolist()), next(parts), next(parts))
        kept = None if chunk.kept is None else next(parts)
        fed.append(_Fed(at, kept, tokens, columns, positions, chunk.used))
    return fed


_WARPERS: dict[str, Callable[[Any], LogitsProcessor]] = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
}


def chooser(settings: CaptureSettings) -> Callable[[Tensor], Tensor]:
    """Return transformers' choice of tokens, int64 (rows,), from scores (rows, logits_width)."""
    if not settings.samples:
        return lambda scores: scores.argmax(dim=-1)
    warpers = LogitsProcessorList()
    for name, value in settings.sampling_parameters.items():
        if (name, value) != ("temperature", 1.0):
            warpers.append(_WARPERS[name](value))

    def sample(scores: Tensor) -> Tensor:
        for warper in warpers:
            scores = warper(None, scores)
        return torch.multinomial(scores.softmax(dim=-1), num_samples=1).squeeze(1)

    return sample
