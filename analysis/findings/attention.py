"""Findings on attention: small, not fused, or kept from flash kernels by a mask."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from molprof.analysis.findings.around import is_of
from molprof.analysis.findings.device import AMPERE, lacks
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.rule import (
    ATTENTION,
    FindingEvidence,
    host_ns,
    host_times,
    launched,
    operators_named,
    rule,
)
from molprof.analysis.findings.work import (
    POINTWISE,
    SMALL_SHARE,
    alone_ns,
    gpu_share,
    is_named,
    located,
    runs_of,
    same_stream,
    sequence,
    summed,
    times_at,
    work_by_name,
    work_of,
)
from molprof.common.values import count_text, counted, per, percent_text, time_text

_ANY = operators_named(*ATTENTION)
_SLOW = operators_named("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_attention_math")
_FAST = operators_named("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_cudnn_attention")
_HALF = ("*bf16*", "*_f16*", "*half*", "*bfloat16*")
_PHASES = ("forward", "prefill")
_WITHOUT_FLASH = "Use scaled_dot_product_attention, which keeps the scores in the processor."
# Between the two matrix products of attention stand at most so many kernels: scale, mask, softmax, cast, dropout.
_MOST_BETWEEN = 8
# And none of these names, in lower case: activations stand between layers.
_OF_LAYERS = ("*gelu*", "*silu*", "*relu*", "*norm*", "*swish*")


def attention_ratio(known: TraceFacts) -> float | None:
    """Amdahl's bound on the gain of another attention kernel, alone on the device; None without attention."""
    scope = known.scope
    if scope.devices:
        count, time_ns = summed(chosen := work_by_name(known, "attention"))
        return gpu_share(known, min(time_ns, alone_ns(known, work_of(known, chosen)))) if count else None
    return scope.host_parts(_host_times(known)) or None


def _host_times(known: TraceFacts) -> list[tuple[int, str]]:
    """Return times in the operators by phase, ns; in a foreign trace, which has no phases, all as forward."""
    operators = known.frame(_ANY)
    return host_times(known, operators, _PHASES) if known.report.run is not None else [(host_ns(operators), "forward")]


