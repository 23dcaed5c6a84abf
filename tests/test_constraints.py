"""Token tables and their compilers, and the processors of molprof: what may follow, what is kept, what a step costs."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import ids, table, tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

from molprof.common.errors import MissingExtraError, RunError, UsageError
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.base import BatchProcessor, ForcedRuns, Places, Processor, Rows
from molprof.profiler.constraints.engines import LLGuidance, XGrammar
from molprof.profiler.constraints.molecules import grammar_text
from molprof.profiler.constraints.rows import Generic, Qwen
from molprof.profiler.constraints.table import Compiled, TableBatch, TokenTable, compile_rows, spelled
from molprof.profiler.constraints.vectorized import Vectorized
from molprof.profiler.models.target import Target
from molprof.profiler.molecules.conformers import built_in_conformers
from molprof.profiler.molecules.kinds import check
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.smiles import block, molecule
from molprof.profiler.molecules.template import build_template

WIDTHS = {"qwen": 151_936, "llama": 128_256}
NUMBER = r"-?[0-9]{1,3}\.[0-9]{1,4}"
TABLES = [(tokenizer, processor) for tokenizer in WIDTHS for processor in ("grammar", "truncate")]
ENGINES = {"xgrammar": XGrammar, "llguidance": LLGuidance}


@functools.cache
def target(name: str) -> Target:
    text = tokenizer(name)
    return Target(text, table(name), WIDTHS[name], text.eos_token_id, text.pad_token_id, torch.device("cpu"))


@functools.cache
def made(name: str, processor: str) -> Any:
    if processor in ENGINES:
        pytest.importorskip(processor)
    return make_processor(processor, target(name))


def rows_of(this: Any, name: str, *smiles: str) -> Rows:
    templates = [build_template(molecule(text), tokenizer(name), this.placeholder) for text in smiles]
    return Rows([Prompt(1, "", text, molecule(text)) for text in smiles], 3, templates)


def answers(*rows: list[int]) -> torch.Tensor:
    return torch.tensor([[0, 0, 0, *row] for row in rows])


def allowed(batch: BatchProcessor, answer: torch.Tensor, width: int) -> list[set[int]]:
    out = batch(answer, torch.zeros(len(answer), width))
    return [set(row.isfinite().nonzero().flatten().tolist()) for row in out]


# What C[NH3+] begins with after its tag along fixed noise, and a digest of all masks and allowed scores.
WALKS: list[tuple[str, str, str, str]] = [
    ("qwen", "generic", "[C]< Beauty钞_chai", "8edbbf0b2016"),
    ("qwen", "qwen", "[C]<-.98,-65432102.,-,.-987>[NH3+]<109.-,7,--.7-.54,-219876>", "1e8863985eaf"),
    ("qwen", "vectorized", "[C]<-.98,-65432102.,-,.-987>[NH3+]<109.-,7,--.7-.54,-219876>", "1e8863985eaf"),
    ("qwen", "placeholder", "[C]<-.98,-65432102.,-,.-9876>[NH3+]<09.-,7,--.7-.54,-21987654>", "1407a371732a"),
    ("qwen", "truncate", "[C]<398.6543,-102.0,329.7654>[NH3+]<898.9876,432.9876,-432.0>", "7cf5b072a8f3"),
    ("qwen", "grammar", "[C]<398.6543,-102.0,329.7654>[NH3+]<898.9876,432.9876,-432.0>", "bb64268ec146"),
    ("qwen", "xgrammar", "[C]<987.5432,-02.0,329.7654>[NH3+]<879.7654,-219.7654,-210.10>", "f0d706dd7b79"),
    ("qwen", "llguidance", "[C]<398.6543,-102.0,329.7654>[NH3+]<898.9876,432.9876,-432.0>", "16bee28a8897"),
    ("llama", "generic", "[C]< jeden:g diff", "ff7128b4e7ec"),
    ("llama", "qwen", "[C]<2101.9-.7654,-21>[NH3+]<65432106.-,210>", "1b847670b232"),
    ("llama", "vectorized", "[C]< jeden:g diff", "ff7128b4e7ec"),
    ("llama", "placeholder", "[C]< jeden:g diff", "5321e20fc419"),
    ("llama", "truncate", "[C]<957.1621,-411.2916,-962.5151>[NH3+]<580.1653,-709.2735,855.3540>", "70713b711bee"),
    ("llama", "grammar", "[C]<957.1621,-411.2916,-962.5151>[NH3+]<580.1653,-709.2735,855.3540>", "5a502aa306e1"),
    ("llama", "xgrammar", "[C]<-060.5589,908.3711,772.7710>[NH3+]<790.7090,-840.8552,-067.4017>", "7b23bebe4604"),
    ("llama", "llguidance", "[C]<-060.5589,908.3711,772.7710>[NH3+]<165.8511,-273.2074,354.7978>", "0b6557bd81c3"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "processor", "text", "digest"), WALKS, ids=["-".join(row[:2]) for row in WALKS])
def test_texts_and_masks(name: str, processor: str, text: str, digest: str) -> None:
    this = made(name, processor)
    batch = this.start(rows_of(this, name, "C", "C[NH3+]"))
    noise = torch.randn(2, WIDTHS[name] + 400, generator=torch.Generator().manual_seed(7))
    answer, masks, counted = answers([], []), hashlib.sha256(), np.zeros(2, dtype=np.int64)
    while not (answer[:, 3:] == target(name).eos).any(1).all():
        position = answer.shape[1] - 3
        out = batch(answer, noise[:, position : position + WIDTHS[name]].contiguous())
        left = out.isfinite()
        masks.update(left.numpy().tobytes())
        masks.update(out[left & (left.sum(-1, keepdim=True) > 1)].numpy().tobytes())
        counted += (~left).sum(-1).numpy()
        answer = torch.cat((answer, out.argmax(-1, keepdim=True)), dim=1)
    row = answer[1, 3:].tolist()
    assert target(name).table.join(row).startswith(f"[CONFORMER]{text}")
    assert masks.hexdigest()[:12] == digest
    if processor in ENGINES:
        assert this.parameters["compiled"] % 2 == 0 < this.parameters["compile_ns_per_molecule"]
    else:
        assert batch.masked_logits == counted.tolist()
    if (longest := getattr(this, "longest", None)) is not None:
        assert row.index(target(name).eos) < longest(rows_of(this, name, "C[NH3+]").templates[0])


# Token tables


@functools.cache
def choices() -> Any:
    """The compiler of docs/contributing.md."""
    page = (Path(__file__).parent.parent / "docs" / "contributing.md").read_text()
    (code,) = re.findall(r"```python\n(\"\"\"choices\.py:.*?)```", page, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code, scope)
    return scope["choices"]


ALPHABET = "yesno maüb"
words = st.lists(st.text(ALPHABET, min_size=1, max_size=7), min_size=1, max_size=4)


@pytest.mark.parametrize("name", WIDTHS)
@settings(max_examples=15, deadline=None)
@given(st.lists(words, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_choices_allow_what_goes_on_with_one_of_them(name: str, rows: list[list[str]], rng: random.Random) -> None:
    """Token by token, compared with the texts' bytes; each row has choices of its own."""
    pieces, eos = target(name).table, target(name).eos
    batch = TableBatch([[choices()(texts, pieces)] for texts in rows], target(name), 3)
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


