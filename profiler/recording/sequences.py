"""Tokens of each sequence by step, written by calls of `generate` and by a program's own loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from molprof.common.manifest import SequenceRun
from molprof.profiler.models.target import TokenBytes
from molprof.profiler.recording.marks import GenerateCall, config_value


@dataclass(frozen=True)
class DecodedStep:
    """One step: the tokens that sequences got in it, by the number of the sequence."""

    tokens: Mapping[int, Sequence[int]]
    rows: int  # that it computed
    batch: int | None = None  # the sequences that it belongs to ran together, from their first step to their last


@dataclass
class _TokenSequence:
    batch: int
    row: int
    tokens: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # by step of its batch, until its last token


@dataclass(frozen=True)
class Generated:
    """The sequences of steps, as a manifest holds them."""

    sequences: list[SequenceRun]
    texts: list[list[str]]  # of each token
    rows_per_step: list[list[int]]  # by batch


def generated(
    steps: Iterable[DecodedStep], prompts: Mapping[int, Sequence[int]], table: TokenBytes | None, ends: frozenset[int]
) -> Generated:
    """Return the sequences of steps in their order.

    Steps without a batch are one batch, which sequences join and leave.

    Args:
        prompts: tokens by sequence.
        table: the vocabulary; without it a token's text is its id, and an answer has none.
        ends: ids that end a sequence.
    """
    sequences: dict[int, _TokenSequence] = {}
    rows: list[list[int]] = []
    for step in steps:
        batch = step.batch or 0
        rows += [[] for _ in range(batch + 1 - len(rows))]
        for number, tokens in step.tokens.items():
            if number not in sequences:
                sequences[number] = _TokenSequence(batch, sum(other.batch == batch for other in sequences.values()))
            sequence = sequences[number]
            sequence.counts += [0] * (len(rows[batch]) - len(sequence.counts)) + [len(tokens)]
            sequence.tokens += tokens
        rows[batch].append(step.rows)
    pieces = table or TokenBytes((), frozenset(), 0)
    runs = []
    for number, sequence in sorted(sequences.items()):
        prompt = prompts.get(number, ())
        ids: dict[str, Any] = {"sequence": number, "batch": sequence.batch, "row": sequence.row}
        counts = None if set(sequence.counts) <= {1} else sequence.counts
        runs.append(sequence_run(pieces.join(prompt), len(prompt), sequence.tokens, pieces, ends, counts, **ids))
    texts = [[table.join([token]) if table else str(token) for token in run.token_ids] for run in runs]
    return Generated(runs, texts, rows)


def sequence_run(
    prompt: str,
    prompt_tokens: int,
    tokens: Sequence[int],
    table: TokenBytes,
    ends: frozenset[int],
    step_tokens: Sequence[int] | None,
    **ids: Any,
) -> SequenceRun:
    """Return a sequence of any program: all tokens but the end token are free. `ids`: its number, batch and row."""
    ended = bool(tokens) and tokens[-1] in ends
    return SequenceRun(
        **ids,
        smiles=None,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        token_ids=list(tokens),
        kinds="f" * (len(tokens) - ended) + "e" * ended,
        blocks=[-1] * len(tokens),
        text=table.join(tokens[: len(tokens) - ended]),
        cut_blocks=0,
        needed_per_block=[],
        step_tokens=None if step_tokens is None else list(step_tokens),
    )


@dataclass(frozen=True)
class WrittenBatch:
    """The sequences that a call of `generate` or a loop generated, numbered from 0."""

    steps: list[DecodedStep]
    prompts: list[list[int]]  # tokens by sequence, without padding
    ends: frozenset[int] = frozenset()  # ids that end a sequence
    processors: tuple[str, ...] = ()  # classes in the order of their calls
    own: tuple[int, ...] = ()  # indexes of those that the program gave
    constraining: int = 0  # the first ones, of the phase of processors; the others draw a token
    computed: int = 0  # the most rows of a step
    limit: int | None = None  # the most tokens that a sequence could get; None: not known

    def numbered(self, batch: int, first: int) -> list[DecodedStep]:
        """Return the steps, with sequences numbered from `first` on."""
        return [
            DecodedStep({first + row: tokens for row, tokens in step.tokens.items()}, step.rows, batch)
            for step in self.steps
        ]

    @property
    def constraining_names(self) -> list[str]:
        """Classes in the phase of processors, those of the program first."""
        indexes = sorted(range(self.constraining), key=lambda index: index not in self.own)
        return [self.processors[index] for index in indexes]

    @property
    def rows(self) -> int:
        """Number of its sequences."""
        return max([len(self.prompts), *(row + 1 for step in self.steps for row in step.tokens)])


def batch_of(call: GenerateCall) -> WrittenBatch:
    """Return the sequences of a finished call. Waits for its device."""
    ends = config_value(call, "eos_token_id")
    ids = frozenset[int](() if ends is None else torch.as_tensor(ends).flatten().tolist())
    limit, longest = (config_value(call, name) for name in ("max_new_tokens", "max_length"))
    if limit is None and longest is not None and call.width is not None:
        limit = longest - call.width
    rows = max(call.rows, default=0)
    return WrittenBatch(
        _steps(call, ids), _prompts(call), ids, call.processors, call.own, call.constraining, computed=rows, limit=limit
    )


def _steps(call: GenerateCall, ends: frozenset[int]) -> list[DecodedStep]:
    sequences, done = call.sequences, call.done
    input_ids = _given(call)
    if not isinstance(sequences, Tensor) or sequences.dim() != 2:  # of a loop of the caller's own: no tokens are known
        rows = 1 if input_ids is None else len(input_ids)
        return [DecodedStep({}, rows)] * call.steps
    width = call.width if call.width is not None else 0 if input_ids is None else input_ids.shape[1]
    ids, last, columns = sequences.cpu(), call.last, sequences.shape[1]
    counts = call.columns
    if len(counts) != call.steps:  # a loop that does not ask whether it is to stop
        per_step = columns - width == call.steps
        counts = [width + step + 1 if per_step else width for step in range(call.steps)]
        counts[-1], done, last = columns, [], None
    # A beam search reorders its rows, and a step that was made too early is taken back.
    kept = last is not None and len(last) == len(ids) and torch.equal(last[:, :columns].cpu(), ids)
    over = torch.stack(done).cpu().T.tolist() if kept else []
    stops = []
    for row, tokens in enumerate(ids.tolist()):
        if kept:
            ended = (count for count, ends_here in zip(counts, over[row], strict=True) if ends_here)
        else:
            ended = (index + 1 for index in range(width, columns) if tokens[index] in ends)
        stops.append(min(next(ended, columns), columns))
    steps, begin = [], width
    for count in counts:
        parts = {row: tokens[begin : min(count, stops[row])] for row, tokens in enumerate(ids.tolist())}
        # A beam search computes other rows than it returns: each sequence counts as one.
        steps.append(DecodedStep({row: part for row, part in parts.items() if part}, len(ids)))
        begin = count
    return steps


def _given(call: GenerateCall) -> Tensor | None:
    """Return the input ids of the call; None: embeddings, or nothing."""
    ids = next((item for name in ("inputs", "input_ids") if (item := call.given.get(name)) is not None), None)
    return ids if isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point() else None


def _prompts(call: GenerateCall) -> list[list[int]]:
    input_ids = _given(call)
    rows = len(call.sequences) if isinstance(call.sequences, Tensor) else 0 if input_ids is None else len(input_ids)
    if input_ids is None:
        return [[] for _ in range(rows)]
    mask = call.given.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None or mask.shape != input_ids.shape else mask
    prompts = [ids[seen.bool()].tolist() for ids, seen in zip(input_ids, mask, strict=True)]
    return [prompts[row * len(prompts) // rows] for row in range(rows)]  # several answers to a prompt stand together
