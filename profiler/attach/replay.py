"""Masks of a server's answers, filled again here: how many tokens each left, and where each token stood.

The server sends the token ids of answers (vLLM's `return_token_ids`), or the tokenizer cuts their text; a matcher of
the same package then follows them. Where it forbids a token that the server wrote, it is not the server's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molprof.common.answer_counts import STOOD
from molprof.common.attached import Answer, AnswerMasks, Masks
from molprof.common.engine_settings import TABLE
from molprof.common.errors import MolprofError, RunError
from molprof.profiler.attach.requests import Request
from molprof.profiler.attach.server import Server
from molprof.profiler.molecules.bodies import enforced
from molprof.profiler.molecules.prompts import Constraint

# Of vLLM's names, those that are tried where none is given.
_DEFAULT = ("xgrammar", "guidance", TABLE)
_PACKAGES = {"guidance": "llguidance"}
# After reasoning the constraint begins at its end token, which may stand in no text, or soon after.
_MOST_ENDS = 3


@dataclass(frozen=True)
class Matching:
    """What follows answers: the tokenizer (None: of the folder that the server names), and one of `BACKENDS`.

    Without a matcher, it is the first of xgrammar, guidance and table that follows the answer.
    """

    tokenizer: str | None = None
    matcher: str | None = None


DEFAULT_MATCHING = Matching()


def masks_of(
    requests: Sequence[Request], answers: Sequence[Answer] | None, tokenizer: str | None, matcher: str | None
) -> Masks:
    """Return where the tokens of answers stood, or why that is not recorded.

    answers: in the order of their requests; None: no pass was asked for its tokens. tokenizer: None: not known.
    """
    if answers is None:
        return _missing(requests, "there was no warm-up pass (--warmup)")
    if tokenizer is None:
        return _missing(requests, "the server names no folder of the model here (--tokenizer)")
    from molprof.profiler.models.load import load_target

    try:
        target = load_target(tokenizer)
    except MolprofError as problem:
        return _missing(requests, f"{problem} (--tokenizer)")
    replay = _AnswerReplay(target, _DEFAULT if matcher is None else (matcher,))
    each = [replay.masks(request, answer) for request, answer in zip(requests, answers, strict=True)]
    return Masks(", ".join(replay.engines), each)


def _missing(requests: Sequence[Request], reason: str) -> Masks:
    return Masks("", [AnswerMasks(request.line, 0, missing=reason) for request in requests])


class _AnswerReplay:
    """Follows answers with matchers, which are made once for each constraint."""

    def __init__(self, target: Any, names: Sequence[str]) -> None:
        self._target, self._names = target, names
        self._processors: dict[str, Any] = {}
        self._compiled: dict[tuple[str, Constraint], Any] = {}
        self.engines: dict[str, None] = {}  # those that followed an answer, with their versions

    def masks(self, request: Request, answer: Answer) -> AnswerMasks:
        """Return where the tokens of an answer stood."""
        try:
            return AnswerMasks(answer.line, answer.tokens, self._letters(request, answer))
        except (MolprofError, ValueError) as problem:
            return AnswerMasks(answer.line, answer.tokens, missing=str(problem))

    def _letters(self, request: Request, answer: Answer) -> str:
        from molprof.profiler.constraints.tags import format_of, token_letters

        target, tokens = self._target, self._tokens(answer)
        if request.constrained is None:
            return STOOD["free"] * len(tokens)
        if (known := enforced(request.constrained)) is None:
            raise RunError("molprof does not know what the server keeps the answer to")
        name, constraint = known[0], Constraint(*known[1:])
        form = format_of(constraint.text) if constraint.kind == "structural_tag" else None
        problems = []
        for matcher in (name,) if name else self._names:
            try:
                first, left = self._followed(matcher, constraint, tokens, answer)
            except (MolprofError, ValueError) as problem:
                problems.append(f"{matcher}: {problem}")
                continue
            processor = self._processors[matcher]
            self.engines[f"{matcher} {processor.parameters.get('version', '')}".strip()] = None
            letters = token_letters(tokens[first:], left, target.logits_width, target.table, form)
            return STOOD["free"] * first + letters
        raise RunError("; ".join(problems))

    def _tokens(self, answer: Answer) -> list[int]:
        """Return the tokens as the server sends them, else as the tokenizer cuts the text, if these are as many."""
        if answer.token_ids is not None:
            tokens = answer.token_ids
        else:
            ids = self._target.tokenizer(answer.text, add_special_tokens=False)["input_ids"]
            tokens = [*ids, *([] if answer.cut else [self._target.eos])]
        if len(tokens) != answer.tokens:
            what = "the tokenizer cuts its text into" if answer.token_ids is None else "the server sends"
            raise RunError(f"{what} {len(tokens)} tokens, the server counts {answer.tokens}")
        return tokens

    def _followed(
        self, name: str, constraint: Constraint, tokens: Sequence[int], answer: Answer
    ) -> tuple[int, list[int]]:
        """Return the tokens before the constraint, and how many tokens each mask left from there on.

        Raises MolprofError, and ValueError of tables.
        """
        processor = self._processor(name)
        if (name, constraint) not in self._compiled:
            self._compiled[name, constraint] = processor.compile(constraint)
        compiled, first = self._compiled[name, constraint], answer.reasoned
        last = first + (_MOST_ENDS if first else 0)
        while True:
            try:
                left = list(self._left(processor, compiled, tokens[first:], answer.cut))
            except RunError:
                if first == last:
                    raise
                first += 1
            else:
                return first, left

    def _processor(self, name: str) -> Any:
        if name not in self._processors:
            if name == TABLE:
                from molprof.profiler.constraints.constraint import ConstraintProcessor

                self._processors[name] = ConstraintProcessor(self._target, lambda rows: ())
            else:
                from molprof.profiler.constraints.engines import ENGINES

                self._processors[name] = ENGINES[_PACKAGES.get(name, name)](self._target, lambda rows: ())
        return self._processors[name]

    def _left(self, processor: Any, compiled: Any, tokens: Sequence[int], cut: bool) -> Iterator[int]:
        import torch

        batch = processor.begin([compiled], 0, self._target.device)
        ids, scores = torch.tensor([tokens], dtype=torch.int64), torch.zeros((1, self._target.logits_width))
        for index, token in enumerate(tokens):
            allowed = batch(ids[:, :index], scores.zero_())[0].isfinite()
            # A model may have other end tokens than its tokenizer.
            is_end = index == len(tokens) - 1 and not cut and bool(allowed[self._target.eos])
            if not (is_end or (token < len(allowed) and allowed[token])):
                text = self._target.table.of(token).decode(errors="replace")
                raise RunError(f"it forbids token {index + 1}, {text!r}, which the server wrote")
            yield int(allowed.sum())


def tokenizer_of(server: Server, given: str | None) -> str | None:
    """Return the tokenizer of the served model: the given one, else the folder that a server on this machine names.

    Raises UsageError where the given one is no preset, folder or name of the hub.
    """
    if given is None:
        root = server.roots.get(server.model, "")
        return root if server.is_local and Path(root).is_dir() else None
    from molprof.profiler.models.hub import only_local
    from molprof.profiler.models.tokenizers import VOCABULARIES

    if given not in VOCABULARIES:
        only_local("tokenizer", given)
    return given
