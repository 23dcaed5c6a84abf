"""Packing a trained compact model into the checkpoint that a preset is loaded from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from molprof.common.files import replacing
from molprof.profiler.models.architecture import ARCHITECTURES
from molprof.profiler.models.checkpoint import METADATA, OUTPUT, Header
from training.encode import CompactVocabulary

_EMBEDDING = "model.embed_tokens.weight"


def save(
    path: Path, model: PreTrainedModel, vocabulary: CompactVocabulary, preset: str, record: dict[str, Any]
) -> None:
    """Writes a trained compact model, float16, with everything needed to expand it.

    Args:
        model: tied embeddings with `vocabulary.rows` rows; its config's eos and pad are compact ids.
        record: JSON-ready account of the training.
    """
    if vocabulary.full_size != ARCHITECTURES[preset].logits_width:
        raise ValueError(f"{vocabulary.full_size} columns; {preset} has {ARCHITECTURES[preset].logits_width}")
    tensors = {
        name: tensor.detach().to("cpu", torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != OUTPUT  # tied to the embedding
    }
    if tensors[_EMBEDDING].shape[0] != vocabulary.rows:
        raise ValueError(f"{tensors[_EMBEDDING].shape[0]} embedding rows for {vocabulary.rows} compact ids")
    eos, pad = vocabulary.ids[model.config.eos_token_id], vocabulary.ids[model.config.pad_token_id]
    header = Header(preset, vocabulary.ids, eos, pad, record)
    with replacing(path) as part:
        save_file(tensors, str(part), metadata={"format": "pt", METADATA: json.dumps(asdict(header))})
