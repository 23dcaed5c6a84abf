"""Models load from a folder; unusable ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.constraints.vectorized import suited_masks
from molprof.profiler.models.device import resolve_device
from molprof.profiler.models.load import export, load


def test_devices_and_models_that_are_not_there(tmp_path: Path) -> None:
    for name, message in (("tpu", "no device 'tpu'"), ("cuda:x", "no device 'cuda:x'"), ("cpu:1", "no device 'cpu:1'")):
        with pytest.raises(UsageError, match=message):
            resolve_device(name)
    with pytest.raises(UsageError, match=r"no folder .*/none to load the model from"):
        load(CaptureSettings(str(tmp_path / "none")))
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UsageError, match=r"(?m)the folder .*/folder holds no model: it has no config\.json$"):
        load(CaptureSettings(str(folder), tokenizer="llama"))
    with pytest.raises(UsageError, match=r"holds no tokenizer: it has no tokenizer\.json, no tokenizer_config\.json, "):
        load(CaptureSettings("llama", tokenizer=str(folder)))
    (folder / "config.json").write_text("{}")
    with pytest.raises(UsageError) as caught:
        load(CaptureSettings(str(folder)))
    message = str(caught.value)
    assert message.startswith(f"cannot load the model or tokenizer '{folder}': ")
    assert "\n" not in message
    assert len(message) < 600


def test_a_model_from_a_folder(tmp_path: Path) -> None:
    size = "layers=1,hidden=16,heads=2,kv_heads=2,head_dim=8,mlp=16"
    preset = CaptureSettings("llama", size=size, weights="random", dtype="bfloat16", device="cpu")
    source, folder = load(preset), tmp_path / "model"
    export(preset, folder)
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # who may read one may read all
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    read = load(CaptureSettings(str(folder), dtype="bfloat16", device="cpu", attention="eager"))
    assert (str(read.model.dtype), read.model.config._attn_implementation) == ("torch.bfloat16", "eager")
    assert (suited_masks(read.target), read.eos, read.notes, read.context) == ("generic", source.eos, (), 2048)
    assert read.target.table == source.target.table
    weights = source.model.state_dict()
    assert {name: torch.equal(item, weights[name]) for name, item in read.model.state_dict().items()} == dict.fromkeys(
        weights, True
    )
    with pytest.raises(UsageError, match="model already exists"):
        export(preset, folder)
