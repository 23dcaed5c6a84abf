"""The weights of a trained preset, spread over a larger shape without changing the function.

Every channel, head and unit is repeated, and every sum over repeats is divided by their number. With the narrow sizes
in small letters and the wide ones in capitals:

- Channel i with c(i) repeats has g(i) = sqrt(H / (h c(i))) times the narrow value, so that mean square and RMSNorm stay
  the same. Weights that write to the residual stream are multiplied by g, weights that read it by g h / H. A tied
  output layer has the factor of a writer; the last norm takes the remaining h / H.
- A wider head has its rotary pairs at the places of the narrow frequencies, and zeros elsewhere in LLaMA's q_proj and
  Qwen3's q_norm. A factor sqrt(t) corrects the scale 1 / sqrt(D) to 1 / sqrt(d).
- Layers beyond the trained ones are random, and their outputs cancel in pairs: they add nothing.

Keys, values and the KV cache are dense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from molprof.profiler.models.architecture import Shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
Report = Callable[[int, int], None]  # called after each layer with its number, from 1, and their number
# transformers' `initializer_range`.
_RANDOM_STD = 0.02
_SEED = 0


@dataclass(frozen=True)
class Axis:
    """One dimension of a wide weight."""

    index: Tensor  # narrow place that each wide one repeats, int64 (wide,)
    scale: Tensor  # its factor, float32 (wide,)


def repeated(narrow: int, wide: int) -> tuple[Tensor, Tensor]:
    """Return which of `narrow` items each of `wide` repeats, and how often that one is repeated; (wide,) both."""
    index = torch.arange(wide) % narrow
    return index, torch.bincount(index, minlength=narrow)[index]


def hidden_axes(narrow: int, wide: int) -> tuple[Axis, Axis, Axis]:
    """Return axes of weights that write the residual stream, of those that read it, and of norm weights.

    Repeated channels are scaled to keep the root mean square over all channels, and with it the norm's epsilon.
    """
    index, count = repeated(narrow, wide)
    gain = (wide / (narrow * count)).sqrt()
    return Axis(index, gain), Axis(index, gain * (narrow / wide)), Axis(index, torch.ones(wide))


def rotary_places(narrow: int, wide: int) -> tuple[Tensor, Tensor]:
    """Return the narrow head's dimension that each wide one repeats, and which rotate as fast; (wide,) both.

    Pair n of a head of D turns at theta^(-2n/D), which is pair n * wide / D of a wide head. A pair is a dimension
    of the first half and its partner of the second half (transformers' `rotate_half`).
    """
    step = wide // narrow
    half, pair = torch.arange(wide) // (wide // 2), torch.arange(wide) % (wide // 2)
    return half * (narrow // 2) + pair // step, pair % step == 0


def query_heads(narrow: Shape, wide: Shape) -> tuple[Tensor, Tensor]:
    """Return the narrow query head that each wide one repeats, (heads,), and the same for key-value heads, (kv_heads,).

    Runs of query heads share a key-value head (transformers' `repeat_kv`). A run longer than a wide one is cut.
    """
    run, wide_run = narrow.heads // narrow.kv_heads, wide.heads // wide.kv_heads
    cuts = [
        (group, range(group * run + first, min(group * run + first + wide_run, (group + 1) * run)))
        for group in range(narrow.kv_heads)
        for first in range(0, run, wide_run)
    ]
    chosen = [cuts[index % len(cuts)] for index in range(wide.kv_heads)]
    queries = [heads[index % len(heads)] for _, heads in chosen for index in range(wide_run)]
    return torch.tensor(queries), torch.tensor([group for group, _ in chosen])


def _heads(heads: Tensor, inside: Tensor, narrow: Shape) -> Tensor:
    """Return the narrow index of every dimension of every head."""
    return (heads[:, None] * narrow.head_dim + inside[None]).flatten()


def layer_axes(narrow: Shape, wide: Shape, normed: bool) -> dict[str, tuple[Axis, ...]]:
    """Return the axes of every weight of a decoder layer by its name there: rows and columns, or a norm's elements.

    `normed`: queries and keys are normed by head, as Qwen3 does.
    """
    write, read, norm = hidden_axes(narrow.hidden, wide.hidden)
    queries, groups = query_heads(narrow, wide)
    source, turning = rotary_places(narrow.head_dim, wide.head_dim)
    stretch = wide.head_dim / narrow.head_dim
    # Only dimensions that turn as the narrow ones do may score; the factor undoes the smaller 1 / sqrt(head_dim).
    scoring = turning * stretch**0.5
    plain, whole = torch.ones(wide.head_dim), torch.ones(wide.heads)[:, None]
    value, repeats = repeated(narrow.head_dim, wide.head_dim)
    copies = torch.bincount(queries, minlength=narrow.heads)[queries]
    unit, unit_copies = repeated(narrow.mlp, wide.mlp)
    units = Axis(unit, torch.ones(wide.mlp))
    query = Axis(_heads(queries, source, narrow), (whole * (plain if normed else scoring)).flatten())
    grouped = torch.ones(wide.kv_heads * wide.head_dim)
    merged = Axis(_heads(queries, value, narrow), (1 / (copies[:, None] * repeats)).flatten())
    axes: dict[str, tuple[Axis, ...]] = {
        "input_layernorm": (norm,),
        "self_attn.q_proj": (query, read),
        "self_attn.k_proj": (Axis(_heads(groups, source, narrow), grouped), read),
        "self_attn.v_proj": (Axis(_heads(groups, value, narrow), grouped), read),
        "self_attn.o_proj": (write, merged),
        "post_attention_layernorm": (norm,),
        "mlp.gate_proj": (units, read),
        "mlp.up_proj": (units, read),
        "mlp.down_proj": (write, Axis(unit, 1 / unit_copies)),
    }
    if normed:
        axes |= {"self_attn.q_norm": (Axis(source, scoring),), "self_attn.k_norm": (Axis(source, plain),)}
    return axes


def taken(weight: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Return a weight of the narrow model in the wide one's shape: indexed and scaled along each dimension."""
    for dimension, axis in enumerate(axes):
        shape = [-1 if index == dimension else 1 for index in range(weight.dim())]
        scale = axis.scale.to(weight.device).reshape(shape)
        weight = weight.index_select(dimension, axis.index.to(weight.device)) * scale
    return weight


@torch.no_grad()
def widen(
    model: PreTrainedModel,
    weights: Mapping[str, Tensor],
    ids: Sequence[int] | None,
    narrow: Shape,
    wide: Shape,
    report: Report = lambda layer, layers: None,
) -> None:
    """Fill a model of shape `wide` with `weights` of shape `narrow`, spread in float32 on the model's device.

    `weights` have one embedding row for each of `ids` and one for all others; None: the rows are the vocabulary.
    """
    write, _, norm = hidden_axes(narrow.hidden, wide.hidden)
    axes = layer_axes(narrow, wide, "model.layers.0.self_attn.q_norm.weight" in weights)
    parameters = dict(model.named_parameters())
    device = model.device

    def spread(name: str, along: Sequence[Axis]) -> Tensor:
        return taken(weights[name].to(device, torch.float32), along)

    count = len(weights[EMBEDDING])
    rows = spread(EMBEDDING, [Axis(torch.arange(count), torch.ones(count)), write])
    for name in {EMBEDDING, OUTPUT} & parameters.keys():  # only the first if they are tied
        _set_rows(parameters[name], rows, ids)
    # The output layer has the embedding's rows, whose scale is that of writing.
    last = Axis(norm.index, norm.scale * (narrow.hidden / wide.hidden))
    parameters["model.norm.weight"].copy_(spread("model.norm.weight", [last]))
    for layer in range(wide.layers):
        prefix = f"model.layers.{layer}."
        if layer < narrow.layers:
            for part, along in axes.items():
                parameters[f"{prefix}{part}.weight"].copy_(spread(f"{prefix}{part}.weight", along))
        else:
            _set_idle({part: parameters[f"{prefix}{part}.weight"] for part in axes}, layer)
        report(layer + 1, wide.layers)


@torch.no_grad()
def randomize(model: PreTrainedModel, report: Report = lambda layer, layers: None) -> None:
    """Fill a model as transformers does: normal with standard deviation 0.02, norms 1; the same every time."""
    generator = torch.Generator(model.device).manual_seed(_SEED)
    for name, parameter in model.named_parameters():
        if ".layers." not in name:
            _set_random(parameter, generator)
    layers = model.model.layers
    for number, layer in enumerate(layers, 1):
        for parameter in layer.parameters():
            _set_random(parameter, generator)
        report(number, len(layers))


def _set_rows(parameter: Tensor, rows: Tensor, ids: Sequence[int] | None) -> None:
    """Copy (rows, hidden) into (vocabulary, hidden), the last row into all rows that are not in `ids`."""
    if ids is None:
        parameter.copy_(rows)
    else:
        parameter.copy_(rows[-1].expand_as(parameter))
        parameter[torch.tensor(ids, device=parameter.device)] = rows[:-1].to(parameter.dtype)


def _set_random(parameter: Tensor, generator: torch.Generator) -> None:
    if parameter.dim() == 1:
        parameter.fill_(1.0)
    else:
        parameter.normal_(0.0, _RANDOM_STD, generator=generator)


def _set_idle(parts: Mapping[str, Tensor], layer: int) -> None:
    """Fill a layer with random weights whose outputs are sums of pairs that cancel.

    Zeros would take a GPU less power than real weights, and so raise its clock. Partners are neighbours, so that a
    partial sum cancels wherever a kernel splits it.
    """
    generator = torch.Generator(next(iter(parts.values())).device).manual_seed(_SEED + layer)
    for parameter in parts.values():
        _set_random(parameter, generator)
    value, output = parts["self_attn.v_proj"], parts["self_attn.o_proj"]
    value[1::2] = -value[0::2]
    output[:, 1::2] = output[:, 0::2]
    gate, up, down = (parts[f"mlp.{name}_proj"] for name in ("gate", "up", "down"))
    even = gate.shape[0] // 2 * 2
    gate[1:even:2] = gate[0:even:2]
    up[1:even:2] = -up[0:even:2]
    down[:, 1:even:2] = down[:, 0:even:2]
    down[:, even:] = 0.0
