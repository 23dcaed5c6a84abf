"""`table`: answers limited by an automaton over tokens: of a regular expression, choices or a JSON schema.

An automaton over bytes walks along every token from every state, once. Tokens that lead to the same states have one
class, so a table has a next state by state and class.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from molprof.common.errors import MolprofError, UsageError
from molprof.profiler.constraints.automaton import Automaton, NoText, TooLarge, coaccessible, group_equal_rows
from molprof.profiler.constraints.base import BatchProcessor, Rows
from molprof.profiler.constraints.engines import EngineProcessor, LLGuidance, XGrammar
from molprof.profiler.constraints.json_schema import DEPTH, compiled
from molprof.profiler.constraints.regular import NotRegular
from molprof.profiler.constraints.token_dfa import TokenDfa, TokenDfaBatch
from molprof.profiler.models.target import ProcessorTarget, TokenBytes
from molprof.profiler.molecules.prompts import Constraint

# A table that would take more is not made.
MOST_BYTES = 512 * 2**20
_BLOCK = 2**21  # steps of ways that are walked together
_NONE = -1
_Array = np.ndarray[Any, Any]


def table_of(automaton: Automaton, vocabulary: TokenBytes, eos: int, width: int) -> TokenDfa:
    """Return the token automaton of all tokenizations of an automaton's texts, then the end token. Raises TooLarge."""
    kinds, ways = _transitions(automaton, vocabulary, eos, width)
    states, count = len(automaton.moves), len(ways) + 2
    # Class 0: what may never follow; the last one: the end token.
    classes = kinds.astype(np.int32)
    classes[eos] = count - 1
    moves = np.full((states + 1, count), _NONE, dtype=np.int32)
    for number, way in enumerate(ways, start=1):
        moves[1:, number] = np.where(way >= 0, way + 1, _NONE)
    ends = np.append(True, automaton.ends)
    moves[ends, -1] = 0
    # A vocabulary without all bytes may have no tokens for what remains.
    flat, lengths = vocabulary.flat
    if len(np.unique(flat[(np.cumsum(lengths) - lengths)[:width][lengths[:width] == 1]])) < 256:
        living = coaccessible(moves, ends)
        if not living[1]:
            raise NoText("no tokens of the vocabulary write it")
        moves[(moves >= 0) & ~living[moves]] = _NONE
    at, masks = group_equal_rows(moves >= 0)
    allowed = moves[at] >= 0
    token_dfa = TokenDfa(classes, moves, masks, allowed, allowed @ np.bincount(classes, minlength=count))
    if token_dfa.size_bytes > MOST_BYTES:
        raise TooLarge(f"its table and masks take {token_dfa.size_bytes:,} bytes, more than {MOST_BYTES:,}")
    return token_dfa


