"""A widened model is the same function: each mapping with small random models, then the presets themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from molprof.common.errors import RunError
from molprof.common.settings import CaptureSettings
from molprof.profiler.models.architecture import Architecture, Shape, build_empty, config, sized
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.models.widening import query_heads, randomize, repeated, rotary_places, widen
from molprof.profiler.molecules.prompts import read_prompts

CPU = torch.device("cpu")
NARROW = Shape(layers=2, hidden=24, heads=4, kv_heads=2, head_dim=8, mlp=20)
VOCABULARY = 50
WIDER: dict[str, dict[str, int]] = {
    "same": {},
    "hidden": {"hidden": 40},
    "heads": {"heads": 8, "kv_heads": 4},
    "heads-unevenly": {"heads": 6, "kv_heads": 3},
    "groups-of-more": {"heads": 6, "kv_heads": 2},
    "groups-cut": {"heads": 4, "kv_heads": 4},
    "rotary-thrice": {"head_dim": 24},
    "rotary-four-times": {"head_dim": 32},
    "mlp": {"mlp": 33},
    "layers": {"layers": 5},
    "all": {"layers": 4, "hidden": 80, "heads": 10, "kv_heads": 5, "head_dim": 32, "mlp": 64},
}
FAMILIES = pytest.mark.parametrize("family", ["qwen", "llama"])


def empty(family: str, shape: Shape, tied: bool = True, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    settings = config(Architecture(family, shape, VOCABULARY, tied=tied), VOCABULARY, eos=1, pad=0)
    # Far above the real 1e-6: a rescaling that forgets it shows.
    settings.rms_norm_eps = 0.05  # type: ignore[attr-defined]
    return build_empty(settings, dtype, CPU)


def trained(family: str) -> PreTrainedModel:
    """Every weight, norms included, unlike any other, and attention that tells positions apart."""
    model = empty(family, NARROW)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.normal_(0.0, 1.5 * parameter.shape[1] ** -0.5, generator=generator)
    return model


def logits(model: PreTrainedModel) -> torch.Tensor:
    """(2, 14, vocabulary), the second row padded on the left."""
    ids = torch.arange(28).reshape(2, 14) * 7 % VOCABULARY
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        out: torch.Tensor = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    return torch.cat([out[0], out[1, 5:]])


def widened(family: str, tied: bool = True, **changes: int) -> PreTrainedModel:
    shape = replace(NARROW, **changes)
    model = empty(family, shape, tied)
    widen(model, trained(family).state_dict(), None, NARROW, shape)
    return model


@FAMILIES
@pytest.mark.parametrize("changes", WIDER.values(), ids=WIDER)
def test_logits_are_the_same(family: str, changes: dict[str, int]) -> None:
    torch.testing.assert_close(logits(widened(family, **changes)), logits(trained(family)), atol=1e-4, rtol=1e-5)


@FAMILIES
def test_the_small_model_tells_positions_apart(family: str) -> None:
    """Else a wrong rotary mapping would go unseen: at another base of the frequencies its logits are far off."""
    model, settings = trained(family), trained(family).config
    settings.rope_parameters = {"rope_type": "default", "rope_theta": 100.0}  # type: ignore[attr-defined]
    other: Any = trained(family)
    other.model.rotary_emb = type(other.model.rotary_emb)(settings)
    assert (logits(other) - logits(model)).abs().max() > 0.1


def test_an_output_layer_of_its_own() -> None:
    model = widened("qwen", tied=False, hidden=40)
    assert model.get_output_embeddings().weight.data_ptr() != model.get_input_embeddings().weight.data_ptr()
    torch.testing.assert_close(logits(model), logits(trained("qwen")), atol=1e-4, rtol=1e-5)


def test_rows_that_tokens_share() -> None:
    """Three rows for tokens 4 and 2 and for all others."""
    narrow = trained("qwen").state_dict()
    rows = narrow["model.embed_tokens.weight"][:3]
    model = empty("qwen", NARROW)
    widen(model, {**narrow, "model.embed_tokens.weight": rows}, (4, 2), NARROW, NARROW)
    expected = rows[[2, 2, 1, 2, 0]]
    torch.testing.assert_close(model.get_input_embeddings().weight[:5], expected, atol=0, rtol=0)


@FAMILIES
def test_only_the_queries_that_must_not_score_are_zero(family: str) -> None:
    """Zeros would let a GPU run faster than real weights do."""
    model = widened(family, **{**WIDER["all"], "mlp": 64})
    zeros = {name.split(".", 3)[-1] for name, weight in model.named_parameters() if (weight == 0).any()}
    assert zeros == {"self_attn.q_norm.weight" if family == "qwen" else "self_attn.q_proj.weight"}


def test_layers_are_reported_and_random_weights_repeat_themselves() -> None:
    seen: list[tuple[int, int]] = []
    first, second = empty("qwen", NARROW), empty("qwen", NARROW)
    randomize(first, lambda layer, layers: seen.append((layer, layers)))
    randomize(second)
    assert seen == [(1, 2), (2, 2)]
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert {tuple(weight.unique().tolist()) for weight in first.parameters() if weight.dim() == 1} == {(1.0,)}
    assert abs(float(first.get_input_embeddings().weight.detach().std()) - 0.02) < 0.002  # 1,200 draws
    seen.clear()
    widen(empty("qwen", replace(NARROW, layers=3)), trained("qwen").state_dict(), None, NARROW,
          replace(NARROW, layers=3), lambda layer, layers: seen.append((layer, layers)))  # fmt: skip
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_places() -> None:
    index, count = repeated(3, 8)
    assert (index.tolist(), count.tolist()) == ([0, 1, 2, 0, 1, 2, 0, 1], [3, 3, 2, 3, 3, 2, 3, 3])
    source, turning = rotary_places(4, 12)
    # Pairs 0 and 1 of 2 are 0 and 3 of 6; their partners come 2 and 6 later.
    assert source.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert turning.tolist() == [True, False, False] * 4
    queries, groups = query_heads(replace(NARROW, heads=6, kv_heads=2), replace(NARROW, heads=10, kv_heads=5))
    # Runs of 3 are cut into 2 and 1; the fifth key-value head is the first again.
    assert queries.tolist() == [0, 1, 2, 2, 3, 4, 5, 5, 0, 1]
    assert groups.tolist() == [0, 0, 1, 1, 0]


MIDDLE = {
    "qwen": "layers=6,hidden=320,heads=10,kv_heads=5,head_dim=64,mlp=1024",
    "llama": "layers=6,hidden=320,heads=16,kv_heads=8,head_dim=64,mlp=1023",
}


def answers(loaded: LoadedModel, texts: list[str]) -> list[list[int]]:
    encoded = loaded.tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    model: Any = loaded.model
    out = model.generate(**encoded, max_new_tokens=8, do_sample=False, pad_token_id=loaded.target.pad)
    rows: list[list[int]] = out[:, encoded["input_ids"].shape[1] :].tolist()
    return rows


@FAMILIES
def test_a_preset_writes_the_same_text(family: str) -> None:
    own = load(CaptureSettings(family, dtype="float32", device="cpu"))
    wide = load(CaptureSettings(family, dtype="float32", device="cpu", size=MIDDLE[family]))
    prompts = [prompt.text for prompt in read_prompts(None, 8).prompts]
    texts = [prompts[1], prompts[4], prompts[6]]
    ids = [own.tokenizer(text)["input_ids"] for text in texts]
    assert len(set(map(len, ids))) > 1  # so that one is padded
    with torch.no_grad():
        tokens = torch.tensor(ids[:1])
        expected, got = (item.model(input_ids=tokens).logits for item in (own, wide))
    assert expected.abs().max() > 10
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-5)
    assert answers(wide, texts) == answers(own, texts)
    assert wide.model.config.num_hidden_layers == sized(family, MIDDLE[family]).shape.layers == 6


def test_a_size_beyond_all_memory_is_refused_before_its_layers_are_made() -> None:
    wide = sized("qwen", "layers=60000,hidden=1024,heads=16,kv_heads=8,head_dim=64,mlp=4096")
    settings = config(wide, wide.logits_width, 0, 0)
    with pytest.raises(
        RunError, match=r"^the model's [0-9,]+ M parameters need [0-9,.]+ GB as torch\.float32; cpu has"
    ):
        build_empty(settings, torch.float32, torch.device("cpu"))