def simulated(rows: list[list[list[tuple[int, ...]]]]) -> tuple[Compiled, list[set[tuple[int, ...]]]]:
    tables = [[spelled(part) for part in parts] for parts in rows]
    texts: list[set[tuple[int, ...]]] = []
    for parts in rows:
        found: set[tuple[int, ...]] = {()}
        for part in parts:
            found = {text + path for text in found for path in part}
        texts.append({(*text, 99) for text in found})
    return compile_rows(tables, 99, 100), texts


@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=3))
def test_tables_one_after_the_other_write_the_texts_of_each_in_their_order(parts: list[Any]) -> None:
    """Also paths of no tokens, and tables that allow the same token in unlike places."""
    rows = [
        [[tuple(3 * place + token for token in path) for path in part] for place, part in enumerate(row)]
        for row in parts
    ]
    tables, texts = simulated(rows)
    for first, expected in zip(tables.first, texts, strict=True):
        waiting: list[tuple[tuple[int, ...], Any]] = [((), first)]
        found = set()
        while waiting:
            written, at = waiting.pop()
            left = tables.columns[np.isfinite(tables.bias[at[1]])].tolist()
            assert len(left) == tables.counts[at[1]]
            for token in left:
                after = tables.moves[at[0], tables.classes[token]]
                if token == 99:
                    found.add((*written, token))
                    assert tables.columns[np.isfinite(tables.bias[after[1]])].tolist() == [99]
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
    batch = TableBatch([[digits], [spelled([(8, 9)])], []], small, 3)
    assert batch.forced(1, 0, None) == [8, 9, 0]
    assert (batch.forced(0, 0, None), batch.forced(2, 0, None)) == ([], [0])
    assert allowed(batch, answers([7], [8], [0]), 10) == [{0, 7, 8}, {9}, {0}]
    # Several tokens since the last call, and the padding of rows that ended.
    assert allowed(batch, answers([7, 8, 0, 5], [8, 9, 0, 5], [0, 5, 5, 5]), 10) == [{0}, {0}, {0}]
    assert batch.masked_logits == [7 + 9, 9 + 9, 9 + 9]


