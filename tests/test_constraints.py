"""Token tables and their compilers allow exactly the texts that they should."""

from __future__ import annotations

import functools
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from constrained import WIDTHS, allowed, answers, choices, made, places, rows_of, target
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import ids

from molprof.common.errors import UsageError
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.table import TokenTable, compile_rows, spelled
from molprof.profiler.constraints.token_dfa import TokenDfa, TokenDfaBatch
from molprof.profiler.models.target import ProcessorTarget
from molprof.profiler.molecules.conformers import built_in_conformers
from molprof.profiler.molecules.kinds import check
from molprof.profiler.molecules.smiles import block, molecule

NUMBER = r"-?[0-9]{1,3}\.[0-9]{1,4}"
TABLES = [(tokenizer, processor) for tokenizer in WIDTHS for processor in ("grammar", "truncate")]


# Token tables


def batch_of(rows: list[Any], goal: ProcessorTarget) -> TokenDfaBatch:
    """A batch whose rows have these tables, one after the other."""
    dfa, first = compile_rows(rows, goal.eos, goal.logits_width)
    return TokenDfaBatch([dfa] * len(rows), goal, 3, first)


def left(dfa: TokenDfa, state: int) -> list[int]:
    """The tokens that a state allows."""
    return np.flatnonzero(dfa.allowed[dfa.masks[state]][dfa.classes]).tolist()


ALPHABET = "yesno maüb"
words = st.lists(st.text(ALPHABET, min_size=1, max_size=7), min_size=1, max_size=4)


@pytest.mark.parametrize("name", WIDTHS)
@settings(max_examples=8, deadline=None)
@given(st.lists(words, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_choices_allow_what_goes_on_with_one_of_them(name: str, rows: list[list[str]], rng: random.Random) -> None:
    """Token by token, compared with the texts' bytes; each row has choices of its own."""
    pieces, eos = target(name).table, target(name).eos
    batch = batch_of([[choices()(texts, pieces)] for texts in rows], target(name))
    written: list[list[int]] = [[] for _ in rows]
    for _ in range(4):
        for row, left in enumerate(allowed(batch, answers(*written), WIDTHS[name])):
            begun = b"".join(pieces.of(token) for token in written[row] if token != eos)
            rest = [text.encode()[len(begun) :] for text in rows[row] if text.encode().startswith(begun)]
            expected = {token for token in spellings(name) if any(text.startswith(pieces.of(token)) for text in rest)}
            ended = eos in written[row]
            assert left == ({eos} if ended else expected | ({eos} if b"" in rest else set()))
            written[row].append(rng.choice(sorted(left)))


@functools.cache
def spellings(name: str) -> list[int]:
    """Tokens that texts of the alphabet may have."""
    return target(name).table.made_of(ALPHABET.encode())


PARTS = st.lists(
    st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1, max_size=4), min_size=1, max_size=4
)  # of token paths; each part has tokens of its own


def simulated(rows: list[list[list[tuple[int, ...]]]]) -> tuple[TokenDfa, list[int], list[set[tuple[int, ...]]]]:
    tables = [[spelled(part) for part in parts] for parts in rows]
    texts: list[set[tuple[int, ...]]] = []
    for parts in rows:
        found: set[tuple[int, ...]] = {()}
        for part in parts:
            found = {text + path for text in found for path in part}
        texts.append({(*text, 99) for text in found})
    return (*compile_rows(tables, 99, 100), texts)


@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=3))
def test_tables_one_after_the_other_write_the_texts_of_each_in_their_order(parts: list[Any]) -> None:
    """Also paths of no tokens, and tables that allow the same token in unlike places."""
    rows = [
        [[tuple(3 * place + token for token in path) for path in part] for place, part in enumerate(row)]
        for row in parts
    ]
    dfa, begin, texts = simulated(rows)
    for first, expected in zip(begin, texts, strict=True):
        waiting: list[tuple[tuple[int, ...], int]] = [((), first)]
        found = set()
        while waiting:
            written, state = waiting.pop()
            tokens = left(dfa, state)
            assert len(tokens) == 100 - dfa.hidden[state]
            assert dfa.forced[state] == (tokens[0] if len(tokens) == 1 else -1)
            for token in tokens:
                after = dfa.after(state, token)
                if token == 99:
                    found.add((*written, token))
                    assert left(dfa, after) == [99]
                else:
                    waiting.append(((*written, token), after))
        assert found == expected
    for row, expected in zip(rows, texts, strict=True):
        assert sum(spelled(part).longest or 0 for part in row) + 1 == max(map(len, expected))


