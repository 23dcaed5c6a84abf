"""A preset's compact checkpoint, and the full-vocabulary model that is loaded from it.

The file holds one output row per token that occurs and one row for all others. Loading copies the shared row to every
other column of the logits. Training raised the shared row's logit by log(number of others), so the softmax over the
full width is exactly the trained distribution.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from molprof.common.errors import RunError, UsageError
from molprof.common.settings import RANDOM, CaptureSettings
from molprof.profiler.models.architecture import ARCHITECTURES, Shape, build, build_empty, config, sized

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from molprof.profiler.models.widening import Report

METADATA = "molprof"
OUTPUT = "lm_head.weight"
_HEADER_BYTES = 100_000_000  # the format's own bound
_REINSTALL = "reinstall molprof"


@dataclass(frozen=True)
class Header:
    """The metadata of a checkpoint; ids are those of the full vocabulary."""

    preset: str
    ids: tuple[int, ...]  # of each embedding row but the last, which all other ids share
    eos: int
    pad: int
    record: dict[str, Any]  # settings and score of the training


def checkpoint_path(preset: str) -> Path:
    """Return the file of a preset's checkpoint in the installed package.

    Raises UsageError where there is no such preset.
    """
    if preset not in ARCHITECTURES:
        raise UsageError(f"no preset {preset!r}", hint=f"use one of: {', '.join(ARCHITECTURES)}")
    return Path(str(resources.files(__package__))) / "checkpoints" / f"{preset}.safetensors"


def read_header(path: Path) -> Header:
    """Return the metadata of a checkpoint. Raises RunError where the file is missing, damaged, or something else."""
    if not path.is_file():
        raise RunError(f"the checkpoint {path} is missing", hint=_REINSTALL)
    try:
        # Length of the header as uint64, then the header as JSON. The reader of the safetensors package imports torch.
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, _HEADER_BYTES)))
        raw = json.loads(header["__metadata__"][METADATA])
        return Header(raw["preset"], tuple(raw["ids"]), raw["eos"], raw["pad"], raw["record"])
    except (struct.error, KeyError, TypeError, ValueError, OSError) as problem:
        raise RunError(f"{path} is not a molprof checkpoint ({problem})", hint=_REINSTALL) from problem


def implementation(attention: str) -> str:
    """Return transformers' `attn_implementation` for an attention of `settings.ATTENTION`."""
    return "sdpa" if attention.startswith("sdpa") else attention


def load_preset(
    settings: CaptureSettings,
    dtype: torch.dtype,
    device: torch.device,
    report: Report = lambda layer, layers: None,
    path: Path | None = None,
) -> PreTrainedModel:
    """Return the full-vocabulary model of a preset, in evaluation mode; `path` replaces the packaged file."""
    preset, size = settings.model, settings.size
    file = path or checkpoint_path(preset)
    header = read_header(file)
    if header.preset != preset:
        raise RunError(f"{file} holds the preset {header.preset!r}, not {preset!r}", hint=_REINSTALL)
    wide = ARCHITECTURES[preset] if size is None else sized(preset, size, settings.weights)
    configuration = config(wide, wide.logits_width, header.eos, header.pad)
    configuration._attn_implementation = implementation(settings.attention)
    model = build_empty(configuration, dtype, device)
    if settings.weights == RANDOM:
        from molprof.profiler.models.widening import randomize

        randomize(model, report)
    else:
        fill(model, file, header, header.ids, wide.shape, report)
    return model


def fill(
    model: PreTrainedModel, path: Path, header: Header, ids: tuple[int, ...] | None, wide: Shape, report: Report
) -> None:
    """Fill a model of shape `wide` with the checkpoint's weights; `ids` expands the embedding, None keeps its rows."""
    import torch
    from safetensors.torch import load_file

    from molprof.profiler.models.widening import widen

    tensors = load_file(str(path))
    architecture = ARCHITECTURES[header.preset]
    with torch.device("meta"):
        narrow = build(config(architecture, len(header.ids) + 1, 0, 0)).state_dict()
    wanted = {name: tensor.shape for name, tensor in narrow.items() if name != OUTPUT}  # tied to the embedding
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != wanted:
        unlike = sorted(name for name in {*shapes, *wanted} if shapes.get(name) != wanted.get(name))
        raise RunError(
            f"{path} does not fit the architecture; these weights differ: {', '.join(unlike)}", hint=_REINSTALL
        )
    widen(model, tensors, ids, architecture.shape, wide, report)
