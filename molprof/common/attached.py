"""Measurements at the client of a running server, as stored in each trace that the server recorded."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from molprof.common.errors import TraceError
from molprof.common.typed_json import read_typed

KEY = "molprof_attached"


class Answer(Struct, frozen=True):
    """One request as the client saw it; times in ns since its pass began."""

    line: int  # of its prompt
    sent_ns: int  # with a rate, when it was due
    pieces_ns: list[int]  # when each piece of its text came: as servers stream, one for each token
    ended_ns: int
    tokens: int  # as the server counts
    text: str
    cut: bool  # the token limit ended it
    valid: bool | None  # None: nothing judges it
    problem: str | None = None  # why it is not valid
    kinds: str = ""  # of each piece a letter: reasoning, content, t: name of a tool, arguments; empty: not recorded
    inside: str = ""  # kinds of pieces that the constraint of its request is about, in the plain run too
    calls: list[str] = []  # of tools, with their arguments
    reasoning_tokens: int | None = None  # as the server counts
    token_ids: list[int] | None = None  # as the server sends them; None in timed passes, which do not ask for them
    reasoned: int = 0  # of these, those up to the last one of reasoning


class Pass(Struct, frozen=True):
    """All requests once, without the profiler."""

    wall_ns: int
    answers: list[Answer]


class AnswerMasks(Struct, frozen=True):
    """The masks of one answer, filled again at the client."""

    line: int  # of its request
    tokens: int  # as the server counts
    stood: str = ""  # of each token a letter of `STOOD` in `answer_counts`
    missing: str = ""  # why `stood` is not recorded


class Masks(Struct, frozen=True):
    """The masks of the answers of the last warm-up pass with the constraint."""

    engine: str  # what filled them, with its version; empty: nothing
    answers: list[AnswerMasks]


class Attached(Struct, frozen=True):
    """One run of requests: the same prompts in each pass."""

    server: str  # vllm, sglang or openai
    version: str  # empty: the server does not say
    model: str
    run: str  # plain or constrained
    session: str  # one for the runs that took turns, round by round
    concurrency: int | None  # the most requests at a time; None: no bound
    rate: float | None  # requests per s; None: the next is sent when another has ended
    passes: list[Pass]
    command: list[str] = []
    masks: Masks | None = None  # None of the plain run


def from_json(raw: Any) -> Attached:
    """Return the content of a trace's `molprof_attached`. Raises TraceError, also without passes."""
    attached = read_typed(raw, Attached, KEY)
    if not attached.passes:
        raise TraceError(f"{KEY} has no passes")
    return attached