@rule(
    id="attention_small",
    title="A faster attention kernel cannot gain much",
    fix="None needed. Look at the other findings before comparing attention kernels.",
    explanation="Amdahl's law: attention that takes no time would gain this share and no more.",
    query="attention",
    needs=("time",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=0,
    note=True,
)
def attention_small(known: TraceFacts) -> FindingEvidence | None:
    """Fire where attention takes less than 10 % of the GPU's work (of the time, without GPU).

    Gain: its share of the time.
    """
    scope = known.scope
    if (gain := attention_ratio(known)) is None:
        return None
    figures: dict[str, int | float]
    if scope.devices:
        (count, attention_ns), (_, all_ns) = summed(work_by_name(known, "attention")), summed(work_by_name(known))
        is_small = attention_ns < SMALL_SHARE * all_ns
        evidence = (
            f"{counted(count, 'attention kernel')} take{'s' if count == 1 else ''} {time_text(attention_ns)}: "
            f"{percent_text(per(attention_ns, all_ns))} of the GPU's work, "
            f"{percent_text(gpu_share(known, attention_ns) / scope.wall_ratio)} of {scope.base_text}"
            + (f", on each of {scope.devices} devices" if scope.devices > 1 else "")
        )
        figures = {"attention_ns": attention_ns, "gpu_ns": all_ns, "kernels": count}
    else:
        times, is_small = _host_times(known), gain < SMALL_SHARE
        evidence = f"scaled_dot_product_attention takes {'; '.join(scope.host_text(*time) for time in times)}"
        figures = {"attention_ns": sum(time_ns for time_ns, _ in times), "recorded_ns": scope.recorded_ns}
    return FindingEvidence(evidence, figures, known.gain(gain, "time in attention")) if is_small else None


@rule(
    id="mask_rules_out_flash",
    title="A mask prevents flash attention",
    fix="Batch by length and drop the mask (is_causal), or pack rows without padding (flash_attention_2).",
    explanation="The flash kernel of SDPA takes no mask but the causal one, and padding adds another.",
    query="attention",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
)
def mask_rules_out_flash(known: TraceFacts) -> FindingEvidence | None:
    """Fire where the efficient or math kernel ran, but flash and cuDNN never.

    torch was free to choose, and numbers have 16 bits.

    Gain: the kernels of those operators.

    With 16-bit numbers and heads up to 256, only a mask rules out flash and cuDNN where torch is free to choose: on
    devices that have flash attention, from A100 on.
    """
    run = known.report.run
    if lacks(known, AMPERE):
        return None
    if run is not None and (run.setup.attention != "sdpa" or run.setup.dtype not in ("float16", "bfloat16")):
        return None
    slow = known.frame(_SLOW)
    if (
        not len(slow)
        or len(known.frame(_FAST))
        or (run is None and not any(work.is_named(_HALF) for work in work_by_name(known, "attention")))
    ):
        return None
    count, gpu_ns = launched(known.engine, slow)
    names = sorted(set(slow["name"].tolist()))
    return FindingEvidence(
        f"{count_text(len(slow))} calls of {', '.join(names)} and none of flash attention, with 16-bit numbers and "
        f"torch free to choose: {time_text(gpu_ns)} in {counted(count, 'kernel')}",
        {"calls": len(slow), "kernels": count, "gpu_ns": gpu_ns},
        known.gain(known.scope.gpu_part(gpu_ns / known.scope.devices), "work of the slow operators"),
        "Pack rows without padding (flash_attention_2)." if run is not None and run.setup.sorted else "",
    )


class Unfused(Struct, frozen=True):
    """Unfused attention: softmax, its neighbours, and the products before and after."""

    calls: int
    between: int  # kernels between the products
    products: int
    between_ns: int
    products_ns: int
    index: np.ndarray  # of the work of all of them


def unfused(known: TraceFacts) -> Unfused | None:
    """Return each softmax between two matrix products; None without any.

    A backward has two products before its softmax, of the values and the probabilities, and two after it, of queries
    and keys, one right behind the other. A forward and a backward softmax between the same products are a loss.
    """
    return known.once("unfused attention", None, lambda: _found_unfused(known))


def _found_unfused(known: TraceFacts) -> Unfused | None:
    if not work_by_name(known, "softmax"):
        return None
    work = sequence(known)
    alike, names = same_stream(work), work["name"]
    is_product, is_softmax, is_part = (
        is_of(known, names, classes) for classes in (("matmul",), ("softmax",), ("softmax", *POINTWISE))
    )
    is_backward, is_sum, of_layers = (
        np.array([is_named(name.name, patterns) for name in known.facts.names], dtype=bool)[names]
        for patterns in (("*backward*",), ("*splitk*reduce*",), _OF_LAYERS)
    )
    is_part &= is_softmax | ~of_layers
    # Rows that go on the product of the row before, and of the row after.
    onward, back = is_product & alike, is_product & np.append(alike[1:], False)
    products, between = np.zeros(len(work), dtype=bool), np.zeros(len(work), dtype=bool)
    calls = 0
    for start, stop in runs_of(~is_product, alike):
        inside = is_softmax[start:stop]
        if not 0 < stop - start <= _MOST_BETWEEN or start == 0 or stop == len(work) or not inside.any():
            continue
        backward = is_backward[start:stop][inside]
        if not (alike[start] and alike[stop] and is_part[start:stop].all()) or backward.any() != backward.all():
            continue
        calls += 1
        between[start:stop] = True
        each = 2 if backward.all() else 1
        products[_products(back, is_sum, start - 1, -1, each) + _products(onward, is_sum, stop, 1, each)] = True
    if not calls:
        return None
    duration = work["dur"]
    return Unfused(
        calls, int(between.sum()), int(products.sum()), int(duration[between].sum()), int(duration[products].sum()),
        work["index"][between | products],
    )  # fmt: skip


def _products(is_product: np.ndarray, is_sum: np.ndarray, row: int, step: int, count: int) -> list[int]:
    """Return the rows of at most `count` adjacent products from a row on; step: 1 is forwards, -1 backwards.

    is_sum: kernels that end a product, as they add up its parts.
    """
    rows: list[int] = []
    while 0 <= row < len(is_product) and is_product[row]:
        if not is_sum[row]:
            if not count:
                break
            count -= 1
        elif not count and step < 0:
            break
        rows.append(row)
        row += step
    return rows


@rule(
    id="unfused_attention",
    title="Attention is not fused",
    fix="Use scaled_dot_product_attention or a flash attention kernel, which keeps the scores in the processor.",
    explanation="The scores of all pairs of tokens are written, and read again by scale, mask, softmax and product.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.7,
    certain=False,
)
def unfused_attention(known: TraceFacts) -> FindingEvidence | None:
    """Fire where a softmax stands between two matrix products.

    At most 7 small kernels lie between them, none of them an activation or norm.

    Gain: the kernels between the products and the products, which one fused kernel replaces: one before and one after
    the softmax, in a backward two.
    """
    if (attention := unfused(known)) is None:
        return None
    item = FindingEvidence(
        f"{counted(attention.calls, 'time')} a softmax stands between two matrix products: the "
        f"{counted(attention.between, 'kernel')} between them take {time_text(attention.between_ns)}, and the "
        f"{counted(attention.products, 'product')} {time_text(attention.products_ns)}; one fused kernel does all of it",
        {
            "attention_calls": attention.calls,
            "kernels": attention.between,
            "between_ns": attention.between_ns,
            "products": attention.products,
            "products_ns": attention.products_ns,
        },
        fix="Use scaled_dot_product_attention, which keeps the scores in the processor."
        if lacks(known, AMPERE)
        else "",
    )
    gain_ns = attention.between_ns + attention.products_ns
    times = times_at(known, attention.index)
    return located(known, item, gain_ns, "softmax, its neighbours, and both products", times)
