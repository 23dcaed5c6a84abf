"""Attention: whether it is small, fused, or kept from flash kernels by a mask."""

from __future__ import annotations

import numpy as np

from molprof.analysis.findings.around import is_of
from molprof.analysis.findings.known import Known
from molprof.analysis.findings.rule import ATTENTION, Found, host_ns, host_times, launched, operators_named, rule
from molprof.analysis.findings.work import (
    POINTWISE,
    SMALL_SHARE,
    alone_ns,
    gpu_share,
    located,
    runs_of,
    same_stream,
    sequence,
    summed,
    work_by_name,
    work_of,
)
from molprof.common.values import count_text, counted, per, percent_text, time_text

_ANY = operators_named(*ATTENTION)
_SLOW = operators_named("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_attention_math")
_FAST = operators_named("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_cudnn_attention")
_HALF = ("*bf16*", "*_f16*", "*half*", "*bfloat16*")
_PHASES = ("forward", "prefill")
# Between the two matrix products of attention stand at most so many kernels: scale, mask, softmax, cast, dropout.
_MOST_BETWEEN = 8


def attention_ratio(known: Known) -> float | None:
    """Amdahl's bound on the gain of another attention kernel, alone on the device; None without attention."""
    scope = known.scope
    if scope.devices:
        count, time_ns = summed(chosen := work_by_name(known, "attention"))
        return gpu_share(known, min(time_ns, alone_ns(known, work_of(known, chosen)))) if count else None
    return scope.host_parts(_host_times(known)) or None


def _host_times(known: Known) -> list[tuple[int, str]]:
    """Time in the operators by phase, ns; all of it as forward in a foreign trace, which has no phases."""
    operators = known.frame(_ANY)
    return host_times(operators, _PHASES) if known.report.run is not None else [(host_ns(operators), "forward")]


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
def attention_small(known: Known) -> Found | None:
    """Fires where attention takes less than 10 % of the GPU's work (of the time, without GPU).

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
    return Found(evidence, figures, known.gain(gain, "time in attention")) if is_small else None


@rule(
    id="mask_rules_out_flash",
    title="A mask prevents flash attention",
    fix="Batch by length and drop the mask (is_causal), or pack rows without padding (flash_attention_2).",
    explanation="The flash kernel of SDPA takes no mask but the causal one, and padding adds another.",
    query="attention",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
)
def mask_rules_out_flash(known: Known) -> Found | None:
    """Fires where the efficient or math kernel ran, flash and cuDNN never, although torch was free to choose and
    numbers have 16 bits.

    Gain: the kernels of those operators.

    With 16-bit numbers and heads up to 256, only a mask rules out flash and cuDNN where torch is free to choose.
    """
    run = known.report.run
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
    return Found(
        f"{count_text(len(slow))} calls of {', '.join(names)} and none of flash attention, with 16-bit numbers and "
        f"torch free to choose: {time_text(gpu_ns)} in {counted(count, 'kernel')}",
        {"calls": len(slow), "kernels": count, "gpu_ns": gpu_ns},
        known.gain(known.scope.gpu_part(gpu_ns / known.scope.devices), "work of the slow operators"),
        "Pack rows without padding (flash_attention_2)." if run is not None and run.setup.sorted else "",
    )


@rule(
    id="unfused_attention",
    title="Attention is not fused",
    fix="Use scaled_dot_product_attention or a flash attention kernel, which keeps the scores in the processor.",
    explanation="The scores of all pairs of tokens are written and read again by scale, mask, softmax and dropout.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    certain=False,
)
def unfused_attention(known: Known) -> Found | None:
    """Fires where a softmax stands between two matrix products, with at most 7 small kernels.

    Gain: the kernels between the two matrix products around a softmax, which a fused kernel does not run.
    """
    if not work_by_name(known, "softmax"):
        return None
    work = sequence(known)
    alike = same_stream(work)
    is_product, is_softmax, is_part = (
        is_of(known, work["name"], classes) for classes in (("matmul",), ("softmax",), ("softmax", *POINTWISE))
    )
    found = [
        np.arange(start, stop)
        for start, stop in runs_of(~is_product, alike)
        if 0 < stop - start <= _MOST_BETWEEN
        and start > 0
        and stop < len(work)
        and alike[start]
        and alike[stop]
        and is_softmax[start:stop].any()
        and is_part[start:stop].all()
    ]
    if not found:
        return None
    between = np.concatenate(found)
    between_ns, count = int(work["dur"][between].sum()), len(between)
    times = np.zeros(len(known.facts.work.id), dtype=np.int64)
    times[work["index"][between]] = work["dur"][between]
    item = Found(
        f"{counted(len(found), 'time')} a softmax stands between two matrix products, with {count_text(count)} kernels "
        f"in {time_text(between_ns)} that a fused kernel does not need",
        {"attention_calls": len(found), "kernels": count, "between_ns": between_ns},
    )
    return located(known, item, between_ns, "kernels between the two matrix products", times)
