"""`grammar` and `truncate`: what they accept, what they leave of the model's probabilities, what a step costs."""

from __future__ import annotations

import functools
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_vectorized import Operators
from tiny import ids, loaded, table

from molprof.common.errors import UsageError
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.automaton_batch import AutomatonBatch, fused_step
from molprof.profiler.molecules.conformers import built_in_conformers
from molprof.profiler.molecules.kinds import check, classify
from molprof.profiler.molecules.prompts import read_prompts
from molprof.profiler.molecules.smiles import Molecule, molecule
from molprof.profiler.molecules.template import build_template
from training.corpus import Sample

PROMPT_WIDTH = 3
TOKENIZERS = ("qwen", "llama")
BOTH = [(tokenizer, processor) for tokenizer in TOKENIZERS for processor in ("grammar", "truncate")]
NUMBER = r"-?[0-9]{1,3}\.[0-9]{1,4}"


@functools.cache
def made(tokenizer: str, processor: str) -> Any:
    return make_processor(processor, loaded(tokenizer).target)


def start(tokenizer: str, processor: str, molecules: list[Molecule]) -> AutomatonBatch:
    this = made(tokenizer, processor)
    text = loaded(tokenizer).tokenizer
    return this.start([build_template(item, text, this.placeholder) for item in molecules], PROMPT_WIDTH)


def allowed(batch: AutomatonBatch, at: Sequence[int] | np.ndarray) -> set[int]:
    """Ids that the tables allow in a state."""
    return set(batch._tables.columns[np.isfinite(batch._tables.bias[at[1]])].tolist())


def accepts(tokenizer: str, batch: AutomatonBatch, row: int, text: str) -> bool:
    """Whether the tokenizer's own cut of a text, and the end token after it, is a way through a row's tables."""
    tables = batch._tables
    columns = tables.columns.tolist()
    at = tables.first[row]
    for token in [*ids(tokenizer, text), loaded(tokenizer).target.eos]:
        if token not in columns or not np.isfinite(tables.bias[at[1], columns.index(token)]):
            return False
        at = tables.moves[at[0], tables.classes[token]]
    return True


def random_number(rng: random.Random) -> str:
    whole, decimals = rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 2, 3, 4, 4))
    digits = [rng.choice("0123456789") for _ in range(whole + decimals)]
    return rng.choice(("", "-")) + "".join(digits[:whole]) + "." + "".join(digits[whole:])


def molecules() -> list[Molecule]:
    """The packaged molecules, and shapes that they lack: ions, isotopes, two-digit rings, bonds before blocks."""
    packaged = [prompt.molecule for prompt in read_prompts(None, 64).prompts if prompt.molecule is not None]
    others = ("[Na+].[Cl-]", "[O-][N+](=O)c1ccccc1", "[13CH4]", "C#N", "F/C=C/F", "[Fe+3]", "C%12CCCC%12", "[OH2+]C")
    return [*packaged, *(molecule(smiles) for smiles in others)]


@pytest.mark.parametrize(("tokenizer", "processor"), BOTH)
def test_real_conformers_are_accepted_as_the_tokenizer_cuts_them(tokenizer: str, processor: str) -> None:
    samples = [Sample(item.molecule, item.positions) for item in built_in_conformers().conformers]
    assert len(samples) >= 60
    batch = start(tokenizer, processor, [sample.molecule for sample in samples])
    for row, sample in enumerate(samples):
        assert accepts(tokenizer, batch, row, DEFAULT.answer_of(sample.conformer()))


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_every_text_of_the_form_is_accepted(tokenizer: str) -> None:
    rng, items = random.Random(5), molecules()
    batch = start(tokenizer, "grammar", items)
    for row, item in enumerate(items):
        for _ in range(4):
            blocks = [",".join(random_number(rng) for _ in range(3)) for _ in item.atoms]
            text = DEFAULT.answer_of(item.skeleton(blocks))
            assert accepts(tokenizer, batch, row, text), text


@pytest.mark.parametrize(("tokenizer", "processor"), BOTH)
@pytest.mark.parametrize(
    "block",
    [
        "0.0,0.0", "0.0,0.0,0.0,0.0", "0.0,0.0,", ",0.0,0.0", "0.0,0.0,0.0abra", "1234.0,0.0,0.0", "0.12345,0.0,0.0",
        "0,0.0,0.0", ".5,0.0,0.0", "-.5,0.0,0.0", "--1.0,0.0,0.0", "1.,0.0,0.0", "0.0,0.0,-", "", " 0.0,0.0,0.0",
        "1.0.0,0.0,0.0",
    ],
)  # fmt: skip
def test_other_blocks_are_not(tokenizer: str, processor: str, block: str) -> None:
    item = molecule("CO")
    batch = start(tokenizer, processor, [item])
    for blocks in ([block, "0.0,0.0,0.0"], ["0.0,0.0,0.0", block]):
        assert not accepts(tokenizer, batch, 0, DEFAULT.answer_of(item.skeleton(blocks)))


