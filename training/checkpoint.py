"""A trained compact model, packed into the presets' checkpoints and read back as it is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from molprof.common.files import replacing
from molprof.profiler.models.architecture import ARCHITECTURES, build_empty, config
from molprof.profiler.models.checkpoint import METADATA, OUTPUT, Header, fill, read_header
from molprof.profiler.models.widening import EMBEDDING
from training.encode import CompactVocabulary


def save(
    path: Path, model: PreTrainedModel, vocabulary: CompactVocabulary, preset: str, record: dict[str, Any]
) -> None:
    """Write a trained compact model as float16, with what expanding it requires.

    The model has tied embeddings, and its config's eos and pad are compact ids; `record` is for JSON.
    """
    if vocabulary.full_size != ARCHITECTURES[preset].logits_width:
        raise ValueError(f"{vocabulary.full_size} columns; {preset} has {ARCHITECTURES[preset].logits_width}")
    tensors = {
        name: tensor.detach().to("cpu", torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != OUTPUT  # tied to the embedding
    }
    if tensors[EMBEDDING].shape[0] != vocabulary.rows:
        raise ValueError(f"{tensors[EMBEDDING].shape[0]} embedding rows for {vocabulary.rows} compact ids")
    eos, pad = vocabulary.ids[model.config.eos_token_id], vocabulary.ids[model.config.pad_token_id]
    header = Header(preset, vocabulary.ids, eos, pad, record)
    with replacing(path) as part:
        save_file(tensors, str(part), metadata={"format": "pt", METADATA: json.dumps(asdict(header))})


def load_compact(path: Path) -> tuple[PreTrainedModel, Header]:
    """The compact model, float32 on the CPU: compact id i is `header.ids[i]`, the last one all other tokens.

    It generates what the full model does with less work, but its probabilities lack the raised logit.
    """
    header = read_header(path)
    eos, pad = header.ids.index(header.eos), header.ids.index(header.pad)
    own = ARCHITECTURES[header.preset]
    model = build_empty(config(own, len(header.ids) + 1, eos, pad), torch.float32, torch.device("cpu"))
    fill(model, path, header, None, own.shape, lambda layer, layers: None)
    return model, header
