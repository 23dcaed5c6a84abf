"""`table`: answers kept to an automaton over the vocabulary's tokens: a regular expression, choices, a JSON schema.

An automaton over bytes walks along every token from every state, once. Tokens that lead to the same states have one
class, so a table has a next state by state and class. A step gathers from it; it knows nothing of the constraint.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from molprof.common.errors import MolprofError, UsageError
from molprof.profiler.constraints.automaton import Automaton, NoText, TooLarge, alike, alive
from molprof.profiler.constraints.base import BatchProcessor, Laps, Places, Rows
from molprof.profiler.constraints.engines import ENGINES, EngineProcessor
from molprof.profiler.constraints.json_schema import DEPTH, compiled
from molprof.profiler.constraints.regular import NotRegular
from molprof.profiler.constraints.table import fused_steps
from molprof.profiler.models.device import on_gpu
from molprof.profiler.models.target import Target, TokenBytes
from molprof.profiler.molecules.prompts import Whole

# A table that would take more is not made.
MOST_BYTES = 512 * 2**20
# Masks of at most so many ids are lists of them: on a CPU faster than adding a whole row.
_FEW_ALLOWED, _FEW_FORBIDDEN = 4096, 8192
_ALLOWED, _FORBIDDEN = np.float32(0), np.float32(-math.inf)
_BLOCK = 2**21  # steps of ways that are walked together
_NONE = -1
_Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class _Form:
    """A mask on a CPU, in one of three ways: the ids it allows, those it forbids, or what is added to all scores.

    Arrays of numpy: torch would wake its threads for each row.
    """

    only: _Array | None = None
    without: _Array | None = None
    bias: _Array | None = None

    def apply(self, scores: _Array) -> None:
        """Mask a row of scores, float32 (logits_width,), in place."""
        if self.only is not None:
            kept = scores[self.only]
            scores.fill(_FORBIDDEN)
            scores[self.only] = kept
        elif self.without is not None:
            scores[self.without] = _FORBIDDEN
        elif self.bias is not None:
            np.add(scores, self.bias, out=scores)


@dataclass(frozen=True, eq=False)
class WholeTable:
    """An automaton over token ids: S states, C classes of tokens, M masks.

    State 0 allows the end token alone. An end token leads there, and so does a token that may not follow.
    """

    classes: _Array  # of each id, int32 (logits_width,)
    moves: _Array  # next state, -1: the class may not follow, int32 (S, C)
    masks: _Array  # the mask of each state, int64 (S,)
    allowed: _Array  # whether a mask allows a class, bool (M, C)
    counts: _Array  # ids that a mask allows, int64 (M,)
    first: int = 1

    @functools.cached_property
    def forms(self) -> list[_Form]:
        """How a CPU applies each mask."""
        order = np.argsort(self.classes, kind="stable")
        members = np.split(order, np.searchsorted(self.classes[order], np.arange(1, self.allowed.shape[1])))

        def ids(kinds: _Array) -> _Array:
            return np.sort(np.concatenate([members[kind] for kind in np.flatnonzero(kinds)]))

        found = []
        for allowed, count in zip(self.allowed, self.counts.tolist(), strict=True):
            if count <= _FEW_ALLOWED:
                found.append(_Form(only=ids(allowed)))
            elif len(self.classes) - count <= _FEW_FORBIDDEN:
                found.append(_Form(without=ids(~allowed)))
            else:
                found.append(_Form(bias=np.where(allowed, _ALLOWED, _FORBIDDEN)[self.classes]))
        return found

    def after(self, state: int, token: int) -> int:
        """The state that a token leads to."""
        return max(int(self.moves[state, self.classes[token]]), 0)

    def form(self, state: int) -> _Form:
        """How a CPU applies the mask of a state."""
        return self.forms[int(self.masks[state])]

    @property
    def size_bytes(self) -> int:
        """Of the table, and of what a CPU's steps need of each mask."""
        width = len(self.classes)
        lists = np.where(width - self.counts <= _FEW_FORBIDDEN, 8 * (width - self.counts), 4 * width)
        forms = np.where(self.counts <= _FEW_ALLOWED, 8 * self.counts, lists)
        return self.classes.nbytes + self.moves.nbytes + self.masks.nbytes + self.allowed.nbytes + int(forms.sum())


