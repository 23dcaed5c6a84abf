"""Random tiny models with the presets' real tokenizers, and a processor that forces given texts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from alone import alone
from transformers import PreTrainedTokenizerFast

from molprof.common.files import cache_dir
from molprof.profiler.constraints.base import BatchProcessor, Rows
from molprof.profiler.constraints.rows import Force, RowProcessor
from molprof.profiler.engines import BatchPlan
from molprof.profiler.engines.runner import Runner
from molprof.profiler.models.architecture import ARCHITECTURES, Architecture, Shape, build, config
from molprof.profiler.models.load import LoadedModel, describe
from molprof.profiler.models.target import ProcessorTarget, TokenBytes, token_bytes
from molprof.profiler.models.tokenizers import preset_tokenizer
from molprof.profiler.molecules.prompts import Prompt

SHAPE = Shape(layers=1, hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=32)


@functools.cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):  # the first worker converts it
        return preset_tokenizer(name)


@functools.cache
def table(name: str) -> TokenBytes:
    return token_bytes(tokenizer(name))


@functools.cache
def loaded(name: str) -> LoadedModel:
    """A random model of the preset's family and real logits width."""
    torch.manual_seed(0)
    text = tokenizer(name)
    architecture = Architecture(name, SHAPE, ARCHITECTURES[name].logits_width)
    settings = config(architecture, architecture.logits_width, text.eos_token_id, text.pad_token_id)
    model = build(settings).eval()
    head = model.get_output_embeddings().weight
    head.data = head.data.t().contiguous().t()  # by columns, as presets have it: its product takes half as long
    return describe(name, name, model, text)


def plan(run: Runner, prompts: Sequence[Prompt], size: int, bound: int | None = None) -> list[BatchPlan]:
    """Batches of `size` prompts, of answers of at most `bound` tokens."""
    settings = dataclasses.replace(run.settings, batch_size=size, max_new_tokens=bound)
    planning = dataclasses.replace(run, settings=settings)
    vars(planning)["engine"] = run.engine  # which is made once for both
    return planning.plan(prompts)


def ids(name: str, text: str) -> list[int]:
    return list(tokenizer(name)(text, add_special_tokens=False)["input_ids"])


class Script:
    """Writes `texts[template.text]`, whatever the model says."""

    name = "script"
    placeholder = "0.0000,0.0000,0.0000"
    parameters: ClassVar[dict[str, Any]] = {}
    texts: ClassVar[dict[str, str]] = {}

    def __init__(self, target: ProcessorTarget) -> None:
        self._target = target

    def start(self, rows: Rows) -> BatchProcessor:
        text = self._target.tokenizer
        written = [text(self.texts[item.text], add_special_tokens=False)["input_ids"] for item in rows.templates]
        return RowProcessor([[Force(token) for token in row] for row in written], rows.prompt_width, self._target.eos)
