"""transformers' `generate` as an engine, and its generation config."""

from __future__ import annotations

from typing import Any

import transformers
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.constraints.base import BatchProcessor
from molprof.profiler.engines import BatchPlan, BatchResult
from molprof.profiler.engines.backends import compile_config, explained
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.recording.marks import Marks, marked


class Generate:
    """The engine `generate`."""

    def __init__(self, loaded: LoadedModel, settings: CaptureSettings) -> None:
        if settings.max_cache_length is not None and not hasattr(GenerationConfig(), "max_cache_len"):
            raise UsageError(
                f"transformers {transformers.__version__} does not take the length of a static cache",
                hint="leave out --max-cache-length, or pip install --upgrade transformers",
            )
        self._loaded, self._settings = loaded, settings

    def generate(self, number: int, plan: BatchPlan, studied: BatchProcessor | None, marks: Marks) -> BatchResult:
        """Generate a batch by `generate` of transformers."""
        loaded, device = self._loaded, self._loaded.target.device
        model: Any = loaded.model
        with marks.setup("tokenize", number):
            encoded = loaded.tokenizer(
                [prompt.text for prompt in plan.row_prompts],
                padding="max_length",
                max_length=plan.prompt_width,
                padding_side="left",
                return_tensors="pt",
            )
            inputs = {name: encoded[name].to(device) for name in ("input_ids", "attention_mask")}
        processors: list[Any] = [] if studied is None else [studied]
        config = self._config(plan.max_new_tokens)
        with explained(plan, self._settings.attention), marked(marks, number):
            output: Tensor = model.generate(
                **inputs, generation_config=config, logits_processor=LogitsProcessorList(processors)
            )
        with marks.setup("text", number):
            answers = output[:, plan.prompt_width :].tolist()
            loaded.tokenizer.batch_decode(answers, skip_special_tokens=False)
        rows = tuple(until_end(answer, loaded.eos) for answer in answers[: len(plan.prompts)])
        return BatchResult(rows, (plan.rows,) * len(answers[0]))

    def _config(self, max_new_tokens: int) -> GenerationConfig:
        """Return the generation config of the settings; `followed` applies the model's own."""
        settings = self._settings
        return GenerationConfig(
            max_new_tokens=max_new_tokens,
            use_cache=True,
            cache_implementation=None if settings.kv_cache == "dynamic" else settings.kv_cache,
            max_cache_len=settings.max_cache_length,
            eos_token_id=sorted(self._loaded.eos),
            pad_token_id=self._loaded.target.pad,
            compile_config=compile_config(settings.compile),
            disable_compile=settings.compile == "off",
            **token_choice(settings),
        )


def token_choice(settings: CaptureSettings) -> dict[str, Any]:
    """Return the fields of a generation config that decide how tokens are chosen."""
    chosen: dict[str, Any] = {"do_sample": False, **settings.generate_arguments}
    if settings.samples:
        # 0 and 1.0 switch top-k and top-p off: transformers' own default draws from 50.
        chosen |= {"do_sample": True, "top_k": 0, "top_p": 1.0, **settings.sampling_parameters}
    return chosen


def until_end(answer: list[int], eos: frozenset[int]) -> tuple[int, ...]:
    """Return the tokens up to and including the first end token: transformers pads finished rows."""
    end = next((index for index, token in enumerate(answer, start=1) if token in eos), None)
    return tuple(answer[:end])