def _transitions(automaton: Automaton, vocabulary: TokenBytes, eos: int, width: int) -> tuple[_Array, list[_Array]]:
    """Return each token id's number of its transitions, int64 (width,), 0 for none; and the transitions.

    A way is the state that a token leads to from each, int32 (S,), -1: nowhere. Tokens are walked byte by byte, all
    together, and those that went the same way so far go on as one. Raises TooLarge.
    """
    flat, lengths = vocabulary.flat
    starts, lengths = (np.cumsum(lengths) - lengths)[:width], lengths[:width].copy()
    lengths[[token for token in (*vocabulary.special, eos) if token < len(lengths)]] = 0
    states, many = automaton.moves.shape
    moves = np.vstack([automaton.moves, np.full(many, _NONE)]).astype(np.int32).T.copy()
    random = np.random.default_rng(0).integers(2**63, size=states, dtype=np.int64)
    # Two of N unlike ways have the same sum with a probability of N * N / 2 ** 63.
    numbers: dict[int, int] = {0: 0}  # of ways by their sums; 0: it leads nowhere
    ways = [np.full(states, _NONE, dtype=np.int32), np.arange(states, dtype=np.int32)]
    after: dict[int, int] = {}  # of a way and a kind of byte
    kinds, whole = np.zeros(width, dtype=np.int64), {0}
    at = np.flatnonzero(lengths)
    kinds[at] = 1
    for depth in itertools.count():
        keys, inverse = np.unique(kinds[at] * many + automaton.kinds[flat[starts[at] + depth]], return_inverse=True)
        new = [key for key in keys.tolist() if key not in after]
        size = max(_BLOCK // states, 1)
        for begin in range(0, len(new), size):
            block = new[begin : begin + size]
            to = np.stack([moves[key % many][ways[key // many]] for key in block])
            for key, total, way in zip(block, ((to + np.int64(1)) @ random).tolist(), to, strict=True):
                if total not in numbers:
                    numbers[total] = len(ways)
                    ways.append(way.copy())
                after[key] = numbers[total]
        kinds[at] = np.array([after[key] for key in keys.tolist()], dtype=np.int64)[inverse]
        whole.update(kinds[at[lengths[at] == depth + 1]].tolist())
        if 4 * states * len(whole) > MOST_BYTES:
            classes = f"{len(whole):,} classes of tokens or more"
            raise TooLarge(f"its table has {states:,} states and {classes}, more than {MOST_BYTES:,} bytes")
        at = at[(lengths[at] > depth + 1) & (kinds[at] > 0)]
        if not len(at):
            break
    used, kinds = np.unique(np.append(kinds, 0), return_inverse=True)
    return kinds[:-1], [ways[number] for number in used[1:].tolist()]


class ConstraintProcessor:
    """The `Processor` of one constraint for all rows, or of one for each row of a batch.

    Raises:
        NotRegular, TooLarge, NoText: no table is made of it.
    """

    name = "table"
    fixed_length = False
    compiles = True

    def __init__(
        self, target: ProcessorTarget, constraint: Constraint | Callable[[Rows], Sequence[Constraint]]
    ) -> None:
        self._target, self._constraint = target, constraint
        self.parameters: dict[str, Any] = {}
        self.made_ns: dict[str, int] = {}  # see `Processor`
        if isinstance(constraint, Constraint):
            table, self.made_ns["constraint"] = _kept(target.table, target.eos, target.logits_width, constraint)
            states, classes = table.moves.shape
            depth = {"depth": DEPTH} if constraint.kind == "schema" and '"$ref"' in constraint.text else {}
            self.parameters |= {constraint.kind: constraint.text, **depth, "states": states, "classes": classes}
            self.parameters |= {"masks": len(table.allowed), "bytes": table.size_bytes}

    def start(self, rows: Rows) -> BatchProcessor:
        """Start a batch with a table for each row's constraint."""
        each = (
            [self._constraint] * len(rows.prompts)
            if isinstance(self._constraint, Constraint)
            else self._constraint(rows)
        )
        tables = {constraint: make_table(self._target, constraint) for constraint in dict.fromkeys(each)}
        return self.begin([tables[constraint] for constraint in each], rows.prompt_width, self._target.device)

    def compile(self, constraint: Constraint) -> TokenDfa:
        """Return the table of a constraint, made without a cache. Raises NotRegular, TooLarge and NoText."""
        return table_of(compiled(constraint), self._target.table, self._target.eos, self._target.logits_width)

    def begin(self, compiled: Sequence[TokenDfa], prompt_width: int, device: torch.device) -> TokenDfaBatch:
        """Return the processor of a batch whose rows have these tables, for scores on a device."""
        return TokenDfaBatch(compiled, replace(self._target, device=device), prompt_width)


@functools.lru_cache(maxsize=64)
def _kept(vocabulary: TokenBytes, eos: int, width: int, constraint: Constraint) -> tuple[TokenDfa, int]:
    """Return a table, and the time to make it, ns."""
    began = time.perf_counter_ns()
    return table_of(compiled(constraint), vocabulary, eos, width), time.perf_counter_ns() - began


def make_table(target: ProcessorTarget, constraint: Constraint) -> TokenDfa:
    """Return the table of a constraint, made once for a vocabulary. Raises NotRegular, TooLarge and NoText."""
    return _kept(target.table, target.eos, target.logits_width, constraint)[0]


def table(target: ProcessorTarget, constraint: Constraint) -> ConstraintProcessor | EngineProcessor:
    """Return the processor `table`, or if there is no table XGrammar, else llguidance; its parameters say why.

    Raises:
        UsageError: no table is made, and neither package takes it.
    """
    try:
        return ConstraintProcessor(target, constraint)
    except (NotRegular, TooLarge, NoText) as problem:
        reason = str(problem)
    problems: list[MolprofError] = []
    for engine in (XGrammar, LLGuidance):
        try:
            processor = engine(target, constraint)
        except MolprofError as problem:  # not installed, or it cannot compile it either
            problems.append(problem)
            continue
        processor.parameters["instead_of"] = {"table": reason}
        return processor
    raise UsageError(f"no table is made: {reason}; {'; '.join(map(str, problems))}", hint=problems[0].hint)
