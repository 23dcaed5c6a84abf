"""Loading models: from a folder, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from tiny import loaded

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.constraints.vectorized import suited_masks
from molprof.profiler.models.device import resolve_device
from molprof.profiler.models.load import load


def test_devices_and_models_that_are_not_there(tmp_path: Path) -> None:
    for name, message in (
        ("tpu", "no device 'tpu'"),
        ("cuda:x", "no device 'cuda:x'"),
        ("cpu:1", "no device 'cpu:1'"),
    ):
        with pytest.raises(UsageError, match=message):
            resolve_device(name)
    with pytest.raises(UsageError, match=r"no folder .*/none to load the model from"):
        load(CaptureSettings(str(tmp_path / "none")))
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UsageError, match=r"the folder .*/folder holds no model: it has no config\.json$"):
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
    source = loaded("llama")
    model = copy.deepcopy(source.model)
    head = model.get_output_embeddings().weight
    head.data = head.data.contiguous()  # transformers saves no other
    model.save_pretrained(tmp_path / "model")
    source.tokenizer.save_pretrained(tmp_path / "model")
    read = load(CaptureSettings(str(tmp_path / "model"), dtype="bfloat16", device="cpu", attention="eager"))
    assert (str(read.model.dtype), read.model.config._attn_implementation) == ("torch.bfloat16", "eager")
    assert (suited_masks(read.target), read.eos, read.notes, read.context) == ("generic", source.eos, (), 2048)
    assert read.target.table == source.target.table
