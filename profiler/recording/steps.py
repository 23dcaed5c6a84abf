"""What the steps of any program generated, by sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from molprof.common.manifest import SequenceRun
from molprof.profiler.models.target import TokenBytes
from molprof.profiler.molecules.kinds import plain
from molprof.profiler.recording.generate import Call


@dataclass(frozen=True)
class Step:
    """One step: the tokens that sequences got in it, by the number of the sequence."""

    tokens: Mapping[int, Sequence[int]]
    rows: int  # that it computed
    batch: int | None = None  # the sequences that it belongs to ran together, from their first step to their last


@dataclass
class _Sequence:
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
    steps: Iterable[Step], prompts: Mapping[int, Sequence[int]], table: TokenBytes | None, ends: frozenset[int]
) -> Generated:
    """The sequences of steps in their order; steps without a batch are one batch, which sequences join and leave.

    Args:
        prompts: tokens by sequence.
        table: the vocabulary; without it a token's text is its id, and an answer has none.
        ends: ids that end a sequence.
    """
    found: dict[int, _Sequence] = {}
    rows: list[list[int]] = []
    for step in steps:
        batch = step.batch or 0
        rows += [[] for _ in range(batch + 1 - len(rows))]
        for number, tokens in step.tokens.items():
            if number not in found:
                found[number] = _Sequence(batch, sum(other.batch == batch for other in found.values()))
            sequence = found[number]
            sequence.counts += [0] * (len(rows[batch]) - len(sequence.counts)) + [len(tokens)]
            sequence.tokens += tokens
        rows[batch].append(step.rows)
    known = table or TokenBytes((), frozenset(), 0)
    runs = []
    for number, sequence in sorted(found.items()):
        prompt, answer = prompts.get(number, ()), plain(sequence.tokens, known, ends)
        runs.append(
            SequenceRun(
                sequence=number,
                batch=sequence.batch,
                row=sequence.row,
                smiles=None,
                prompt=known.join(prompt),
                prompt_tokens=len(prompt),
                token_ids=sequence.tokens,
                kinds=answer.kinds,
                blocks=answer.blocks,
                text=answer.text,
                step_tokens=None if set(sequence.counts) <= {1} else sequence.counts,
            )
        )
    texts = [[table.join([token]) if table else str(token) for token in run.token_ids] for run in runs]
    return Generated(runs, texts, rows)


def steps_of(call: Call, batch: int, first: int, ends: frozenset[int]) -> list[Step]:
    """The steps of a call of `generate`, whose rows are the sequences from number `first` on."""
    assert call.sequences is not None
    width = call.width or 0
    sequences, last = call.sequences.cpu(), call.last
    columns = sequences.shape[1]
    # A beam search reorders its rows, and a step that was made too early is taken back.
    kept = last is not None and len(last) == len(sequences) and torch.equal(last[:, :columns].cpu(), sequences)
    done = torch.stack(call.done).cpu().T.tolist() if kept else []
    stops = []
    for row, tokens in enumerate(sequences.tolist()):
        if kept:
            ended = (count for count, over in zip(call.columns, done[row], strict=True) if over)
        else:
            ended = (place + 1 for place in range(width, columns) if tokens[place] in ends)
        stops.append(min(next(ended, columns), columns))
    steps, begin = [], width
    for count, over in zip(call.columns, call.done, strict=True):
        parts = {first + row: tokens[begin : min(count, stops[row])] for row, tokens in enumerate(sequences.tolist())}
        steps.append(Step({number: part for number, part in parts.items() if part}, len(over), batch))
        begin = count
    return steps
