"""Loading a model and its tokenizer: a preset, or any causal language model by transformers."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from molprof.common.errors import RunError, UsageError
from molprof.common.settings import RANDOM, CaptureSettings
from molprof.common.text import shortened
from molprof.common.text_format import DEFAULT, TextFormat
from molprof.profiler.models.architecture import ACCEPTED, ARCHITECTURES, check_preset
from molprof.profiler.models.checkpoint import implementation, load_preset
from molprof.profiler.models.device import on_gpu, resolve_device, resolve_dtype
from molprof.profiler.models.hub import not_found, only_local
from molprof.profiler.models.target import ProcessorTarget, token_bytes
from molprof.profiler.models.tokenizers import VOCABULARIES, preset_tokenizer
from molprof.profiler.models.widening import Report

# Errors of transformers may list every architecture that it knows.
_REASON_CHARACTERS = 400


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model with its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    eos: frozenset[int]  # ids that end a sequence; processors force `target.eos`
    target: ProcessorTarget
    notes: tuple[str, ...]  # on model and tokenizer
    # what the model's own generation config declares, by name
    generation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """True if the model is on a GPU."""
        return on_gpu(self.target.device)

    @property
    def context(self) -> int | None:
        """The longest sequence of the model, in tokens; None if its configuration has none."""
        value = getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        return int(value) if value else None


def load(settings: CaptureSettings, report: Report = lambda layer, layers: None, weights: bool = True) -> LoadedModel:
    """Return the model and tokenizer of `settings`: a preset, whose layers `report` counts, or by path or hub id.

    weights: False: another program has them; the model, which is no preset, is on torch's device `meta`.
    """
    check_preset(settings)
    name, tokenizer = settings.model, settings.tokenizer or settings.model
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    local = None if name in ARCHITECTURES else only_local("model", name)
    tokenizer_local = local
    if tokenizer != name and tokenizer not in VOCABULARIES:
        tokenizer_local = only_local("tokenizer", tokenizer)
    with _quiet():
        text = _load_tokenizer(tokenizer, settings.trust_remote_code, tokenizer_local)
        if name in ARCHITECTURES:
            try:
                model = load_preset(settings, dtype, device, report)
            except ImportError as problem:  # transformers: the attention's package is missing
                raise UsageError(f"the attention {settings.attention!r}: {problem}", "--attention sdpa") from problem
        else:
            model = _load_model(settings, dtype, device, local, weights)
    loaded = describe(name, tokenizer, model, text, settings.text_format)
    # prompts of plain text have no tags
    notes = [] if settings.prompts is not None else _tag_notes(text, settings.text_format)
    if settings.weights == RANDOM:
        notes.append("the weights are random: times and launches are real, tokens and drift are not meaningful")
    return dataclasses.replace(loaded, notes=(*loaded.notes, *notes))


def load_target(name: str) -> ProcessorTarget:
    """Return the parts of a tokenizer that a processor needs, without loading a model.

    Logits are as wide as the preset's, or as the vocabulary.
    """
    tokenizer = _load_tokenizer(name, False, None if name in VOCABULARIES else only_local("tokenizer", name))
    _check_tokenizer(name, tokenizer)
    table, eos = token_bytes(tokenizer), tokenizer.eos_token_id
    width = ARCHITECTURES[name].logits_width if name in ARCHITECTURES else len(table.pieces)
    return ProcessorTarget(tokenizer, table, width, eos, eos, torch.device("cpu"))


def export(settings: CaptureSettings, folder: Path, report: Report = lambda layer, layers: None) -> None:
    """Write the preset of `settings` to a folder: config, tokenizer and safetensors, as transformers loads them.

    vLLM loads the same. The folder appears when it is whole. Raises UsageError where it cannot be written or
    has files already, and what `load` raises.
    """
    if folder.exists() and not (folder.is_dir() and next(folder.iterdir(), None) is None):
        raise UsageError(f"{folder} already exists", hint="name a folder that is new or empty")
    if not folder.parent.is_dir():
        raise UsageError(f"the directory {folder.parent} does not exist", hint=f"mkdir -p {folder.parent}")
    loaded = load(settings, report)
    head = loaded.model.get_output_embeddings().weight
    head.data = head.data.contiguous()  # on a CPU it is stored by columns, as no file can hold it
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch, _quiet():
        part = Path(scratch, "model")
        loaded.model.save_pretrained(part)
        loaded.tokenizer.save_pretrained(part)
        mode = (part / "config.json").stat().st_mode
        for path in part.glob("*.safetensors"):
            path.chmod(mode)  # safetensors lets its owner alone read them
        part.rename(folder)


def describe(
    name: str,
    tokenizer_name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    form: TextFormat = DEFAULT,
) -> LoadedModel:
    """Return a model and its tokenizer, ready to generate; UsageError if they do not belong together."""
    _check_tokenizer(tokenizer_name, tokenizer)
    width = model.get_output_embeddings().weight.shape[0]
    table = token_bytes(tokenizer)
    if len(table.pieces) > width:
        raise UsageError(
            f"the tokenizer {tokenizer_name!r} has ids up to {len(table.pieces) - 1}, "
            f"the model {name!r} only {width} logits",
            hint="--tokenizer with the model's own tokenizer",
        )
    eos = tokenizer.eos_token_id
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = eos
    declared = model.generation_config.eos_token_id
    ends = {eos, *(declared if isinstance(declared, list) else [declared])} - {None}
    target = ProcessorTarget(tokenizer, table, width, eos, tokenizer.pad_token_id, model.device, form)
    loaded_model = LoadedModel(
        name, model, tokenizer, frozenset(ends), target, (), model.generation_config.to_diff_dict()
    )
    # `generate` fills what a config leaves open from the model's: runs follow that by their settings alone.
    model.generation_config = GenerationConfig(eos_token_id=sorted(ends), pad_token_id=tokenizer.pad_token_id)
    return loaded_model


def _check_tokenizer(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    if not tokenizer.is_fast:
        raise UsageError(f"the tokenizer {name!r} gives no character offsets", "use a model with a fast tokenizer")
    if tokenizer.eos_token_id is None:
        raise UsageError(f"the tokenizer {name!r} has no end-of-sequence token", hint="--tokenizer NAME")


def sizes(model: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of `Resolved` that depend on the model alone."""
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    return {
        "family": model.config.model_type,
        "parameters": model.num_parameters(),
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "mlp": getattr(config, "intermediate_size", None),
        "logits_width": model.get_output_embeddings().weight.shape[0],
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
    }