# Molecules as tables


def accepts(tables: Compiled, row: int, tokens: list[int]) -> bool:
    at = tables.first[row]
    for token in tokens:
        if token not in tables.columns[np.isfinite(tables.bias[at[1]])]:
            return False
        at = tables.moves[at[0], tables.classes[token]]
    return True


def compiled(name: str, processor: str, smiles: list[str]) -> Compiled:
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
    tables = compiled(name, processor, [item.smiles for item, _ in texts])
    for row, (_, text) in enumerate(texts):
        assert accepts(tables, row, [*ids(name, text), eos]), text
    assert tables.moves.shape[1] < 20  # of LLaMA's 1,110 digit tokens none needs a class of its own


BLOCKS = (
    "0.0,0.0", "0.0,0.0,0.0,0.0", "0.0,0.0,", ",0.0,0.0", "0.0,0.0,0.0abra", "1234.0,0.0,0.0", "0.12345,0.0,0.0",
    "0,0.0,0.0", ".5,0.0,0.0", "-.5,0.0,0.0", "--1.0,0.0,0.0", "1.,0.0,0.0", "0.0,0.0,-", "", " 0.0,0.0,0.0",
    "1.0.0,0.0,0.0",
)  # fmt: skip


@pytest.mark.parametrize(("name", "processor"), TABLES)
def test_other_blocks_are_not(name: str, processor: str) -> None:
    tables, item, eos = compiled(name, processor, ["CO"]), molecule("CO"), target(name).eos
    for text in BLOCKS:
        for blocks in ([text, "0.0,0.0,0.0"], ["0.0,0.0,0.0", text]):
            assert not accepts(tables, 0, [*ids(name, DEFAULT.answer_of(item.skeleton(blocks))), eos]), text


@pytest.mark.parametrize(("name", "processor"), TABLES)
def test_every_way_through_is_a_valid_conformer(name: str, processor: str) -> None:
    """With `grammar` it is cut as the tokenizer cuts it."""
    rng, smiles, eos = random.Random(3), [*SHAPES, "c1ccccc1O", "C[C@@H](N)C(=O)O"], target(name).eos
    tables, pieces = compiled(name, processor, smiles), target(name).table
    for row, text in enumerate(smiles):
        at, path = tables.first[row], [0][:0]
        while not path or path[-1] != eos:
            # By length first: of LLaMA's 1,110 digit tokens most have three digits.
            groups: dict[int, list[int]] = {}
            for token in tables.columns[np.isfinite(tables.bias[at[1]])].tolist():
                groups.setdefault(len(pieces.of(token)), []).append(token)
            path.append(rng.choice(rng.choice(list(groups.values()))))
            at = tables.moves[at[0], tables.classes[path[-1]]]
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


# Position templates


@pytest.mark.parametrize("name", WIDTHS)
def test_generic_blocks_brackets_tags_and_controls(name: str) -> None:
    this, text, width = made(name, "generic"), tokenizer(name), WIDTHS[name]
    rows = rows_of(this, name, "CO")
    template = rows.templates[0].ids.tolist()
    refused = {i for i in range(width) if i >= len(text) or {"<", ">"} & set(text.decode([i]))}
    refused.update(ids(name, "[SMILES][/SMILES][CONFORMER][/CONFORMER]"))
    (inside,) = allowed(this.start(rows), answers(template[:3]), width)
    assert inside == set(range(width)) - refused
    close = next(place for place, token in enumerate(template) if table(name).of(token) == b">[")
    (last,) = allowed(this.start(rows), answers(template[: close - 1]), width)
    gone = {table(name).join([token]) for token in inside - last}
    assert {",", "-", ",-", "--", ",,"} <= gone
    assert all(set(piece) <= set(",-") for piece in gone)
    assert inside >= last >= set(ids(name, "-."))
    counts = {"qwen": (1440, 1474), "llama": (1399, 1433)}[name]
    assert tuple(this.parameters.values()) == (len(refused), width - len(last)) == counts


