"""`table` as an engine of `molprof bench masks`: its mask is applied to scores at once, so that is what is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from molprof import __version__
from molprof.common.errors import RunError
from molprof.profiler.constraints.automaton import NoText, TooLarge
from molprof.profiler.constraints.json_schema import compiled
from molprof.profiler.constraints.regular import NotRegular
from molprof.profiler.constraints.whole import WholeTable, table_of
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.prompts import Whole


class TableMasks:
    """Tables of constraints, one state at a time. A matcher is a table and the state, in a list."""

    def __init__(self, target: Target, none_yet: object) -> None:
        self._target, self.parameters = target, {"version": __version__}
        self._scores = np.zeros((1, target.logits_width), dtype=np.float32)

    def compile(self, grammar: Whole) -> Callable[[], Any]:
        target = self._target
        try:
            table = table_of(compiled(grammar), target.table, target.eos, target.logits_width)
        except (NotRegular, TooLarge, NoText) as problem:
            raise RunError(f"no table: {problem}") from problem
        _ = table.forms
        return lambda: [table, table.first]

    def accept(self, matcher: Any, token: int) -> None:
        matcher[1] = matcher[0].after(matcher[1], token)

    def fill(self, matchers: Sequence[Any], rows: Sequence[int], mask: Tensor) -> None:
        """Masks rows of scores; `mask` stays as it is."""
        if len(self._scores) < len(matchers):
            self._scores = np.zeros((len(matchers), self._scores.shape[1]), dtype=np.float32)
        for (table, state), scores in zip(matchers, self._scores, strict=False):
            table.form(state).apply(scores)

    def use_threads(self, count: int | None) -> bool:
        return count in (None, 1)

    def bits(self, matcher: Any) -> Any:
        """What the state allows, uint8 (logits width,)."""
        table: WholeTable = matcher[0]
        return table.allowed[table.masks[matcher[1]]][table.classes].astype(np.uint8)