def anything(width: int) -> WholeTable:
    """The table of any tokens, whose one state is its first."""
    classes, moves = np.zeros(width, dtype=np.int32), np.zeros((1, 1), dtype=np.int32)
    return WholeTable(classes, moves, np.zeros(1, dtype=np.int64), moves == 0, np.array([width]), first=0)


def table_of(automaton: Automaton, vocabulary: TokenBytes, eos: int, width: int) -> WholeTable:
    """The texts of an automaton in every cut into tokens, then the end token. Raises TooLarge."""
    kinds, ways = _ways(automaton, vocabulary, eos, width)
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
        living = alive(moves, ends)
        if not living[1]:
            raise NoText("no tokens of the vocabulary write it")
        moves[(moves >= 0) & ~living[moves]] = _NONE
    at, masks = alike(moves >= 0)
    allowed = moves[at] >= 0
    found = WholeTable(classes, moves, masks, allowed, allowed @ np.bincount(classes, minlength=count))
    if found.size_bytes > MOST_BYTES:
        raise TooLarge(f"its table and masks take {found.size_bytes:,} bytes, more than {MOST_BYTES:,}")
    return found


def _ways(automaton: Automaton, vocabulary: TokenBytes, eos: int, width: int) -> tuple[_Array, list[_Array]]:
    """Of each token id the number of its way, from 1 on, 0: it may never follow, int64 (width,); and the ways.

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


class WholeBatch(LogitsProcessor):
    """The states of a batch's rows, each of a table of its own.

    By row, each is masked in the way that touches least of it, which is best on a CPU. Else states stay on the device,
    and no step reads anything back: one kernel with Triton, else six operators, in place.

    Args:
        by_row: default: on a CPU.
        fused: the module of the kernels; default: on a GPU with Triton.
    """

    reads_tokens = True  # what is forced depends on the chosen tokens

    def __init__(
        self,
        rows: Sequence[WholeTable],
        target: Target,
        prompt_width: int,
        by_row: bool | None = None,
        fused: Any = None,
    ) -> None:
        self._tables, self._eos, self._width = rows, target.eos, target.logits_width
        self._states = [table.first for table in rows]  # on the host; see `forced`
        self._paths = [[table.first] for table in rows]  # of `state`: by row and answer position
        self._prompt_width = self._read = prompt_width
        self._by_row = not on_gpu(target.device) if by_row is None else by_row
        self._masked = np.zeros(len(rows), dtype=np.int64)
        self._called: list[int] = []
        self._ids: Tensor | None = None
        self._had: Sequence[_Array | None] = [None] * len(rows)  # the ids that are written in each row of `_out`
        self.tables = distinct = list(dict.fromkeys(rows))
        # One list of next states, with those of a state at the place that is its number here.
        places = self._places = np.cumsum([0, *(table.moves.size for table in distinct)])
        if self._by_row:
            for table in distinct:
                _ = table.forms
            self._out = torch.full((len(rows), self._width), -math.inf)
            self.laps = Laps("read", "accept", "fill", "apply")
            return
        self.laps = Laps("apply")  # one kernel does all of it
        starts = dict(zip(distinct, places.tolist(), strict=False))
        flat = [
            (np.maximum(table.moves, 0) * table.moves.shape[1] + start).reshape(-1) for table, start in starts.items()
        ]
        self._moves = torch.from_numpy(np.concatenate(flat).astype(np.int32)).to(target.device)
        forbidden = np.concatenate([(table.moves < 0).reshape(-1) for table in distinct])
        self._forbidden = torch.from_numpy(forbidden).to(target.device)
        kinds = self._by_table = torch.from_numpy(np.stack([table.classes for table in distinct])).to(target.device)
        self._starts = torch.from_numpy(places[:-1].astype(np.int32)).to(target.device)
        which = torch.tensor([distinct.index(table) for table in rows], device=target.device)
        begun = [starts[table] + table.first * table.moves.shape[1] for table in rows]
        self._at = torch.tensor(begun, dtype=torch.int32, device=target.device)
        self._fused = fused or fused_steps(target.device)
        if self._fused is not None:
            self._tables_there = (kinds, which, self._moves, self._forbidden)
            self._at = self._at[:, None].repeat(1, -(-self._width // self._fused.WHOLE_BLOCK))
        self._kinds = kinds.expand(len(rows), -1) if len(distinct) == 1 else kinds.index_select(0, which)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Advance by the tokens since the last call, and mask."""
        self._called.append(input_ids.shape[1] - self._prompt_width)
        self._ids = input_ids
        clock = time.perf_counter_ns
        began = clock()
        tokens, self._read = input_ids[:, self._read :], input_ids.shape[1]
        if not self._by_row:
            self.step(tokens, scores)
            self.laps.add(began, clock())
            return scores
        columns = tokens.T.numpy()
        read = clock()
        for column in columns:
            for row, token in enumerate(column):
                self._states[row] = self._tables[row].after(self._states[row], token)
        accepted = clock()
        forms = [table.form(state) for table, state in zip(self._tables, self._states, strict=True)]
        filled = clock()
        out = self._masked_by_row(scores, forms)
        self.laps.add(began, read, accepted, filled, clock())
        return out

    def seek(self, row: int, tokens: Sequence[int]) -> None:
        """See `Followed`."""
        table = self._tables[row]
        state = functools.reduce(table.after, tokens, table.first)
        self._states[row] = state
        if not self._by_row:
            self._at[row] = self.place(table, state)

    def step(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Move each row past its tokens, int64 (rows, n), and mask its scores in place, all on the device.

        Nothing is read back and no shape depends on a value, so that a CUDA graph can hold it.
        """
        if self._fused is not None:
            self._fused.whole_step(tokens, self._tables_there, self._at, scores)
            return scores
        for place in range(tokens.shape[1]):
            kinds = self._kinds.gather(1, tokens[:, place : place + 1])[:, 0]
            torch.index_select(self._moves, 0, kinds.add_(self._at), out=self._at)
        return scores.masked_fill_(self._forbidden[self._at[:, None] + self._kinds], -math.inf)

    def _masked_by_row(self, scores: Tensor, forms: list[_Form]) -> Tensor:
        lists, rows = [form.only for form in forms if form.only is not None], scores.numpy()
        if len(lists) < len(forms):
            for form, row in zip(forms, rows, strict=True):
                form.apply(row)
            return scores
        # Of a tensor that is -inf everywhere else, only what a row had and what it gets is written.
        for had, ids, row, out in zip(self._had, lists, rows, self._out.numpy(), strict=True):
            if had is not None:
                out[had] = _FORBIDDEN
            out[ids] = row[ids]
        self._had = lists
        return self._out

    def mask(self, scores: Tensor, places: Places) -> Tensor:
        """The scores that the states allow in which `forced` left the rows."""
        for row, own in zip(places.rows, scores.unbind(0), strict=False):
            table, state = self._tables[row], self._states[row]
            self._masked[row] += self._width - table.counts[table.masks[state]]
            if self._by_row:
                table.form(state).apply(own.numpy())
            else:
                allowed = torch.from_numpy(table.moves[state] < 0).to(scores.device)
                own.masked_fill_(allowed[self._kinds[row]], -math.inf)
        return scores

    def forced(self, row: int, position: int, chosen: int | None) -> list[int]:
        table = self._tables[row]
        if chosen is not None:
            self._states[row] = table.after(self._states[row], chosen)
        run: list[int] = []
        while table.counts[table.masks[state := self._states[row]]] == 1 and (not run or run[-1] != self._eos):
            (kind,) = np.flatnonzero(table.moves[state] >= 0)
            run.append(int(np.argmax(table.classes == kind)))
            self._states[row] = table.after(state, run[-1])
        return run

    def state(self, row: int, position: int, chosen: int | None) -> int:
        """See `StateTable`: a state is its place among the next states of all tables."""
        table, path = self._tables[row], self._paths[row]
        if chosen is not None:
            del path[position:]
            path.append(table.after(path[-1], chosen))
        state = path[position]
        self._masked[row] += self._width - table.counts[table.masks[state]]
        return self.place(table, state)

    def place(self, table: WholeTable, state: int) -> int:
        """A state of one of `tables` as `allow` takes it."""
        return int(self._places[self.tables.index(table)] + state * table.moves.shape[1])

    def allow(self, scores: Tensor, states: Tensor) -> Tensor:
        if self._by_row:
            for place, own in zip(states.tolist(), scores.numpy(), strict=True):
                number = int(np.searchsorted(self._places, place, side="right")) - 1
                table = self.tables[number]
                table.form((place - int(self._places[number])) // table.moves.shape[1]).apply(own)
            return scores
        kinds = self._by_table[torch.bucketize(states, self._starts, right=True) - 1]
        return scores.masked_fill_(self._forbidden[states[:, None] + kinds], -math.inf)

    @property
    def masked_logits(self) -> list[int]:
        """See `BatchProcessor`. Walks the tables along what was written, so that no step counts."""
        total, called = self._masked.copy(), set(self._called)
        ids = [] if self._ids is None else self._ids[:, self._prompt_width :].tolist()
        for row, (table, written) in enumerate(zip(self._tables, ids, strict=False)):
            state = table.first
            for position, token in enumerate([*written, self._eos]):
                if position in called:
                    total[row] += self._width - table.counts[table.masks[state]]
                state = table.after(state, token)
        return [int(count) for count in total]


class WholeProcessor:
    """The `Processor` of one constraint for all rows, or of one for each row of a batch.

    Raises:
        NotRegular, TooLarge, NoText: no table is made of it.
    """

    name = "table"
    fixed_length = False
    compiles = True

    def __init__(self, target: Target, whole: Whole | Callable[[Rows], Sequence[Whole]]) -> None:
        self._target, self._whole = target, whole
        self.parameters: dict[str, Any] = {}
        self.made_ns: dict[str, int] = {}  # see `Processor`
        if isinstance(whole, Whole):
            table, self.made_ns["constraint"] = _kept(target.table, target.eos, target.logits_width, whole)
            states, classes = table.moves.shape
            depth = {"depth": DEPTH} if whole.kind == "schema" and '"$ref"' in whole.text else {}
            self.parameters |= {whole.kind: whole.text, **depth, "states": states, "classes": classes}
            self.parameters |= {"masks": len(table.allowed), "bytes": table.size_bytes}

    def start(self, rows: Rows) -> BatchProcessor:
        each = [self._whole] * len(rows.prompts) if isinstance(self._whole, Whole) else self._whole(rows)
        tables = {whole: make_table(self._target, whole) for whole in dict.fromkeys(each)}
        return self.begin([tables[whole] for whole in each], rows.prompt_width, self._target.device)

    def compile(self, whole: Whole) -> WholeTable:
        """The table of a constraint, made anew. Raises NotRegular, TooLarge and NoText."""
        return _made(self._target.table, self._target.eos, self._target.logits_width, whole)

    def begin(self, compiled: Sequence[WholeTable], prompt_width: int, device: torch.device) -> WholeBatch:
        """The processor of a batch whose rows have these tables, for scores on a device."""
        return WholeBatch(compiled, replace(self._target, device=device), prompt_width)


def _made(vocabulary: TokenBytes, eos: int, width: int, whole: Whole) -> WholeTable:
    return table_of(compiled(whole), vocabulary, eos, width)


@functools.lru_cache(maxsize=64)
def _kept(vocabulary: TokenBytes, eos: int, width: int, whole: Whole) -> tuple[WholeTable, int]:
    """A table, and the time to make it, ns."""
    began = time.perf_counter_ns()
    return _made(vocabulary, eos, width, whole), time.perf_counter_ns() - began


def make_table(target: Target, whole: Whole) -> WholeTable:
    """The table of a constraint, made once for a vocabulary. Raises NotRegular, TooLarge and NoText."""
    return _kept(target.table, target.eos, target.logits_width, whole)[0]


def table(target: Target, whole: Whole) -> WholeProcessor | EngineProcessor:
    """The processor `table`, or where no table is made XGrammar, else llguidance; its parameters then say why.

    Raises:
        UsageError: no table is made, and neither package takes it.
    """
    try:
        return WholeProcessor(target, whole)
    except (NotRegular, TooLarge, NoText) as problem:
        reason = str(problem)
    problems: list[MolprofError] = []
    for engine in ENGINES.values():
        try:
            found = engine(target, whole)
        except MolprofError as problem:  # not installed, or it cannot compile it either
            problems.append(problem)
            continue
        found.parameters["instead_of"] = {"table": reason}
        return found
    raise UsageError(f"no table is made: {reason}; {'; '.join(map(str, problems))}", hint=problems[0].hint)