def test_qwen_allows_number_tokens_only() -> None:
    this = made("qwen", "qwen")
    rows, number = rows_of(this, "qwen", "CO"), {*range(15, 25), 13, 11, 12, 4999, 14523}
    for position in range(3, 23):
        without = {11, 4999} if position == 3 else {11, 12, 4999, 14523} if position > 20 else set()
        assert allowed(this.start(rows), answers([0] * position), WIDTHS["qwen"]) == [number - without]


def places(rows: list[int], positions: list[int]) -> Places:
    return Places(tuple(rows), tuple(positions), torch.tensor(rows), torch.tensor(positions))


@pytest.mark.parametrize(("name", "masks"), [(name, masks) for name in WIDTHS for masks in ("qwen", "generic")])
def test_vectorized_is_the_row_loop_bit_by_bit(name: str, masks: str) -> None:
    """At every position, at positions left out, and for rows at unlike positions."""
    smiles = ("C", "c1ccccc1", "[Na+].[Cl-]")
    like: Processor = {"generic": Generic, "qwen": Qwen}[masks](target(name))
    fast, rows, width = Vectorized(target(name), masks), rows_of(like, name, *smiles), WIDTHS[name]
    ends = [len(template.ids) for template in rows.templates]
    noise = torch.randn(3, width + 300, generator=torch.Generator().manual_seed(0))
    for positions in (range(max(ends) + 4), (0, 4, 5, 9, 30, 31, max(ends), max(ends) + 7)):
        plain, vectorized = like.start(rows), fast.start(rows)
        for position in positions:
            scores, answer = noise[:, position : position + width].contiguous(), answers(*[[0] * position] * 3)
            expected, got = (batch(answer, scores.clone()) for batch in (plain, vectorized))
            assert torch.equal(got.view(torch.int32), expected.view(torch.int32)), position
        assert vectorized.masked_logits == plain.masked_logits
    assert isinstance(vectorized, ForcedRuns)
    assert isinstance(plain, ForcedRuns)
    assert vectorized.reads_tokens is plain.reads_tokens is False
    for step in range(0, max(ends), 7):
        # A row's last choice is for the position after its end token, as long as another row is not done.
        at = places([2, 0], [step % (ends[2] + 2), step % (ends[0] + 2)])
        expected, got = (batch.mask(noise[:2, :width].clone(), at) for batch in (plain, vectorized))
        assert torch.equal(got.isfinite(), expected.isfinite())
        free = expected.isfinite().sum(-1) > 1
        assert torch.equal(got[free], expected[free])
        assert vectorized.masked_logits == plain.masked_logits
    for row, end in enumerate(ends):
        for position in range(end + 2):
            assert vectorized.forced(row, position, None) == plain.forced(row, position, None)
    assert plain.forced(0, 0, None) == rows.templates[0].ids[:3].tolist()
    assert plain.forced(0, ends[0], None) == [target(name).eos]


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