def _tag_notes(tokenizer: PreTrainedTokenizerFast, form: TextFormat) -> list[str]:
    # Added tokens would have embeddings that were never trained, or none.
    split = [tag for tag in form.tags if len(tokenizer(tag, add_special_tokens=False)["input_ids"]) != 1]
    return (
        [f"the tokenizer has no single token for {', '.join(split)}: it writes them as ordinary text"] if split else []
    )


def _load_tokenizer(name: str, trust_remote_code: bool, local: str | None) -> PreTrainedTokenizerFast:
    if name in VOCABULARIES:
        return preset_tokenizer(name)
    try:
        loaded: Any = AutoTokenizer.from_pretrained(
            name,
            trust_remote_code=trust_remote_code,
            padding_side="left",
            local_files_only=local is not None,
        )
    except (OSError, ValueError, ImportError, KeyError) as problem:
        raise _unusable("model or tokenizer", name, problem, local) from problem
    return loaded  # type: ignore[no-any-return]


def _load_model(
    settings: CaptureSettings, dtype: torch.dtype, device: torch.device, local: str | None, weights: bool
) -> PreTrainedModel:
    name = settings.model
    where: dict[str, Any] = {"local_files_only": local is not None}
    code = {"trust_remote_code": settings.trust_remote_code}
    try:
        if weights:
            # `weights_only`: reading a .bin checkpoint must not run code.
            how = {"attn_implementation": implementation(settings.attention), "weights_only": True, **code, **where}
            model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **how)
            return model.to(device).eval()  # type: ignore[no-any-return]
        config = AutoConfig.from_pretrained(name, **code, **where)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, **code)
    except torch.OutOfMemoryError as problem:
        raise RunError(f"{name!r} does not fit the GPU's memory: {_reason(problem)}", "--dtype bfloat16") from problem
    except (OSError, ValueError, ImportError, KeyError) as problem:
        raise _unusable("model", name, problem, local) from problem
    with contextlib.suppress(OSError):  # it has none of its own
        model.generation_config = GenerationConfig.from_pretrained(name, **where)
    return model  # type: ignore[no-any-return]


def _unusable(what: str, name: str, problem: Exception, local: str | None) -> UsageError:
    text = str(problem)
    if "trust_remote_code" in text:
        return UsageError(
            f"the {what} {name!r} needs to run its own code",
            hint="--trust-remote-code, if you trust its publisher",
        )
    if local is not None and isinstance(problem, OSError) and not Path(name).is_dir():
        return not_found(what, name, local)
    return UsageError(f"cannot load the {what} {name!r}: {_reason(problem)}", hint=ACCEPTED)


def _reason(problem: Exception) -> str:
    """Return the text of an error on one line."""
    return shortened(" ".join(str(problem).split()) or type(problem).__name__, _REASON_CHARACTERS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars and load reports of transformers off the screen."""
    logger = transformers.utils.logging
    level, bars = logger.get_verbosity(), logger.is_progress_bar_enabled()
    logger.set_verbosity(logging.ERROR)
    logger.disable_progress_bar()
    try:
        yield
    finally:
        logger.set_verbosity(level)
        if bars:
            logger.enable_progress_bar()
