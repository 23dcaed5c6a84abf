"""Attention over caches of keys and values in pages: what it must do for the lengths that a step's name tells.

A trace has the shapes of such a call, and not the lengths of the sequences. Engines write their sums into the names of
steps: vLLM with `detailed_trace_annotation`, SGLang with `detailed_annotations`, TraceLens' patches of both. FLOPs and
bytes are those of TraceLens (`InferenceAttention` of its PerfModel), but for a latent cache (MLA), which is read once
for keys and values, and whose values are shorter than its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from molprof.analysis.roofline.operands import Operand, Operands
from molprof.analysis.roofline.peaks import KINDS
from molprof.analysis.roofline.products import ATTENTION, LeastWork
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows

_BATCHES = Query(
    "steps",
    """
WITH
  -- The sums may stand in an annotation inside the one that is the step.
  inside AS (
    SELECT id, id AS step_id FROM _molprof_step_size
    UNION ALL
    SELECT size.id, ancestor.id FROM _molprof_step_size AS size JOIN ancestor_slice(size.id) AS ancestor
  )
SELECT inside.step_id, IFNULL(context_tokens, 0), IFNULL(context_length, 0), IFNULL(context_squares, 0),
  IFNULL(context_pairs, 0), IFNULL(generation_tokens, 0), IFNULL(generation_length, 0), IFNULL(generation_pairs, 0)
FROM inside
JOIN _molprof_step_size AS size USING (id)
JOIN _molprof_fact_step AS step ON step.id = inside.step_id
WHERE (IFNULL(context_tokens, 0) = 0 OR context_pairs > 0)
  AND (IFNULL(generation_tokens, 0) = 0 OR generation_pairs > 0)
