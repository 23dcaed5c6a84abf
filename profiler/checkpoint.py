"""A preset's compact checkpoint and the full-vocabulary model that it stands for.

A preset is trained with one output row per token that occurs and one row for all others (see
`training/encode.py`); the file holds just those rows. Expanding copies the shared row to every other column
of the real logits width. Training raised the shared row's logit by log(number of others), so the softmax
over the full width is exactly the trained distribution.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molprof.errors import RunError, UsageError
from molprof.files import replacing
from molprof.profiler.architecture import ARCHITECTURES, build, config

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

    from molprof.profiler.training.encode import CompactVocabulary

_METADATA = "molprof"
_EMBEDDING = "model.embed_tokens.weight"
_OUTPUT = "lm_head.weight"
_HEADER_BYTES = 100_000_000  # the format's own bound
_REINSTALL = "reinstall molprof"


@dataclass(frozen=True)
class Header:
    """What a checkpoint says about itself.

    Attributes:
        preset: key of `ARCHITECTURES`.
        ids: full-vocabulary id of each embedding row but the last, which is shared by all other ids.
        eos, pad: full-vocabulary ids.
        record: what the training was given.
    """

    preset: str
    ids: tuple[int, ...]
    eos: int
    pad: int
    record: dict[str, Any]


def save(
    path: Path, model: PreTrainedModel, vocabulary: CompactVocabulary, preset: str, record: dict[str, Any]
) -> None:
    """Writes a trained compact model, float16, with everything needed to expand it.

    Args:
        model: tied embeddings with `vocabulary.rows` rows; its config's eos and pad are compact ids.
        record: JSON-ready account of the training.
    """
    import torch
    from safetensors.torch import save_file

    if vocabulary.full_size != ARCHITECTURES[preset].logits_width:
        raise ValueError(f"{vocabulary.full_size} columns; {preset} has {ARCHITECTURES[preset].logits_width}")
    tensors = {
        name: tensor.detach().to("cpu", torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != _OUTPUT  # tied to the embedding
    }
    if tensors[_EMBEDDING].shape[0] != vocabulary.rows:
        raise ValueError(f"{tensors[_EMBEDDING].shape[0]} embedding rows for {vocabulary.rows} compact ids")
    eos, pad = vocabulary.ids[model.config.eos_token_id], vocabulary.ids[model.config.pad_token_id]
    header = Header(preset, vocabulary.ids, eos, pad, record)
    with replacing(path) as part:
        save_file(tensors, str(part), metadata={"format": "pt", _METADATA: json.dumps(asdict(header))})


def checkpoint_path(preset: str) -> Path:
    """Where a preset's checkpoint lies in the installed package.

    Raises:
        UsageError: no such preset.
    """
    if preset not in ARCHITECTURES:
        raise UsageError(f"no preset {preset!r}", hint=f"use one of: {', '.join(ARCHITECTURES)}")
    return Path(str(resources.files(__package__))) / "checkpoints" / f"{preset}.safetensors"


def read_header(path: Path) -> Header:
    """What a checkpoint says about itself, without its weights.

    Raises:
        RunError: the file is missing, damaged, or not a molprof checkpoint.
    """
    if not path.is_file():
        raise RunError(f"the checkpoint {path} is missing", hint=_REINSTALL)
    try:
        # The format's own layout: length of the header as uint64, then the header as JSON. Read without the
        # safetensors package, whose reader for torch imports torch.
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, _HEADER_BYTES)))
        raw = json.loads(header["__metadata__"][_METADATA])
        return Header(raw["preset"], tuple(raw["ids"]), raw["eos"], raw["pad"], raw["record"])
    except (struct.error, KeyError, TypeError, ValueError, OSError) as problem:
        raise RunError(f"{path} is not a molprof checkpoint ({problem})", hint=_REINSTALL) from problem


def load_preset(
    preset: str, dtype: torch.dtype, device: torch.device, attention: str = "sdpa", path: Path | None = None
) -> PreTrainedModel:
    """A preset's full-vocabulary model, in evaluation mode.

    Args:
        attention: transformers' `attn_implementation`.
        path: another checkpoint of the same preset, instead of the packaged one.

    Raises:
        UsageError: no such preset.
        RunError: the checkpoint is missing or damaged.
    """
    import torch

    file = path or checkpoint_path(preset)
    header = read_header(file)
    if header.preset != preset:
        raise RunError(f"{file} holds the preset {header.preset!r}, not {preset!r}", hint=_REINSTALL)
    width = ARCHITECTURES[preset].logits_width
    model = _fill(file, config(ARCHITECTURES[preset], width, header.eos, header.pad), header.ids, attention)
    torch.nn.Module.to(model, device=device, dtype=dtype)
    return model


def load_compact(path: Path) -> tuple[PreTrainedModel, Header]:
    """The compact model itself, float32 on the CPU: compact id i is `header.ids[i]`, the last one all other tokens.

    It generates what the full model does at a fraction of the work, but its probabilities lack the raised logit.

    Raises:
        RunError: the checkpoint is missing or damaged.
    """
    header = read_header(path)
    eos, pad = header.ids.index(header.eos), header.ids.index(header.pad)
    settings = config(ARCHITECTURES[header.preset], len(header.ids) + 1, eos, pad)
    return _fill(path, settings, None, "sdpa").float(), header


def _fill(path: Path, settings: PretrainedConfig, expand: tuple[int, ...] | None, attention: str) -> PreTrainedModel:
    """A model of that configuration with the checkpoint's weights, the embedding expanded to all ids or as it is."""
    from safetensors.torch import load_file

    tensors = load_file(str(path))
    if expand is not None:
        tensors[_EMBEDDING] = _expand(tensors[_EMBEDDING], expand, settings.vocab_size)
    settings._attn_implementation = attention
    model = build(settings)
    absent, unexpected = model.load_state_dict(tensors, strict=False)
    missing = sorted(set(absent) - {_OUTPUT})
    if unexpected or missing:
        raise RunError(
            f"{path} does not fit the architecture: missing {missing}, unexpected {unexpected}",
            hint=_REINSTALL,
        )
    model.tie_weights()
    model.eval()
    return model


def _expand(rows: torch.Tensor, ids: tuple[int, ...], width: int) -> torch.Tensor:
    """(len(ids) + 1, hidden) compact rows -> (width, hidden), every id not in `ids` getting the last row."""
    import torch

    if len(ids) + 1 != rows.shape[0]:
        raise RunError(f"the checkpoint has {rows.shape[0]} embedding rows for {len(ids)} tokens", hint=_REINSTALL)
    full = rows[-1].expand(width, -1).clone()
    full[torch.tensor(ids)] = rows[:-1]
    return full