@pytest.mark.parametrize(
    ("name", "processor", "most"),
    [("qwen", "vectorized", 2), ("llama", "vectorized", 3), ("qwen", "grammar", 6), ("llama", "truncate", 6)],
)
def test_operators_of_a_step_do_not_grow_with_the_batch_and_none_reads_back(
    name: str, processor: str, most: int
) -> None:
    this = made(name, processor)
    for copies in (2, 4):
        batch = this.start(rows_of(this, name, *["CO", "C"] * (copies // 2)))
        answer, counted = answers(*[[]] * copies), set()
        for _ in range(25):
            scores = torch.zeros(copies, WIDTHS[name])
            with Operators() as operators:
                out = batch(answer, scores)
            assert "_local_scalar_dense" not in operators.names
            counted.add(len(operators.names))
            answer = torch.cat((answer, out.argmax(-1, keepdim=True)), dim=1)
        assert max(counted) == most
        if processor == "vectorized":
            at = places(list(range(copies)), [4] * copies)
            with Operators() as operators:
                batch.mask(scores, at)
            assert operators.names == ["index", "index", "masked_fill_"]


# Engines


def test_the_grammar_of_a_molecule_as_text() -> None:
    texts = ("[F]<", ">/[C]<", ">=[C]<", ">\\[F]<", ">")
    sequence = r'"[F]<" c ">/[C]<" c ">=[C]<" c ">\\[F]<" c ">"'
    assert grammar_text(texts, ",", "ebnf") == (
        f'root ::= {sequence}\nc ::= n "," n "," n\nn ::= "-"? [0-9]{{1,3}} "." [0-9]{{1,4}}\n'
    )
    assert grammar_text(texts, ",", "lark") == (
        f'start: {sequence}\nc: N "," N "," N\nN: /-?[0-9]{{1,3}}\\.[0-9]{{1,4}}/\n'
    )


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize(
    ("engine", "text"), [("xgrammar", 'root ::= "yes" | "no"'), ("llguidance", 'start: "yes" | "no"')]
)
def test_any_grammar_allows_what_the_table_of_its_texts_allows(engine: str, text: str, name: str) -> None:
    pytest.importorskip(engine)
    this, pieces = ENGINES[engine](target(name), text), target(name).table
    for written in ([], ids(name, "y"), ids(name, "no")):
        batches = (
            this.start(Rows([Prompt(1, "", "?", None)], 3)),
            TableBatch([[choices()(["yes", "no"], target(name).table)]], target(name), 3),
        )
        for end in range(len(written) + 1):
            theirs, own = (allowed(batch, answers(written[:end]), WIDTHS[name]) for batch in batches)
            # A byte may be a token of its own beside the usual one, and llguidance leaves no choice of tokens where the
            # text leaves none.
            left = {pieces.of(token) for token in theirs[0]}
            assert left
            assert left <= {pieces.of(token) for token in own[0]}
            assert engine == "llguidance" or len(left) == len(own[0])
    assert this.parameters["compiled"] == 3
    with pytest.raises((RunError, RuntimeError)):
        ENGINES[engine](target(name), "::").start(Rows([Prompt(1, "", "?", None)], 3))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_package_is_named_with_its_extra(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(MissingExtraError) as caught:
        make_processor(engine, target("qwen"))
    assert str(caught.value) == f"the processor '{engine}' needs the package '{engine}', which is not installed"
    assert caught.value.hint == f"pip install 'molprof[{engine}]'"


# The fused kernel


def test_the_fused_kernel_writes_what_the_six_operators_write() -> None:
    """Run by Triton's interpreter, which needs no GPU, in a process of its own: it reads its setting when imported."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([*sys.path])}
    subprocess.run([sys.executable, __file__], check=True, env=environment, timeout=600)


def compare_fused() -> None:
    from molprof.profiler.constraints.fused import step

    small = replace(target("llama"), logits_width=600, eos=0)
    long = spelled([(7, 8), (7, 9)], [(token,) for token in range(20, 590)], [(3,), (4, 5)])
    rows = [[long, spelled([(token,) for token in range(6, 590)])], [long] * 2, []]
    batch, tables = TableBatch(rows, small, 3), compile_rows(rows, 0, 600)
    arrays = [torch.from_numpy(each) for each in (tables.classes, tables.moves, tables.columns, tables.bias)]
    at, out, read = torch.from_numpy(tables.first), torch.full((3, 600), -torch.inf), 3
    answer, generator = answers([], [], []), torch.Generator().manual_seed(4)
    for position in range(11):
        scores = torch.randn(3, 600, generator=generator)
        expected = batch(answer, scores)
        if position % 3 != 1:  # a call may find several new tokens
            step(answer, read, arrays, at, scores, out)
            read = answer.shape[1]
            assert torch.equal(out, expected)
        answer = torch.cat((answer, expected.argmax(-1, keepdim=True)), dim=1)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@pytest.mark.parametrize("capability", [80, 90])
def test_the_fused_kernel_compiles_for_gpus(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from molprof.profiler.constraints.fused import kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pointers = dict.fromkeys(("ids", "classes", "moves", "at", "columns"), "*i64")
    types = pointers | dict.fromkeys(("scores", "bias", "out"), "*fp32") | {"BLOCK": "constexpr"}
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs={"BLOCK": 256})
    assert triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]


if __name__ == "__main__":
    compare_fused()
