"""Sets of moments: unions of intervals, and how much of a stretch they cover. Integers of ns throughout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Numbers = Sequence[int] | np.ndarray


class Union:
    """The moments that lie in any of some intervals."""

    def __init__(self, starts_ns: Numbers, ends_ns: Numbers) -> None:
        starts, ends = np.asarray(starts_ns, dtype=np.int64), np.asarray(ends_ns, dtype=np.int64)
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(ends) else ends
        first = np.append(True, starts[1:] > ends[:-1]) if len(starts) else np.empty(0, dtype=bool)
        last = np.append(first[1:], True) if len(starts) else first
        self.starts_ns, self.ends_ns = starts[first], ends[last]
        # What is covered before each of them.
        self._before = np.append(0, np.cumsum(self.ends_ns - self.starts_ns))

    @property
    def length_ns(self) -> int:
        return int(self._before[-1])

    def __or__(self, other: Union) -> Union:
        return Union(np.append(self.starts_ns, other.starts_ns), np.append(self.ends_ns, other.ends_ns))

    def covered(self, start_ns: Any, end_ns: Any) -> Any:
        """Covered time between two moments, or between each of two arrays of them, ns."""
        return self._until(end_ns) - self._until(start_ns)

    def common_ns(self, other: Union) -> int:
        return int(self.covered(other.starts_ns, other.ends_ns).sum())

    def _until(self, moment_ns: Any) -> Any:
        moment_ns = np.asarray(moment_ns, dtype=np.int64)
        number = np.searchsorted(self.starts_ns, moment_ns, side="right")
        if not len(self.starts_ns):
            return number * 0
        # All of the intervals that began, less what the last of them has still to come.
        rest = np.where(number > 0, np.maximum(self.ends_ns[np.maximum(number, 1) - 1] - moment_ns, 0), 0)
        return self._before[number] - rest
