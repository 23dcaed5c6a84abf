"""Sets of moments: unions of intervals, and how much of a span they cover. Integers of ns throughout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from molprof.analysis.facts.intervals import Coverage

Numbers = Sequence[int] | np.ndarray


class Union:
    """The moments that lie in any of some intervals: a `Coverage` of one key."""

    def __init__(self, starts_ns: Numbers, ends_ns: Numbers) -> None:
        starts, ends = np.asarray(starts_ns, dtype=np.int64), np.asarray(ends_ns, dtype=np.int64)
        self._coverage = Coverage(np.zeros_like(starts), starts, ends)
        self.starts_ns, self.ends_ns = self._coverage.starts, self._coverage.ends

    @property
    def length_ns(self) -> int:
        """The length of the union, ns."""
        return self._coverage.length_ns

    def __or__(self, other: Union) -> Union:
        return Union(np.append(self.starts_ns, other.starts_ns), np.append(self.ends_ns, other.ends_ns))

    def covered(self, start_ns: Any, end_ns: Any) -> Any:
        """Return the covered time between two moments, or between each of two arrays of them, ns."""
        return self._coverage.covered(0, np.asarray(start_ns, dtype=np.int64), np.asarray(end_ns, dtype=np.int64))

    def holds(self, moments_ns: Any) -> Any:
        """Return True for moments that lie in an interval, which does not hold its end: bool."""
        moments = np.asarray(moments_ns, dtype=np.int64)
        return self.covered(moments, moments + 1) > 0

    def common_ns(self, other: Union) -> int:
        """Return the length of the intersection of both unions, ns."""
        return int(self.covered(other.starts_ns, other.ends_ns).sum())