@pytest.mark.parametrize(("tokenizer", "processor"), BOTH)
def test_every_way_through_is_a_valid_conformer(tokenizer: str, processor: str) -> None:
    """Random walks: the text is well-formed and free of junk; with `grammar` it is cut as the tokenizer cuts it."""
    rng, items = random.Random(3), molecules()
    target = loaded(tokenizer).target
    batch = start(tokenizer, processor, items)

    @functools.cache
    def by_size(mask: int) -> list[list[int]]:
        """What a mask allows. By length first: of LLaMA's 1,110 digit tokens most have three digits."""
        groups: dict[int, list[int]] = {}
        for token in sorted(allowed(batch, (0, mask))):
            groups.setdefault(len(table(tokenizer).of(token)), []).append(token)
        return list(groups.values())

    for row, item in enumerate(items):
        at, path = batch._tables.first[row], []
        while True:
            token = rng.choice(rng.choice(by_size(int(at[1]))))
            if token == target.eos:
                break
            path.append(token)
            at = batch._tables.moves[at[0], batch._tables.classes[token]]
        this = made(tokenizer, processor)
        template = build_template(item, target.tokenizer, this.placeholder)
        assert len(path) + 1 <= this.longest(template)
        found = classify([*path, target.eos], target.table, frozenset({target.eos}))
        assert not set(found.kinds) & {"j", "l"}
        assert found.malformed_blocks == 0
        assert check(found.text, item) is None
        blocks = re.findall(r"<([^<>]*)>", found.text)
        assert all(re.fullmatch(rf"{NUMBER},{NUMBER},{NUMBER}", block) for block in blocks)
        if processor == "grammar":
            assert ids(tokenizer, found.text) == path


@pytest.mark.parametrize(("tokenizer", "processor"), BOTH)
def test_allowed_tokens_keep_the_models_probabilities_renormalized(tokenizer: str, processor: str) -> None:
    items = [molecule(smiles) for smiles in ("C", "CO", "[O-]C=O")]
    batch = start(tokenizer, processor, items)
    target = loaded(tokenizer).target
    generator = torch.Generator().manual_seed(2)
    answer = torch.zeros(3, PROMPT_WIDTH, dtype=torch.int64)
    at = batch._tables.first
    counted = np.zeros(3, dtype=np.int64)
    for _ in range(20):
        scores = torch.randn(3, target.logits_width, generator=generator)
        given = scores.clone()
        out = batch(answer, given)
        for row in range(3):
            keep = torch.tensor(sorted(allowed(batch, at[row])))
            assert torch.isfinite(out[row]).nonzero().flatten().tolist() == keep.tolist()
            assert torch.equal(out[row, keep], scores[row, keep])
            expected = scores[row, keep].double().softmax(-1)
            assert torch.allclose(out[row].double().softmax(-1)[keep], expected, rtol=1e-9, atol=0)
        counted += target.logits_width - torch.isfinite(out).sum(-1).numpy()
        chosen = out.softmax(-1).multinomial(1, generator=generator)
        answer = torch.cat((answer, chosen), dim=1)
        at = batch._tables.moves[at[:, 0], batch._tables.classes[chosen[:, 0].numpy()]]
    assert batch.masked_logits == counted.tolist()


@pytest.mark.parametrize(("tokenizer", "processor"), BOTH)
def test_a_finished_row_goes_on_with_the_end_token(tokenizer: str, processor: str) -> None:
    """Also where several tokens came since the last call, and after the padding of finished rows."""
    item = molecule("C")
    target = loaded(tokenizer).target
    batch = start(tokenizer, processor, [item])
    written = ids(tokenizer, DEFAULT.answer_of("[C]<-0.5,1.25,0.0>"))
    for padding in (0, 1, 5):
        answer = torch.tensor([[0] * PROMPT_WIDTH + written + [target.pad] * padding])
        out = batch(answer, torch.zeros(1, target.logits_width))
        assert torch.isfinite(out[0]).nonzero().flatten().tolist() == [target.eos]


