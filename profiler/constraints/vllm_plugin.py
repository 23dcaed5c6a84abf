"""`table` in vLLM, as a logits processor of its plugin interface: `vllm serve MODEL --logits-processors PLACE`.

PLACE is `molprof.profiler.constraints.vllm_plugin:TableLogitsProcessor`. A request names its constraint in
`SamplingParams.extra_args` (`vllm_xargs` of a request over HTTP): `table_schema`, `table_regex` or `table_choices`.
Tried with vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

from molprof.profiler.constraints.constraint import make_table
from molprof.profiler.constraints.json_schema import compiled
from molprof.profiler.constraints.token_dfa import TokenDfa, TokenDfaBatch, anything
from molprof.profiler.models.device import on_gpu, pinned
from molprof.profiler.models.target import ProcessorTarget, token_bytes
from molprof.profiler.molecules.bodies import Kind
from molprof.profiler.molecules.prompts import Constraint

_PREFIX = "table_"
KINDS: tuple[Kind, ...] = ("schema", "regex", "choices")


def asked(sampling: Any) -> Constraint | None:
    """Return the constraint of a request. Raises ValueError if its `extra_args` name two, none, or misspell one."""
    _check_names(sampling.extra_args or {})
    texts = {kind: (sampling.extra_args or {}).get(_PREFIX + kind) for kind in KINDS}
    constraints = [Constraint(kind, text) for kind, text in texts.items() if text is not None]
    if len(constraints) > 1 or not all(isinstance(constraint.text, str) for constraint in constraints):
        raise ValueError(f"extra_args: one text, {', or '.join(_PREFIX + kind for kind in KINDS)}")
    return constraints[0] if constraints else None


def _check_names(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for a name that would be ignored: a misspelling of one of these."""
    names = [_PREFIX + kind for kind in KINDS]
    for name in arguments:
        if name not in names and (name.startswith(_PREFIX) or get_close_matches(name, names, cutoff=0.85)):
            raise ValueError(f"extra_args: no {name!r}, but {', '.join(names)}")


@lru_cache(maxsize=256)
def _check(constraint: Constraint) -> None:
    compiled(constraint)


class _TableRequest:
    """The position of a request in its table. `written` grows as vLLM appends its tokens."""

    def __init__(self, table: TokenDfa, written: list[int]) -> None:
        self.table, self.written, self.state, self.read = table, written, table.first, 0

    def advance(self) -> None:
        for token in self.written[self.read :]:
            self.state = self.table.after(self.state, token)
        self.read = len(self.written)


class TableLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """The logits processor of vLLM that masks by tables."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError for a constraint that has no table; vLLM sends the error to the client."""
        try:
            if (constraint := asked(sampling_params)) is not None:
                if getattr(sampling_params, "structured_outputs", None) is not None:
                    raise ValueError("the request has structured_outputs too, and both could forbid all tokens")
                _check(constraint)
        except ValueError as problem:
            raise ValueError(f"molprof's table: {problem}") from problem

    def __init__(
        self, vllm_config: Any, device: torch.device, is_pin_memory: bool, target: ProcessorTarget | None = None,
        by_row: bool | None = None,
    ) -> None:  # fmt: skip
        """`by_row`: see `TokenDfaBatch`."""
        if target is None:
            model = vllm_config.model_config
            tokenizer: Any = AutoTokenizer.from_pretrained(model.tokenizer, trust_remote_code=model.trust_remote_code)
            eos = tokenizer.eos_token_id
            target = ProcessorTarget(tokenizer, token_bytes(tokenizer), model.get_vocab_size(), eos, eos, device)
        self._target, self._by_row = target, not on_gpu(device) if by_row is None else by_row
        self._table = lru_cache(maxsize=256)(partial(make_table, target))
        self._requests: dict[int, _TableRequest] = {}  # by row of the batch
        self._other = _TableRequest(anything(target.logits_width), [])  # of rows without a constraint
        self._there: TokenDfaBatch | None = None  # tables on the device

    def table_of(self, constraint: Constraint) -> TokenDfa:
        """Return the table of a constraint, kept for later requests."""
        return self._table(constraint)

    def forget(self) -> None:
        """Drop all requests whose end vLLM did not report."""
        self._requests.clear()

    def is_argmax_invariant(self) -> bool:
        """Return False: a mask changes which token is most likely."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Update the requests from vLLM's batch: added, removed and moved ones."""
        if batch_update is None:
            return
        requests = self._requests
        for row in batch_update.removed:
            requests.pop(row, None)
        for row, sampling, _, written in batch_update.added:
            requests.pop(row, None)
            if (constraint := asked(sampling)) is not None:
                requests[row] = _TableRequest(self._table(constraint), written)
        for one, other, direction in batch_update.moved:
            moved, replaced = requests.pop(one, None), requests.pop(other, None)
            if moved is not None:
                requests[other] = moved
            if replaced is not None and direction == MoveDirectionality.SWAP:
                requests[one] = replaced

    def apply(self, logits: Tensor) -> Tensor:
        """Mask in place the rows whose requests have a constraint, float32 (rows, logits_width)."""
        for request in self._requests.values():
            request.advance()
        if self._by_row:
            for row, request in self._requests.items():
                request.table.form(request.state).apply(logits[row].numpy())
        elif self._requests:
            tables = {self._other.table, *(request.table for request in self._requests.values())}
            if self._there is None or not tables.issubset(self._there.tables):
                self._there = TokenDfaBatch([*tables], self._target, 0, by_row=False)
            rows = (self._requests.get(row, self._other) for row in range(len(logits)))
            states = torch.tensor([self._there.place(one.table, one.state) for one in rows], dtype=torch.int32)
            self._there.allow(logits, pinned(states, logits.device).to(logits.device, non_blocking=True))
        return logits