ORDER BY inside.step_id, inside.id
""",
)


class Batch(NamedTuple):
    """The sequences of a step: sums over those whose prompt is read (context), and over those that generate.

    Tokens are those computed now, the length is what they attend to; squares and pairs are the sums of tokens x tokens
    and tokens x length.
    """

    context_tokens: int
    context_length: int
    context_squares: int
    context_pairs: int
    tokens: int
    length: int
    pairs: int
    cache_bytes: int | None = None  # of an element of the cache; None: as the arguments say

    @property
    def generating(self) -> Batch:
        """The sequences that generate, alone."""
        return self._replace(context_tokens=0, context_length=0, context_squares=0, context_pairs=0)

    def within(self, window: int) -> Batch:
        """Return the batch with as much of each generating sequence as a window holds, by the mean length."""
        most = self.tokens * window
        return self._replace(length=min(self.length, most), pairs=min(self.pairs, most))


def read_batches(engine: TraceProcessor) -> dict[int, Batch]:
    """Return the batch of each step whose name tells the sums over its sequences."""
    return {item: Batch(*row) for item, *row in query_rows(engine, _BATCHES)[1]}


class _Heads(NamedTuple):
    """Numbers of heads, and sizes of one."""

    queries: int
    keys: int
    key_size: int
    value_size: int


PagedFormula = Callable[[Operands, Batch], LeastWork]


def _attention(query: Operand, heads: _Heads, batch: Batch, stored_bytes: int) -> LeastWork:
    """stored_bytes: of an element of the cache, unless the batch knows it."""
    own = query.element_bytes
    stored = batch.cache_bytes or stored_bytes
    size = heads.key_size + heads.value_size
    computed = batch.context_tokens + batch.tokens
    before = batch.context_length + batch.length - computed
    if before < 0 or not computed or batch.context_squares > 2 * batch.context_pairs:
        raise ValueError("no lengths of sequences")
    # What a prompt's tokens attend to among themselves is causal: half.
    flops = heads.queries * size * (2 * batch.context_pairs - batch.context_squares + 2 * batch.pairs)
    cache = heads.keys * size * (computed * own + before * stored)
    read = computed * heads.queries * heads.key_size * own + cache
    written = computed * heads.queries * heads.value_size * own
    return LeastWork(ATTENTION, flops, read, written, KINDS[query.type], cache)


def _in_rows(query: int = 0, key: int = 1, value: int = 2) -> PagedFormula:
    """Return the formula for queries [tokens, heads, size], and keys and values [..., heads, size]."""

    def formula(operands: Operands, batch: Batch) -> LeastWork:
        first, keys, values = operands[query], operands[key], operands[value]
        _, count, size = first.shape
        if keys.shape[-1] != size or len(keys.shape) < 3:
            raise ValueError("no queries and keys of heads")
        heads = _Heads(count, keys.shape[-2], size, values.shape[-1])
        return _attention(first, heads, batch, keys.element_bytes)

    return formula


def _in_blocks(query: int, key: int, *, window: int | None = None) -> PagedFormula:
    """Return the formula for generating tokens, with caches [blocks, heads, ...] of keys and of values behind them.

    window: index of the argument with the size of a sliding window, below 1 for none.
    """

    def formula(operands: Operands, batch: Batch) -> LeastWork:
        first, keys = operands[query], operands[key]
        _, count, size = first.shape
        width = (0,) if window is None else operands[window].numbers()
        batch = batch.generating
        if width[0] > 0:
            batch = batch.within(width[0])
        return _attention(first, _Heads(count, keys.shape[1], size, size), batch, keys.element_bytes)

    return formula


def _latent(batch: Batch, heads: int, size: int, value_size: int, query: Operand, stored_bytes: int) -> LeastWork:
    """Attention of generating tokens to a latent cache: keys of `size` for all heads, whose beginning is the value."""
    own, stored = query.element_bytes, batch.cache_bytes or stored_bytes
    if not batch.tokens or batch.length < batch.tokens:
        raise ValueError("no lengths of sequences")
    flops = 2 * heads * batch.pairs * (size + value_size)
    cache = size * (batch.tokens * own + (batch.length - batch.tokens) * stored)
    read = batch.tokens * heads * size * own + cache
    return LeastWork(ATTENTION, flops, read, batch.tokens * heads * value_size * own, KINDS[query.type], cache)


def _mla_layer(operands: Operands, batch: Batch) -> LeastWork:
    """Return the least work of `unified_mla_attention_with_output(q, latent keys, rotary keys, output, ...)`.

    Prompts attend to keys and values that are made of the latent ones, one of each head; generating tokens to the
    latent ones themselves.
    """
    query, latent, rotary, output = operands[:4]
    _, heads, size = query.shape
    value_size = output.elements // output.shape[0] // heads
    parts = []
    if batch.context_tokens:
        alone = batch._replace(tokens=0, length=0, pairs=0, cache_bytes=query.element_bytes)
        parts.append(_attention(query, _Heads(heads, heads, size, value_size), alone, query.element_bytes))
    if batch.tokens:
        width = latent.shape[-1]
        parts.append(_latent(batch, heads, width + rotary.shape[-1], width, query, latent.element_bytes))
    return LeastWork(
        ATTENTION,
        sum(part.flops or 0 for part in parts),
        sum(part.read_bytes for part in parts),
        sum(part.written_bytes for part in parts),
        KINDS[query.type],
        sum(part.must_bytes for part in parts),
    )


def _mla_decode(query: int, cache: int, value: int) -> PagedFormula:
    """Return the formula for queries [..., heads, size] and a cache [..., size]. value: its size, or the output."""

    def formula(operands: Operands, batch: Batch) -> LeastWork:
        first, stored = operands[query], operands[cache]
        *_, heads, size = first.shape
        given = operands[value]
        value_size = given.shape[-1] if given.is_tensor else given.numbers()[0]
        if stored.shape[-1] != size:
            raise ValueError("another size in the cache")
        return _latent(batch, heads, size, value_size, first, stored.element_bytes)

    return formula


def _mla_parts(query: int, cache: int) -> PagedFormula:
    """Return the formula for queries in two parts, those for latent and for rotary keys, and a cache [..., size]."""

    def formula(operands: Operands, batch: Batch) -> LeastWork:
        first, second, stored = operands[query], operands[query + 1], operands[cache]
        *_, heads, width = first.shape
        size = width + second.shape[-1]
        if stored.shape[-1] != size:
            raise ValueError("another size in the cache")
        return _latent(batch, heads, size, width, first, stored.element_bytes)

    return formula


def _delta_net(operands: Operands, batch: Batch) -> LeastWork:
    """Return the least work of `gdn_attention_core(q, k and v in one, b, a, output, ...)`: a state, and no cache.

    A token decays, reads, updates and asks the state of each value head: 7 FLOPs for each of its numbers. A key head
    has two value heads. States stay on the chip.
    """
    mixed, gates, _, output = operands[:4]
    values, size = gates.shape[1], output.shape[2]
    key_size, rest = divmod(mixed.shape[1] - values * size, 2 * (values // 2))
    if rest or key_size <= 0:
        raise ValueError("other numbers of heads")
    tokens = batch.context_tokens + batch.tokens
    own = mixed.element_bytes
    read = tokens * values * (key_size + size + 2) * own
    return LeastWork(
        ATTENTION, 7 * tokens * values * size * key_size, read, tokens * values * size * own, KINDS[mixed.type]
    )


PAGED: dict[str, PagedFormula] = {
    "vllm::unified_attention": _in_rows(),
    "vllm::unified_attention_with_output": _in_rows(),
    "sglang::unified_attention_with_output": _in_rows(),
    "aiter::mha_batch_prefill": _in_rows(),
    "aiter::mha_varlen_fwd": _in_rows(),
    "aiter::fmha_v3_varlen_fwd": _in_rows(),
    "aiter::paged_attention_ragged": _in_rows(2, 3, 4),
    "sglang_profiler::attention_paged_attention_ragged": _in_rows(2, 3, 4),
    "_C::paged_attention_v1": _in_blocks(1, 2),
    "_C::paged_attention_v2": _in_blocks(4, 5),
    "_rocm_C::paged_attention": _in_blocks(4, 5),
    "aiter::pa_decode_gluon": _in_blocks(0, 2, window=19),
    "vllm::unified_mla_attention_with_output": _mla_layer,
    "vllm::rocm_aiter_mla_decode_fwd": _mla_decode(0, 1, 2),
    "_flashmla_C::fwd_kvcache_mla": _mla_decode(0, 1, 2),
    "_C::sm100_cutlass_mla_decode": _mla_parts(2, 4),
    "sgl_kernel::cutlass_mla_decode": _mla_parts(1, 3),
    "vllm::gdn_attention_core": _delta_net,
    "vllm::qwen_gdn_attention_core": _delta_net,
}
# Operators that write to the cache, and the argument that is it: it has the type of what attention reads.
CACHES = {
    "_C_cache_ops::reshape_and_cache": 2,
    "_C_cache_ops::reshape_and_cache_flash": 2,
    "_C_cache_ops::concat_and_cache_mla": 2,
}


def cache_bytes(calls: Iterable[tuple[str, Operands]]) -> int | None:
    """Return the bytes of an element of the cache that these calls write to; None where none does, or they differ."""
    sizes = {
        operands[CACHES[name]].element_bytes
        for name, operands in calls
        if name in CACHES and len(operands) > CACHES[name] and operands[CACHES[name]].is_tensor
    }
    return sizes.pop() if len(sizes) == 1 else None