def test_a_text_of_any_length_and_one_that_may_be_read_in_two_ways() -> None:
    digits = TokenTable([{7: 0, 8: 0}], [0])
    assert digits.longest is None
    with pytest.raises(ValueError, match="a token both goes on with it and begins what follows"):
        compile_rows([[digits, spelled([(8, 9)])]], 0, 10)
    small = replace(target("llama"), logits_width=10, eos=0)
    batch, runs = (batch_of([[digits], [spelled([(8, 9)])], []], small) for _ in range(2))
    assert runs.forced(1, 0, None) == [8, 9, 0]
    assert (runs.forced(0, 0, None), runs.forced(2, 0, None)) == ([], [0])
    assert allowed(batch, answers([7], [8], [0]), 10) == [{0, 7, 8}, {9}, {0}]
    # Several tokens since the last call, and the padding of rows that ended.
    assert allowed(batch, answers([7, 8, 0, 5], [8, 9, 0, 5], [0, 5, 5, 5]), 10) == [{0}, {0}, {0}]
    assert batch.masked_logits == [7 + 9, 9 + 9, 9 + 9]


@pytest.mark.parametrize(("name", "processor"), [("llama", "grammar"), ("qwen", "vectorized")])
def test_a_row_goes_back_to_another_token(name: str, processor: str) -> None:
    """A state allows what the batch allows after the same tokens, whatever was drafted in between."""
    this, width, eos = made(name, processor), WIDTHS[name], target(name).eos
    rows, rng = rows_of(this, name, "C"), random.Random(2)
    batch, plain, written = this.start(rows), this.start(rows), list[int]()

    def left(position: int, chosen: int | None) -> set[int]:
        states = torch.tensor([batch.state(0, position, chosen)], dtype=torch.int32)
        return set(batch.allow(torch.zeros(1, width), states)[0].isfinite().nonzero().flatten().tolist())

    while eos not in written[-1:]:
        now = left(len(written), written[-1] if written else None)
        assert now == allowed(plain, answers(written), width)[0]
        if eos not in (draft := [rng.choice(sorted(now))]):
            left(len(written) + 2, rng.choice(sorted(left(len(written) + 1, draft[0]))))
        written.append(rng.choice(sorted(now)))


# Molecules as tables


def accepts(dfa: TokenDfa, state: int, tokens: list[int]) -> bool:
    for token in tokens:
        if not dfa.allowed[dfa.masks[state], dfa.classes[token]]:
            return False
        state = dfa.after(state, token)
    return True


def compiled(name: str, processor: str, smiles: list[str]) -> tuple[TokenDfa, list[int]]:
    this = made(name, processor)
    rows = [this.row(template) for template in rows_of(this, name, *smiles).templates]
    return compile_rows(rows, target(name).eos, WIDTHS[name])


def random_number(rng: random.Random) -> str:
    whole, decimals = rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 2, 3, 4, 4))
    digits = "".join(rng.choices("0123456789", k=whole + decimals))
    return rng.choice(("", "-")) + digits[:whole] + "." + digits[whole:]


# Shapes that the packaged molecules lack: ions, isotopes, two-digit rings, bonds before blocks.
SHAPES = ["[Na+].[Cl-]", "[O-][N+](=O)c1ccccc1", "[13CH4]", "C#N", "F/C=C/F", "[Fe+3]", "C%12CCCC%12", "[OH2+]C"]


@pytest.mark.parametrize(("name", "processor"), TABLES)
def test_conformers_are_accepted_as_the_tokenizer_cuts_them(name: str, processor: str) -> None:
    rng, eos = random.Random(5), target(name).eos
    texts = [
        (item.molecule, DEFAULT.answer_of(item.molecule.skeleton(list(map(block, item.positions)))))
        for item in built_in_conformers().conformers
    ]
    if processor == "grammar":  # every text of the form
        for item in map(molecule, SHAPES):
            blocks = [",".join(random_number(rng) for _ in range(3)) for _ in item.atoms]
            texts.append((item, DEFAULT.answer_of(item.skeleton(blocks))))
    dfa, first = compiled(name, processor, [item.smiles for item, _ in texts])
    for state, (_, text) in zip(first, texts, strict=True):
        assert accepts(dfa, state, [*ids(name, text), eos]), text
    digits = dfa.classes[target(name).table.made_of(b"0123456789")]
    assert len(set(digits.tolist())) < 20  # of LLaMA's 1,110 digit tokens none needs a class of its own