@pytest.mark.parametrize(("tokenizer", "processor"), BOTH)
def test_a_step_is_six_operators_and_no_wait_for_any_batch(tokenizer: str, processor: str) -> None:
    target = loaded(tokenizer).target
    for rows in (1, 8):
        batch = start(tokenizer, processor, [molecule("CO")] * rows)
        answer = torch.zeros(rows, PROMPT_WIDTH, dtype=torch.int64)
        for position in range(12):
            scores = torch.zeros(rows, target.logits_width)
            with Operators() as operators:
                out = batch(answer, scores)
            assert "_local_scalar_dense" not in operators.names
            assert len(operators.names) == (4 if position == 0 else 6), operators.names
            answer = torch.cat((answer, out.argmax(-1, keepdim=True)), dim=1)


def test_states_and_masks_stay_small() -> None:
    """Of LLaMA's 1,110 digit tokens none needs a class of its own."""
    batch = start("llama", "grammar", molecules()[:32])
    assert batch._tables.moves.shape[1] < 20
    assert made("llama", "grammar").parameters["coordinate_states"] == 15
    assert made("qwen", "grammar").parameters["coordinate_states"] == 27


@pytest.mark.parametrize("processor", ["grammar", "truncate"])
def test_a_vocabulary_that_joins_digits_and_marks_is_refused(processor: str) -> None:
    from dataclasses import replace

    target = loaded("llama").target
    pieces = list(target.table.pieces)
    pieces[500] = b"1."
    with pytest.raises(UsageError, match=r"its token b'1\.' joins them"):
        make_processor(processor, replace(target, table=replace(target.table, pieces=tuple(pieces))))


@pytest.mark.parametrize(("tokenizer", "processor"), BOTH)
def test_forced_runs_and_choices_write_what_single_steps_write(tokenizer: str, processor: str) -> None:
    items = [molecule(smiles) for smiles in ("C", "CC(=O)[O-]")]
    target = loaded(tokenizer).target
    width = target.logits_width
    runs, steps = (start(tokenizer, processor, items) for _ in range(2))
    written: list[list[int]] = [list(runs.forced(row, 0, None)) for row in range(len(items))]
    noise = torch.randn(2, 200, width, generator=torch.Generator().manual_seed(8))
    while open_rows := [row for row, tokens in enumerate(written) if tokens[-1] != target.eos]:
        scores = torch.stack([noise[row, len(written[row])] for row in open_rows])
        chosen = runs.mask(scores, SimpleNamespace(rows=tuple(open_rows))).argmax(-1).tolist()
        for row, token in zip(open_rows, chosen, strict=True):
            written[row].append(token)
            written[row].extend(runs.forced(row, len(written[row]), token))
    answer = torch.zeros(2, PROMPT_WIDTH, dtype=torch.int64)
    for position in range(max(map(len, written))):
        out = steps(answer, noise[:, position].contiguous())
        answer = torch.cat((answer, out.argmax(-1, keepdim=True)), dim=1)
    for row, tokens in enumerate(written):
        assert answer[row, PROMPT_WIDTH : PROMPT_WIDTH + len(tokens)].tolist() == tokens
    single = sum(steps.masked_logits)
    assert 0 < sum(runs.masked_logits) < single  # forced tokens mask nothing: nothing is chosen there


def test_the_fused_kernel_writes_what_the_six_operators_write() -> None:
    """Run by Triton's interpreter, which needs no GPU, in a process of its own: it reads its setting when imported."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([*sys.path])}
    subprocess.run([sys.executable, __file__], check=True, env=environment, timeout=600)


def compare_fused() -> None:
    items = [molecule("CO"), molecule("c1ccccc1"), molecule("C")]
    plain, fused = (start("llama", "grammar", items) for _ in range(2))
    fused._step = fused_step(torch.device("cuda"))
    assert fused._step is not None
    generator = torch.Generator().manual_seed(4)
    answer = torch.zeros(3, PROMPT_WIDTH, dtype=torch.int64)
    for step in range(36):  # the last row, of 31 tokens at most, ends
        scores = torch.randn(3, loaded("llama").target.logits_width, generator=generator)
        out = plain(answer, scores)
        if step % 3 == 0 or step > 27:  # a call may find several new tokens
            assert torch.equal(fused(answer, scores), out)
            assert torch.equal(fused._at, plain._at)
        answer = torch.cat((answer, out.argmax(-1, keepdim=True)), dim=1)


if __name__ == "__main__":
    compare_fused()
