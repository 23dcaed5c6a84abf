"""A KV cache for rows of different lengths: token number N of a row is in column N of that row.

The caches of transformers append the same columns to all rows, so that rows of different lengths get holes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


class _ChunkSlot:
    """The target of the current chunk in all layers."""

    columns: Tensor
    used: int


class _Layer(CacheLayerMixin):
    """Keys and values of one layer, (rows, heads, capacity, head_dim) each."""

    is_sliding = False
    is_compileable = True

    def __init__(self, slot: _ChunkSlot, capacity: int) -> None:
        super().__init__()
        self._slot, self._capacity = slot, capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def zeros(states: Tensor) -> Tensor:
            # Not `empty`: unwritten columns are masked, and a masked NaN is still NaN.
            rows, heads, _, dim = states.shape
            cached = states.new_zeros((rows, heads, self._capacity, dim))
            torch._dynamo.mark_static_address(cached)  # else CUDA graphs would copy the whole cache in every step
            return cached

        self.keys, self.values = zeros(key_states), zeros(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        columns = self._slot.columns[:, None, :, None]
        self.keys.scatter_(2, columns.expand_as(key_states), key_states)
        self.values.scatter_(2, columns.expand_as(value_states), value_states)
        used = self._slot.used
        return self.keys[:, :, :used], self.values[:, :, :used]

    def batch_select_indices(self, indices: Tensor) -> None:
        assert self.keys is not None
        assert self.values is not None
        self.keys, self.values = self.keys.index_select(0, indices), self.values.index_select(0, indices)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._slot.used, 0

    def get_seq_length(self) -> int:
        return self._slot.used

    def get_max_length(self) -> int:
        return self._capacity

    get_max_cache_shape = get_max_length  # its name in transformers 4.57 and the first 5


class RaggedCache(Cache):
    """The cache of one batch shape, allocated by the first forward and reused by the next batch.

    Args:
        capacity: columns of the longest row, and one more that takes padding and is never read.
        whole: give the attention all columns, so that its shapes do not change; else those in use.
    """

    def __init__(self, layers: int, rows: int, capacity: int, whole: bool, device: torch.device) -> None:
        self.slot = _ChunkSlot()
        self.rows, self.capacity, self.whole = rows, capacity, whole
        self._range = torch.arange(capacity, device=device)
        super().__init__(layers=[_Layer(self.slot, capacity) for _ in range(layers)])

    def feed(self, columns: Tensor, positions: Tensor, used: int) -> Tensor:
        """Set the target of the next chunk; return which columns each token sees, bool (rows, 1, width, columns).

        Args:
            columns: int64 (rows, width); positions: the same, 0 for padding.
            used: columns that hold tokens once the chunk is in.
        """
        self.slot.columns = columns
        self.slot.used = self.capacity if self.whole else used
        return self._range[: self.slot.used] <= positions[:, None, :, None]

    def select(self, kept: Tensor) -> None:
        """Keep these rows, int64 (n,)."""
        self.rows = len(kept)
        self.batch_select_indices(kept)