BLOCKS = (
    "0.0,0.0", "0.0,0.0,0.0,0.0", "0.0,0.0,", ",0.0,0.0", "0.0,0.0,0.0abra", "1234.0,0.0,0.0", "0.12345,0.0,0.0",
    "0,0.0,0.0", ".5,0.0,0.0", "-.5,0.0,0.0", "--1.0,0.0,0.0", "1.,0.0,0.0", "0.0,0.0,-", "", " 0.0,0.0,0.0",
    "1.0.0,0.0,0.0",
)  # fmt: skip


@pytest.mark.parametrize(("name", "processor"), TABLES)
def test_other_blocks_are_not(name: str, processor: str) -> None:
    (dfa, (first,)), item, eos = compiled(name, processor, ["CO"]), molecule("CO"), target(name).eos
    for text in BLOCKS:
        for blocks in ([text, "0.0,0.0,0.0"], ["0.0,0.0,0.0", text]):
            assert not accepts(dfa, first, [*ids(name, DEFAULT.answer_of(item.skeleton(blocks))), eos]), text


@pytest.mark.parametrize(("name", "processor"), TABLES)
def test_every_way_through_is_a_valid_conformer(name: str, processor: str) -> None:
    """With `grammar` it is cut as the tokenizer cuts it."""
    rng, smiles, eos = random.Random(3), [*SHAPES, "c1ccccc1O", "C[C@@H](N)C(=O)O"], target(name).eos
    (dfa, first), pieces = compiled(name, processor, smiles), target(name).table
    for state, text in zip(first, smiles, strict=True):
        path = [0][:0]
        while not path or path[-1] != eos:
            # By length first: of LLaMA's 1,110 digit tokens most have three digits.
            groups: dict[int, list[int]] = {}
            for token in left(dfa, state):
                groups.setdefault(len(pieces.of(token)), []).append(token)
            path.append(rng.choice(rng.choice(list(groups.values()))))
            state = dfa.after(state, path[-1])
        written = pieces.join(path[:-1])
        assert check(written, molecule(text)) is None
        assert all(re.fullmatch(f"{NUMBER},{NUMBER},{NUMBER}", inside) for inside in re.findall("<([^<>]*)>", written))
        assert processor != "grammar" or ids(name, written) == path[:-1]


@pytest.mark.parametrize(("name", "processor"), TABLES)
def test_forced_runs_and_choices_write_what_single_steps_write(name: str, processor: str) -> None:
    this, width, eos = made(name, processor), WIDTHS[name], target(name).eos
    runs, steps = (this.start(rows_of(this, name, "C", "CC(=O)[O-]")) for _ in range(2))
    written: list[list[int]] = [list(runs.forced(row, 0, None)) for row in range(2)]
    noise = torch.randn(2, width + 400, generator=torch.Generator().manual_seed(8))
    while open_rows := [row for row, tokens in enumerate(written) if tokens[-1] != eos]:
        scores = torch.stack([noise[row, len(written[row]) :][:width] for row in open_rows])
        chosen = runs.mask(scores, places(open_rows, [len(written[row]) for row in open_rows])).argmax(-1).tolist()
        for row, token in zip(open_rows, chosen, strict=True):
            written[row] += [token, *runs.forced(row, len(written[row]) + 1, token)]
    answer = answers([], [])
    for position in range(max(map(len, written))):
        out = steps(answer, noise[:, position : position + width].contiguous())
        answer = torch.cat((answer, out.argmax(-1, keepdim=True)), dim=1)
    assert [row[: len(tokens)] for row, tokens in zip(answer[:, 3:].tolist(), written, strict=True)] == written
    # Forced tokens mask nothing: nothing is chosen there.
    assert 0 < sum(runs.masked_logits) < sum(steps.masked_logits)


@pytest.mark.parametrize("processor", ["grammar", "truncate"])
def test_a_vocabulary_that_joins_digits_and_marks_is_refused(processor: str) -> None:
    pieces = list(target("llama").table.pieces)
    pieces[500] = b"1."
    joined = replace(target("llama"), table=replace(target("llama").table, pieces=tuple(pieces)))
    with pytest.raises(UsageError, match=r"its token b'1\.' joins them"):
        make_processor(processor, joined)
