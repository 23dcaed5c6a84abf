"""Texts that a constraint allows, as instances of constraints that come with none."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from molprof.common.errors import MolprofError
from molprof.profiler.bench.cases import ENGINES
from molprof.profiler.bench.mask_engine import MaskEngine
from molprof.profiler.bench.oracle import closing_tokens, written
from molprof.profiler.bench.schemas import Instance, SchemaFile
from molprof.profiler.capture.answers import json_value, schema_validator
from molprof.profiler.constraints.automaton import Automaton, NoText, TooLarge
from molprof.profiler.constraints.json_schema import compiled
from molprof.profiler.constraints.regular import NotRegular
from molprof.profiler.molecules.prompts import Constraint

_COUNT, _TRIES = 6, 40
# From so many bytes on a text goes the shortest way to its end.
_LONG = 160
# How often a byte is taken where several may follow: free text is mostly letters, closed after some words.
_WEIGHTS = np.full(256, 0.02)
_WEIGHTS[32:127] = 1.0
for _characters, _weight in ((b"abcdefghijklmnopqrstuvwxyz", 6.0), (b"0123456789", 4.0), (b" ", 20.0), (b'"', 12.0)):
    _WEIGHTS[list(_characters)] = _weight
_WEIGHTS[list(b"\\eE\t\n\r")] = 0.02  # escapes and exponents are rare


def with_samples(item: SchemaFile, target: Any) -> SchemaFile:
    """Return the constraint with its own instances; without any, with texts that it allows, equal each time.

    Of what molprof has no automaton of, the first engine that takes it writes them. There are none where each fails.
    """
    if item.instances:
        return item
    try:
        texts = list(dict.fromkeys(_texts(compiled(item.whole))))
    except (NotRegular, TooLarge, NoText):
        texts = list(dict.fromkeys(_of_engine(item.whole, target)))
    if item.whole.kind == "schema":
        valid = schema_validator(item.schema, item.name, "molprof bench masks").valid
        values = [value for text in texts if _is_plain(value := json_value(text)) and valid(value) is not False]
        instances = [Instance(value, None, f"made {number}") for number, value in enumerate(values[:_COUNT], 1)]
    else:
        instances = [Instance(None, None, f"made {number}", text) for number, text in enumerate(texts[:_COUNT], 1)]
    return replace(item, instances=tuple(instances))


def _of_engine(whole: Constraint, target: Any) -> Iterator[str]:
    """Yield random texts from the first installed engine that accepts the constraint."""
    for name in ENGINES:
        try:
            engine = MaskEngine(name, target)
            matchers = engine.compile(whole)
        except MolprofError:  # not installed, or refused
            continue
        closing = closing_tokens(target.table)
        texts = (written(engine, matchers, [], closing, seed) for seed in range(_TRIES))
        yield from itertools.islice(filter(None, texts), 2 * _COUNT)
        return


def _texts(automaton: Automaton) -> Iterator[str]:
    """Yield random texts of an automaton."""
    moves = automaton.moves[:, automaton.kinds]  # by byte, (S, 256)
    distance = _distances(automaton)
    for seed in range(_TRIES):
        choose, state, written = random.Random(seed), 0, bytearray()
        while True:
            following = np.flatnonzero(moves[state] >= 0)
            if automaton.ends[state] and (not len(following) or len(written) >= _LONG or choose.random() < 0.2):
                break
            if len(written) >= _LONG:
                byte = int(following[np.argmin(distance[moves[state, following]])])
            else:
                (byte,) = choose.choices(following.tolist(), _WEIGHTS[following].tolist())
            written.append(byte)
            state = int(moves[state, byte])
        try:
            yield written.decode()
        except UnicodeDecodeError:  # no constraint ends within a character
            continue


def _distances(automaton: Automaton) -> np.ndarray[Any, Any]:
    """Return the fewest bytes from each state to an end, int64 (S,)."""
    before: list[list[int]] = [[] for _ in automaton.moves]
    for state, row in enumerate(automaton.moves.tolist()):
        for to in {to for to in row if to >= 0}:
            before[to].append(state)
    distances = np.full(len(before), len(before), dtype=np.int64)
    waiting = [(0, state) for state in np.flatnonzero(automaton.ends).tolist()]
    distances[automaton.ends] = 0
    while waiting:
        steps, state = heapq.heappop(waiting)
        for earlier in before[state]:
            if distances[earlier] > steps + 1:
                distances[earlier] = steps + 1
                heapq.heappush(waiting, (steps + 1, earlier))
    return distances


def _is_plain(value: Any) -> bool:
    """Return True if `json.dumps` writes a value as valid JSON: without a number beyond float64."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, float) or math.isfinite(value)
