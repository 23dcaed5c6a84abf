"""Findings on matrix products in slow kernels: 32-bit numbers without tensor cores, and odd sizes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from molprof.analysis.facts.gaps import NONE
from molprof.analysis.facts.number_types import number_type
from molprof.analysis.findings.around import of_pieces
from molprof.analysis.findings.attention import unfused
from molprof.analysis.findings.device import AMPERE, TENSOR_CORES, lacks, platform
from molprof.analysis.findings.known import TraceFacts
from molprof.analysis.findings.places import location, placed
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.findings.work import (
    NamedWork,
    beyond_usual,
    gpu_share,
    located,
    sequence,
    summed,
    times_at,
    times_of,
    work_by_name,
    work_of,
)
from molprof.analysis.trace_processor.package import Query
from molprof.common.values import count_text, counted, cut, percent_text, short_name, time_text

_NAME = 60  # characters of a kernel's name
_UNALIGNED = ("*_align1>*", "*_align2>*", "*_align1", "*_align2")
# Without tensor cores, such kernels take one number at a time, whatever the sizes are.
_ANY_SIZE = ("*simt*",)
_LEAST_SLOW = 0.02
# So many of the longest runs of a name have their sizes looked up, and so many of all.
_LOOKED_AT = 100
# Numbers of 16 bits that 16 bytes hold.
_ALIGNED = 8
# Of a kind of time, from which it stands for all of it, or is worth a word.
_ALL, _SOME = 0.9, 0.2
# Operators of products, and the place of their first matrix. The reader keeps their sizes.
_PRODUCTS = {"aten::mm": 0, "aten::_scaled_mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
_OPERATORS = """
SELECT call.value AS call_id, (
  SELECT around.id
  FROM ancestor_slice(call.value) AS around
  WHERE around.name IN ({names})
  ORDER BY around.depth DESC
  LIMIT 1
) AS id
FROM json_each('{ids}') AS call
"""
_SIZES = """
SELECT slice.id, slice.name, args.key, args.int_value AS size
FROM json_each('{ids}') AS one
CROSS JOIN slice
JOIN args USING (arg_set_id)
WHERE slice.id = one.value AND args.key GLOB 'args.Input Dims*' AND args.int_value IS NOT NULL
ORDER BY slice.id, args.key
"""


class Product(Struct, frozen=True):
    """Sizes of a product of matrices: [..., rows, inner] by [..., inner, columns]."""

    rows: int
    inner: int
    columns: int
    batch: tuple[int, ...]

    @property
    def odd(self) -> dict[int, tuple[str, ...]]:
        """Sizes that are no multiple of 8, with the names of their dimensions."""
        sizes: dict[int, tuple[str, ...]] = {}
        for name in ("rows", "inner", "columns"):
            size = getattr(self, name)
            if size % _ALIGNED:
                sizes[size] = (*sizes.get(size, ()), name)
        return sizes

    @property
    def text(self) -> str:
        """The sizes of the product as text."""
        first, second = ((*self.batch, *sizes) for sizes in ((self.rows, self.inner), (self.inner, self.columns)))
        return " by ".join("x".join(map(str, sizes)) for sizes in (first, second))


def _products_of(known: TraceFacts, index: np.ndarray) -> dict[int, Product]:
    """Return the products of pieces of work, by the index of the work, as far as sizes are recorded."""
    work, calls = known.facts.work, known.facts.calls
    index = index[work.call[index] != NONE]
    if not len(index):
        return {}
    names = ", ".join(f"'{name}'" for name in _PRODUCTS)
    ids = np.unique(calls.id[work.call[index]]).tolist()
    rows = known.rows(Query("gpu_calls", _OPERATORS.format(names=names, ids=ids)))
    operator_of = {row["call_id"]: row["id"] for row in rows if row["id"] is not None}
    sizes: defaultdict[tuple[int, str], defaultdict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    operators = sorted(set(operator_of.values()))
    for row in known.rows(Query("gpu_calls", _SIZES.format(ids=operators))) if operators else []:
        numbers = [int(number) for number in re.findall(r"\d+", row["key"])]
        if len(numbers) == 2:
            tensor, dimension = numbers
            sizes[row["id"], row["name"]][tensor][dimension] = row["size"]
    products = {}
    for (number, name), tensors in sizes.items():
        first, second = (
            tuple(size for _, size in sorted(tensors[_PRODUCTS[name] + operand].items())) for operand in (0, 1)
        )
        if len(first) == len(second) >= 2 and first[-1] == second[-2]:
            products[number] = Product(first[-2], first[-1], second[-1], first[:-2])
    calls_of_work = zip(index.tolist(), calls.id[work.call[index]].tolist(), strict=True)
    return {piece: products[operator_of[call]] for piece, call in calls_of_work if operator_of.get(call) in products}


def _share_in(known: TraceFacts, index: np.ndarray, other: np.ndarray) -> float:
    """Return the share of the time of some work that is in other work too."""
    work = known.facts.work
    times = (work.ts_end - work.ts)[index]
    return float(times[np.isin(index, other)].sum() / max(1, times.sum()))


def _index_of(known: TraceFacts, chosen: Sequence[NamedWork]) -> np.ndarray:
    """Return the indices of work of some names; of a run, that in recorded steps."""
    names = {(item.category, item.name) for item in chosen}
    wanted = np.array([(name.category, name.name) in names for name in known.facts.names], dtype=bool)
    work = sequence(known)
    chosen_index: np.ndarray = work["index"][wanted[work["name"]]]
    return chosen_index


def _fp32(known: TraceFacts) -> list[NamedWork]:
    """Return the products of 32-bit numbers without tensor cores."""
    return [item for item in work_by_name(known, "matmul") if number_type(item.name) == "float32"]


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
def fp32_matmul(known: TraceFacts) -> FindingEvidence | None:
    """Fire where matrix products in 32 bits without tensor cores take 2 % of the time.

    The names of their kernels show this. The device has tensor cores, as far as that is known.

    Gain: their time.
    """
    if not (chosen := _fp32(known)) or lacks(known, TENSOR_CORES):
        return None
    fix = explanation = ""
    if lacks(known, AMPERE):
        fix = "Use float16 (autocast and a GradScaler): this device has neither bfloat16 nor TF32."
        explanation = "Tensor cores multiply 16-bit numbers several times as fast."
    elif (kind := platform(known)) == "CUDA":
        fix = "Use bfloat16 or float16 (autocast), or TF32 (torch.set_float32_matmul_precision('high'))."
    elif kind is not None:
        fix = "Use bfloat16 or float16 (autocast)."
        explanation = "Matrix units multiply 16-bit numbers several times as fast."
    count, time_ns = summed(chosen)
    index, beyond = slow_runs_of(known, chosen)
    without = f", {time_text(int(beyond.sum()))} of it in single slow runs" if len(index) else ""
    evidence = FindingEvidence(
        f"{counted(count, 'run')} of {counted(len(chosen), 'kernel')} whose names show 32-bit numbers take "
        f"{time_text(time_ns)}, {percent_text(gpu_share(known, time_ns))} of the time{without}, most in "
        f"{cut(short_name(chosen[0].name), _NAME)}",
        {"runs": count, "time_ns": time_ns},
        fix=fix,
        explanation=explanation,
    )
    times = times_of(known, chosen)
    times[index] -= beyond
    return located(known, evidence, time_ns - int(beyond.sum()), "usual time of these kernels", times)


def slow_runs_of(known: TraceFacts, chosen: Sequence[NamedWork]) -> tuple[np.ndarray, np.ndarray]:
    """Return the products of these names that take far longer than others of their sizes, and the excess, ns.

    None without recorded sizes, or where that is little of the time.
    """
    index, beyond = known.once("slow runs", None, lambda: _slow_runs(known))
    names = {item.name for item in chosen}
    is_mine = np.array([name.name in names for name in known.facts.names], dtype=bool)[known.facts.name_of[index]]
    return index[is_mine], beyond[is_mine]


def _slow_runs(known: TraceFacts) -> tuple[np.ndarray, np.ndarray]:
    """Return the slow runs of all products, and the excess of each, ns.

    Sizes are asked for only where times of a name differ much, and of some of its runs.
    """
    work, name_of = known.facts.work, known.facts.name_of
    index = work_of(known, work_by_name(known, "matmul"))
    index = index[known.scope.spans.holds(work.ts[index])]
    times = (work.ts_end - work.ts)[index]
    beyond_ns = np.bincount(name_of[index], beyond_usual(times, name_of[index]), len(known.facts.names))
    some = [np.empty(0, dtype=np.int64)]
    for number in np.flatnonzero(beyond_ns / known.scope.devices >= _LEAST_SLOW * known.scope.recorded_ns).tolist():
        mine = np.flatnonzero(name_of[index] == number)
        mine = mine[np.argsort(times[mine], kind="stable")]
        some += [mine[np.linspace(0, len(mine) - 1, _LOOKED_AT).astype(np.int64)], mine[-_LOOKED_AT:]]
    index = index[np.unique(np.concatenate(some))]
    products = _products_of(known, index)
    index = index[np.isin(index, list(products))]
    kinds = [(int(name_of[row]), products[row]) for row in index.tolist()]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    beyond = beyond_usual((work.ts_end - work.ts)[index], np.array([numbers[kind] for kind in kinds], dtype=np.int64))
    return index[beyond > 0], beyond[beyond > 0]


@rule(
    id="slow_runs",
    title="Single runs of a kernel take far longer than others of the same sizes",
    fix="Look for other programs on the GPU (nvidia-smi), and record again: a faster kernel does not gain this.",
    explanation="The same work takes the same time, unless clocks change or the GPU also works for something else.",
    query="gpu_work",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    note=True,
)
def slow_runs(known: TraceFacts) -> FindingEvidence | None:
    """Fire where matrix products take 10 times as long as most of their name and sizes, for 2 % of the time."""
    index, beyond = slow_runs_of(known, work_by_name(known, "matmul"))
    beyond_ns = int(beyond.sum())
    if (share := gpu_share(known, beyond_ns)) < _LEAST_SLOW * known.scope.wall_ratio:
        return None
    work = known.facts.work
    longest = int(beyond.argmax())
    longest_ns = int((work.ts_end - work.ts)[index[longest]])
    name = known.facts.names[known.facts.name_of[index[longest]]].name
    evidence = FindingEvidence(
        f"{counted(len(index), 'run')} of matrix products, {percent_text(share)} of the time; the longest, of "
        f"{cut(short_name(name), _NAME)}, takes {time_text(longest_ns)}, others of its sizes "
        f"{time_text(longest_ns - int(beyond[longest]))}",
        {"runs": len(index), "beyond_ns": beyond_ns},
        share=share,
    )
    return placed(evidence, location(known, of_pieces(known, times_at(known, index))))


@rule(
    id="odd_shapes",
    title="Matrix products of odd shapes",
    fix="Pad the dimension that is no multiple of 8; record_shapes=True shows which it is.",
    explanation="A kernel for rows that are not aligned to 16 bytes loads fewer numbers at once.",
    query="kernel_classes",
    needs=("gpu",),
    rests_on=("gpu_work", "gpu_time"),
    weight=0.4,
    certain=False,
)
def odd_shapes(known: TraceFacts) -> FindingEvidence | None:
    """Fire where names of matrix products on tensor cores show rows that are not aligned.

    Where their sizes are recorded, only those with one that is no multiple of 8.

    Gain: their time. It is part of `unfused_attention` or `fp32_matmul` where these hold the same products.
    """
    chosen = [item for item in work_by_name(known, "matmul") if item.is_named(_UNALIGNED)]
    chosen = [item for item in chosen if not item.is_named(_ANY_SIZE)]
    index = _index_of(known, chosen) if chosen else np.empty(0, dtype=np.int64)
    products = _products_of(known, index)
    index = np.array([row for row in index.tolist() if row not in products or products[row].odd], dtype=np.int64)
    if not len(index):
        return None
    work, names = known.facts.work, known.facts.names
    times = (work.ts_end - work.ts)[index]
    time_ns = int(times.sum())
    numbers = known.facts.name_of[index]
    by_name = np.bincount(numbers, weights=times)
    said, fix = _odd_sizes(dict(zip(index.tolist(), times.tolist(), strict=True)), products)
    attention = unfused(known)
    holders = [] if attention is None else [("unfused_attention", attention.index)]
    holders.append(("fp32_matmul", _index_of(known, _fp32(known))))
    kinds = [item for item in chosen if item.name in {names[number].name for number in np.unique(numbers)}]
    evidence = FindingEvidence(
        f"{counted(len(index), 'run')} of {counted(len(kinds), 'kernel')} for rows that are not aligned take "
        f"{time_text(time_ns)}, {percent_text(gpu_share(known, time_ns))} of the time, most in "
        f"{cut(short_name(names[int(by_name.argmax())].name), _NAME)}{said}",
        {"runs": len(index), "time_ns": time_ns},
        fix=fix,
        part_of=tuple(name for name, other in holders if _share_in(known, index, other) >= _ALL),
    )
    return located(known, evidence, time_ns, "time in these kernels", times_at(known, index))


def _odd_sizes(times: dict[int, int], products: dict[int, Product]) -> tuple[str, str]:
    """Return the sizes that are odd in a fifth of the time or more, the longest first, as the end of a sentence.

    And the fix.

    times: of each piece of work, by its index.
    """
    sizes, texts, whole = Counter[int](), Counter[str](), sum(times.values())
    roles: defaultdict[int, set[str]] = defaultdict(set)
    for row, product in products.items():
        for size, names in product.odd.items() if row in times else ():
            sizes[size] += times[row]
            roles[size].update(names)
            roles[size].update(("batched",) if product.batch else ())
        texts[product.text] += times.get(row, 0)
    shown = [size for size, time_ns in sizes.most_common(3) if time_ns >= _SOME * whole]
    if not shown:
        return "; sizes are not recorded", ""
    said = " and ".join(
        f"{count_text(size)} ({', '.join(name for name in ('rows', 'inner', 'columns') if name in roles[size])})"
        for size in shown
    )
    return f"; no multiple of 8: {said}, most in {texts.most_common(1)[0][0]}", " ".join(_padding(shown, roles))


def _padding(sizes: Sequence[int], roles: dict[int, set[str]]) -> Iterator[str]:
    """Yield the advice on each size. Rows of a product are tokens or samples; in batches of products, columns too."""
    for size in sizes:
        if roles[size] & {"rows", "batched"}:
            yield f"Pad the number of tokens or samples, {count_text(size)}, to a multiple of {_ALIGNED}."
        else:
            kind = "a size of the weights (vocabulary, hidden size, head)"
            yield f"Pad {count_text(size)}, {kind}, to a multiple of {_ALIGNED}, of 64 where it is large."
