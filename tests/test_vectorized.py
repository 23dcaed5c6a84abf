"""`vectorized` returns what `generic` and `qwen` return, with a fixed number of operators for any batch."""

from __future__ import annotations

import pytest
import torch
from tiny import loaded
from torch.utils._python_dispatch import TorchDispatchMode

from molprof.profiler.constraints.base import BatchProcessor, ForcedRuns, Places, Processor
from molprof.profiler.constraints.rows import Generic, Qwen
from molprof.profiler.constraints.vectorized import Vectorized
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.molecules.template import Template, build_template

PROMPT_WIDTH = 5
ROWS = ("C", "c1ccccc1", "C[C@@H](N)C(=O)O", "[Na+].[Cl-]")
COMBINATIONS = [("qwen", "qwen"), ("qwen", "generic"), ("llama", "generic"), ("llama", "qwen")]
LIKE = {"generic": Generic, "qwen": Qwen}


class Operators(TorchDispatchMode):
    """Names of the operators that ran, views left out: each of the others is a kernel on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if not (func.is_view or name.startswith(("view", "slice", "select", "as_strided", "_unsafe_view", "alias"))):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def templates(made: Processor, tokenizer: str) -> list[Template]:
    return [build_template(molecule(smiles), loaded(tokenizer).tokenizer, made.placeholder) for smiles in ROWS]


def pair(tokenizer: str, masks: str) -> tuple[BatchProcessor, BatchProcessor, int]:
    target = loaded(tokenizer).target
    rows = templates(LIKE[masks](target), tokenizer)
    length = max(len(template.ids) for template in rows)
    return (
        LIKE[masks](target).start(rows, PROMPT_WIDTH),
        Vectorized(target, masks).start(rows, PROMPT_WIDTH),
        length,
    )


@pytest.mark.parametrize(("tokenizer", "masks"), COMBINATIONS)
def test_scores_are_the_row_loops_bit_by_bit(tokenizer: str, masks: str) -> None:
    plain, vectorized, length = pair(tokenizer, masks)
    width = loaded(tokenizer).target.logits_width
    noise = torch.randn(len(ROWS), width + length + 4, generator=torch.Generator().manual_seed(0))
    for position in range(length + 4):
        ids = torch.zeros(len(ROWS), PROMPT_WIDTH + position, dtype=torch.int64)
        scores = noise[:, position : position + width]
        expected = plain(ids, scores.clone(memory_format=torch.contiguous_format))
        got = vectorized(ids, scores.clone(memory_format=torch.contiguous_format))
        assert torch.equal(got.view(torch.int32), expected.view(torch.int32)), position
        assert vectorized.masked_logits == plain.masked_logits


@pytest.mark.parametrize(("tokenizer", "masks"), COMBINATIONS)
def test_positions_may_be_left_out(tokenizer: str, masks: str) -> None:
    plain, vectorized, length = pair(tokenizer, masks)
    width = loaded(tokenizer).target.logits_width
    scores = torch.randn(len(ROWS), width, generator=torch.Generator().manual_seed(1))
    for position in (0, 4, 5, 9, 30, 31, length, length + 7):
        ids = torch.zeros(len(ROWS), PROMPT_WIDTH + position, dtype=torch.int64)
        assert torch.equal(vectorized(ids, scores.clone()), plain(ids, scores.clone())), position


def rows_at(rows: tuple[int, ...], positions: tuple[int, ...]) -> Places:
    return Places(rows, positions, torch.tensor(rows), torch.tensor(positions))


@pytest.mark.parametrize(("tokenizer", "masks"), COMBINATIONS)
def test_rows_at_unlike_positions_are_masked_as_the_row_loop_does(tokenizer: str, masks: str) -> None:
    plain, vectorized, length = pair(tokenizer, masks)
    assert isinstance(vectorized, ForcedRuns)
    assert isinstance(plain, ForcedRuns)
    assert vectorized.reads_tokens is False
    width = loaded(tokenizer).target.logits_width
    noise = torch.randn(len(ROWS), width, generator=torch.Generator().manual_seed(2))
    ends = [len(template.ids) for template in templates(LIKE[masks](loaded(tokenizer).target), tokenizer)]
    for start in range(0, length, 3):
        rows = (2, 0, 3) if start % 6 else (0, 1, 2, 3)
        # A row's last choice is for the position after its end token, as long as another row is not done.
        places = rows_at(rows, tuple((start * (row + 1)) % (ends[row] + 2) for row in rows))
        expected, got = (batch.mask(noise[list(rows)], places) for batch in (plain, vectorized))
        assert torch.equal(got.isfinite(), expected.isfinite())
        assert torch.equal(got.argmax(-1), expected.argmax(-1))
        free = expected.isfinite().sum(-1) > 1
        assert torch.equal(got[free], expected[free])
        assert vectorized.masked_logits == plain.masked_logits
    for row, end in enumerate(ends):
        for position in range(end + 2):
            assert vectorized.forced(row, position, None) == plain.forced(row, position, None)


@pytest.mark.parametrize(("tokenizer", "masks"), [("qwen", "qwen"), ("llama", "generic")])
def test_rows_at_unlike_positions_take_three_operators(tokenizer: str, masks: str) -> None:
    target = loaded(tokenizer).target
    made = Vectorized(target, masks)
    for copies in (1, 3):
        batch = made.start(templates(made, tokenizer) * copies, PROMPT_WIDTH)
        assert isinstance(batch, ForcedRuns)
        count = len(ROWS) * copies
        places = rows_at(tuple(range(count)), tuple(row % 15 for row in range(count)))
        scores = torch.zeros(count, target.logits_width)
        with Operators() as operators:
            batch.mask(scores, places)
        assert operators.names == ["index", "index", "masked_fill_"]


@pytest.mark.parametrize(("tokenizer", "masks", "most"), [("qwen", "qwen", 2), ("llama", "generic", 3)])
def test_operators_per_step_do_not_grow_with_the_batch(tokenizer: str, masks: str, most: int) -> None:
    target = loaded(tokenizer).target
    made = Vectorized(target, masks)
    for copies in (1, 3):
        batch = made.start(templates(made, tokenizer) * copies, PROMPT_WIDTH)
        counted = set()
        for position in range(60):
            ids = torch.zeros(len(ROWS) * copies, PROMPT_WIDTH + position, dtype=torch.int64)
            scores = torch.zeros(len(ROWS) * copies, target.logits_width)
            with Operators() as operators:
                batch(ids, scores)
            assert "_local_scalar_dense" not in operators.names  # a tensor's value read by the host
            counted.add(len(operators.names))
        assert max(counted) == most


def test_masks_default_to_what_lp_takes() -> None:
    assert Vectorized(loaded("qwen").target).parameters["masks"] == "qwen"
    assert Vectorized(loaded("llama").target).parameters["masks"] == "generic"
    assert Vectorized(loaded("qwen").target).placeholder == Qwen.placeholder
