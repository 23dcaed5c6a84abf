"""What the GPU computes: chains of small kernels, attention, copies, precision, communication, one kernel above all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import pairwise

import numpy as np
from msgspec import Struct

from molprof.analysis.findings.known import Known
from molprof.analysis.findings.places import first_place, listed, work_places
from molprof.analysis.findings.rule import (
    ATTENTION,
    Found,
    host_ns,
    host_times,
    launched,
    operators_named,
    rule,
)
from molprof.analysis.frame import Frame
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import count_text, counted, cut, per, percent_text, short_name, time_text

# Below this share even attention that takes no time would gain little.
SMALL_SHARE = 0.1

_ANY = operators_named(*ATTENTION)
_SLOW = operators_named("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_attention_math")
_FAST = operators_named("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_cudnn_attention")
_HALF = ("*bf16*", "*_f16*", "*half*", "*bfloat16*")
_PHASES = ("forward", "prefill")
_WORK_BY_NAME = """
INCLUDE PERFETTO MODULE molprof.placement;
SELECT work.name, work.category, class.class, work.count, work.time_ns
FROM {work} AS work
JOIN molprof_work_class AS class USING (category, name)
ORDER BY work.time_ns DESC, work.name
"""
_WORK = Query("kernel_classes", _WORK_BY_NAME.format(work="molprof_work_total"))
_WORK_OF_STEPS = Query(
    "kernel_classes",
    _WORK_BY_NAME.format(
        work="""(
  SELECT work.category, work.name, COUNT() AS count, SUM(work.dur) AS time_ns
  FROM molprof_gpu_work AS work
  JOIN molprof_work_phase AS place ON place.id = work.id
  JOIN molprof_phase AS phase ON phase.id = place.phase_id AND phase.step IS NOT NULL
  GROUP BY work.category, work.name
)"""
    ),
)


class Work(Struct, frozen=True):
    """Work of one name: of a whole foreign trace, of the recorded steps of a run. The longest time first."""

    name: str
    category: str
    kind: str  # class
    count: int
    time_ns: int

    def is_named(self, patterns: tuple[str, ...]) -> bool:
        """By patterns for its name in lower case."""
        return any(fnmatchcase(self.name.lower(), pattern) for pattern in patterns)


def _work(known: Known, *kinds: str) -> list[Work]:
    """Of these classes; of all without any."""
    rows = known.frame(_WORK if known.report.run is None else _WORK_OF_STEPS).rows()
    return [work for work in (Work(*row) for row in rows) if not kinds or work.kind in kinds]


def _summed(work: Iterable[Work]) -> tuple[int, int]:
    """Count and time, ns."""
    found = list(work)
    return sum(item.count for item in found), sum(item.time_ns for item in found)


def attention_ratio(known: Known) -> float | None:
    """Amdahl's bound on the gain of another attention kernel; None without attention."""
    scope = known.scope
    if scope.devices:
        count, time_ns = _summed(_work(known, "attention"))
        return scope.gpu_part(time_ns / scope.devices) if count else None
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
    queries=(_WORK,),
    run_queries=(_WORK_OF_STEPS,),
)
def attention_small(known: Known) -> Found | None:
    scope = known.scope
    if (gain := attention_ratio(known)) is None:
        return None
    figures: dict[str, int | float]
    if scope.devices:
        (count, attention_ns), (_, all_ns) = _summed(_work(known, "attention")), _summed(_work(known))
        is_small = attention_ns < SMALL_SHARE * all_ns
        evidence = (
            f"{counted(count, 'attention kernel')} take{'s' if count == 1 else ''} {time_text(attention_ns)}: "
            f"{percent_text(per(attention_ns, all_ns))} of the GPU's work, "
            f"{percent_text(gain / scope.wall_ratio)} of {scope.base_text}"
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
    queries=(_SLOW,),
)
def mask_rules_out_flash(known: Known) -> Found | None:
    """With 16-bit numbers and heads up to 256, only a mask rules out flash and cuDNN where torch is free to choose.

    Gain: GPU time of the work launched inside the slow operators.
    """
    run = known.report.run
    if run is not None and (run.setup.attention != "sdpa" or run.setup.dtype not in ("float16", "bfloat16")):
        return None
    slow = known.frame(_SLOW)
    if (
        not len(slow)
        or len(known.frame(_FAST))
        or (run is None and not any(work.is_named(_HALF) for work in _work(known, "attention")))
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


# Classes whose kernels read and write each element once, and that one kernel can do together.
_POINTWISE = ("elementwise", "copy", "cat", "fill", "reduce", "norm")
_COPIES = ("copy", "cat", "memcpy DtoD")
# Between the two matrix products of attention stand at most so many kernels: scale, mask, softmax, cast, dropout.
_MOST_BETWEEN = 8
# Share of the recorded time from which such kernels are worth a word.
_LEAST_POINTWISE, _LEAST_COPIES, _LEAST_KERNEL = 0.05, 0.02, 0.2
_NAME = 60  # characters of a kernel's name
# By class of one kernel: what says more about it.
_EXPLAINS = {"softmax": ("unfused_attention",), "matmul": ("fp32_matmul", "odd_shapes")}
# Parts of names, in lower case, of matrix products of 32-bit numbers without tensor cores. cuDNN and AMD's library name
# the types of all numbers.
_FP32 = (
    "sgemm", "*_sgemm*", "*simt_s*", "*scudnn*", "*<float, float*", "*engine<float*", "*_f32f32_f32f32*",
    "cijk_*_sb_*", "cijk_*_s_b_*",
)  # fmt: skip
_UNALIGNED = ("*_align1>*", "*_align2>*", "*_align1", "*_align2")
# Every piece of work in order of start on its stream, by class.
_SEQUENCE = Query(
    "kernel_classes",
    """
SELECT work.device, IFNULL(work.stream, -1) AS stream, work.ts, work.ts_end, work.dur, class.class
FROM _molprof_work AS work
CROSS JOIN slice
CROSS JOIN molprof_work_class AS class
WHERE slice.id = work.id AND class.category = work.category AND class.name = IFNULL(slice.name, '(no name)')
ORDER BY work.device, 2, work.ts, work.id
""",
)


def _share(known: Known, gpu_ns: float) -> float:
    """Of the wall time, of work on all devices."""
    return known.scope.gpu_part(gpu_ns / known.scope.devices)


def _found(
    known: Known, evidence: str, figures: dict[str, int | float], gain_ns: int, bounded_by: str,
    classes: tuple[str, ...] = (), fix: str = "", part_of: tuple[str, ...] = (),
) -> Found:  # fmt: skip
    """GPU work that a fix could save, with the places where work of its classes is asked for."""
    places = work_places(known, classes) if classes else []
    gain, place = known.gain(_share(known, gain_ns), bounded_by), first_place(places)
    return Found(evidence + listed(places), figures, gain, fix, place=place, part_of=part_of)


def _sequence(known: Known) -> Frame:
    """Work in order; of a run that of its recorded steps."""
    work = known.frame(_SEQUENCE)
    run_ns = work["ts"] if known.report.run is not None else None
    return work if run_ns is None else work.where(known.scope.stretches.covered(run_ns, run_ns + 1) > 0)


def _runs(chosen: np.ndarray, alike: np.ndarray) -> Iterator[tuple[int, int]]:
    """From where to where rows are chosen one after the other, on one stream."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], chosen.astype(np.int8), [0]))))
    for start, stop in edges.reshape(-1, 2).tolist():
        cuts = [start, *(place for place in range(start + 1, stop) if not alike[place]), stop]
        yield from pairwise(cuts)


def _same_stream(work: Frame) -> np.ndarray:
    """Whether each row is on the stream of the row before."""
    same = (work["device"][1:] == work["device"][:-1]) & (work["stream"][1:] == work["stream"][:-1])
    return np.concatenate(([False], same))


@rule(
    id="elementwise_chains",
    title="Chains of elementwise kernels",
    fix="Make each chain one kernel: torch.compile the function, or call a fused norm, rotary or activation.",
    explanation="Each kernel reads and writes in memory what the next one reads again; one kernel would do so once.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=_LEAST_POINTWISE,
    of_steps=True,
    weight=0.9,
    queries=(_SEQUENCE,),
)
def elementwise_chains(known: Known) -> Found | None:
    """Gain: of each chain all but its longest kernel."""
    _, time_ns = _summed(_work(known, *_POINTWISE))
    if _share(known, time_ns) < _LEAST_POINTWISE:
        return None
    work = _sequence(known)
    runs = [
        (stop - start, int(work["dur"][start:stop].sum()), int(work["dur"][start:stop].max()))
        for start, stop in _runs(np.isin(work["class"], _POINTWISE), _same_stream(work))
        if stop - start > 1
    ]
    saved_ns = sum(whole - longest for _, whole, longest in runs)
    if not saved_ns:
        return None
    count, chain_ns = sum(run[0] for run in runs), sum(run[1] for run in runs)
    fix = "They are compiled or fused already in part: look at what stays apart (TORCH_LOGS=fusion)."
    return _found(
        known,
        f"{count_text(count)} kernels that compute element by element, copy or reduce follow each other in "
        f"{counted(len(runs), 'chain')} of up to {max(run[0] for run in runs)}: {time_text(chain_ns)}, "
        f"{percent_text(_share(known, chain_ns))} of the time",
        {"kernels": count, "chains": len(runs), "chain_ns": chain_ns, "saved_ns": saved_ns},
        saved_ns,
        "all kernels of each chain but its longest",
        _POINTWISE,
        fix if known.compiled else "",
    )


@rule(
    id="copies",
    title="Copies and casts",
    fix="Keep one dtype and layout between the operators on both sides, or write into the target at once.",
    explanation="Such a kernel computes nothing: it moves data that another operator wants in another form.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.8,
)
def copies(known: Known) -> Found | None:
    count, time_ns = _summed(_work(known, *_COPIES))
    if not count or (share := _share(known, time_ns)) < _LEAST_COPIES * known.scope.wall_ratio:
        return None
    return _found(
        known,
        f"{counted(count, 'kernel')} that only copy, cast or concatenate take {time_text(time_ns)}, "
        f"{percent_text(share)} of the time",
        {"copies": count, "gpu_ns": time_ns},
        time_ns,
        "time in copies on the GPU",
        _COPIES,
        part_of=("elementwise_chains",),
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
    """Gain: the kernels between the two matrix products around a softmax, which a fused kernel does not run."""
    if not _work(known, "softmax"):
        return None
    work = _sequence(known)
    is_product, alike = work["class"] == "matmul", _same_stream(work)
    found = [
        (stop - start, int(work["dur"][start:stop].sum()))
        for start, stop in _runs(~is_product, alike)
        if 0 < stop - start <= _MOST_BETWEEN
        and start > 0
        and stop < len(work)
        and alike[start]
        and alike[stop]
        and (work["class"][start:stop] == "softmax").any()
        and np.isin(work["class"][start:stop], ("softmax", *_POINTWISE)).all()
    ]
    if not found:
        return None
    between_ns, count = sum(item[1] for item in found), sum(item[0] for item in found)
    return _found(
        known,
        f"{counted(len(found), 'time')} a softmax stands between two matrix products, with {count_text(count)} kernels "
        f"in {time_text(between_ns)} that a fused kernel does not need",
        {"attention_calls": len(found), "kernels": count, "between_ns": between_ns},
        between_ns,
        "kernels between the two matrix products",
        ("softmax",),
    )


@rule(
    id="communication",
    title="Communication is exposed",
    fix="Overlap it with computing, or exchange less. molprof ranks DIR tells it from waiting for a slow rank.",
    explanation="A collective ends when the last rank has come, so its time holds the wait for other ranks too.",
    query="collectives",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=0.02,
    weight=0.7,
)
def communication(known: Known) -> Found | None:
    """Gain: the time in which collectives run on a device and nothing else does."""
    count, all_ns = _summed(_work(known, "collective"))
    if not count:
        return None
    exposed_ns = known.exposed_ns
    return _found(
        known,
        f"{counted(count, 'collective')} take {time_text(all_ns)}, {time_text(exposed_ns)} of it with nothing else on "
        f"the GPU: {percent_text(_share(known, exposed_ns))} of the time",
        {"collectives": count, "time_ns": all_ns, "exposed_ns": exposed_ns},
        exposed_ns,
        "collectives that nothing else runs beside",
        ("collective",),
    )


@rule(
    id="dominant_kernel",
    title="One kernel takes a large part of the time",
    fix="Look for a faster kernel for its shapes, fewer bits, or less of that work. Nothing else gains as much.",
    explanation="Amdahl's law: what is done about any other kernel gains less.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.3,
)
def dominant_kernel(known: Known) -> Found | None:
    kernels = (work for work in _work(known) if work.category == "kernel" and work.kind != "collective")
    first = next(kernels, None)
    if first is None or (share := _share(known, first.time_ns)) < _LEAST_KERNEL * known.scope.wall_ratio:
        return None
    return _found(
        known,
        f"{cut(short_name(first.name), _NAME)} ({first.kind}): {counted(first.count, 'run')}, "
        f"{time_text(first.time_ns)}, {percent_text(share)} of the time",
        {"count": first.count, "time_ns": first.time_ns},
        first.time_ns,
        "time in that kernel",
        (first.kind,),
        part_of=_EXPLAINS.get(first.kind, ()),
    )


@rule(
    id="fp32_matmul",
    title="Matrix products of 32-bit numbers without tensor cores",
    fix="Use bfloat16 or float16 (autocast), or from A100 on TF32 (torch.set_float32_matmul_precision('high')).",
    explanation="Tensor cores multiply 16-bit and TF32 numbers several times as fast.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    least_gain=0.02,
    weight=0.6,
    certain=False,
)
def fp32_matmul(known: Known) -> Found | None:
    return _matmul_found(known, _FP32, "whose names tell of 32-bit numbers")


@rule(
    id="odd_shapes",
    title="Matrix products of odd shapes",
    fix="Pad the last dimension (vocabulary, hidden size, head) to a multiple of 8, of 64 where it is large.",
    explanation="A kernel for rows that are not aligned to 16 bytes loads fewer numbers at once.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.4,
    certain=False,
)
def odd_shapes(known: Known) -> Found | None:
    return _matmul_found(known, _UNALIGNED, "for rows that are not aligned")


def _matmul_found(known: Known, patterns: tuple[str, ...], what: str) -> Found | None:
    chosen = [work for work in _work(known, "matmul") if work.is_named(patterns)]
    if not chosen:
        return None
    count, time_ns = _summed(chosen)
    return _found(
        known,
        f"{counted(count, 'run')} of {counted(len(chosen), 'kernel')} {what} take {time_text(time_ns)}, "
        f"{percent_text(_share(known, time_ns))} of the time, most in {cut(short_name(chosen[0].name), _NAME)}",
        {"runs": count, "time_ns": time_ns},
        time_ns,
        "time in these kernels",
    )


@rule(
    id="unknown_kernels",
    title="Much of the GPU's time is in kernels of no known class",
    fix="None needed: read their names.",
    explanation="What a kernel does is told by its name, and no pattern knows these.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work",),
    note=True,
)
def unknown_kernels(known: Known) -> Found | None:
    (count, time_ns), (_, all_ns) = _summed(_work(known, "other")), _summed(_work(known))
    if not all_ns or time_ns < SMALL_SHARE * all_ns:
        return None
    return Found(
        f"{counted(count, 'kernel')}, {time_text(time_ns)}, {percent_text(time_ns / all_ns)} of GPU time"
        f"{listed(work_places(known, ('other',)), beside=False)}",
        {"kernels": count, "time_ns": time_ns},
    )
