"""The processors of molprof: texts and masks are right, position templates, engines, cost of a step."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from constrained import ENGINES, WIDTHS, allowed, answers, choices, made, places, rows_of, target
from forks import forked
from tiny import ids, table, tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

from molprof.common.errors import MissingExtraError, RunError
from molprof.common.installed import install_command
from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.base import FORCED_RUNS, Processor, Rows, has
from molprof.profiler.constraints.constraint import make_table
from molprof.profiler.constraints.molecules import grammar_text
from molprof.profiler.constraints.rows import Generic, Qwen
from molprof.profiler.constraints.table import TableProcessor, compile_rows, spelled
from molprof.profiler.constraints.token_dfa import TokenDfa, TokenDfaBatch
from molprof.profiler.constraints.vectorized import Vectorized
from molprof.profiler.models.target import ProcessorTarget
from molprof.profiler.molecules.prompts import Constraint, Prompt

NUMBER = r"-?[0-9]{1,3}\.[0-9]{1,4}"
TABLES = [(tokenizer, processor) for tokenizer in WIDTHS for processor in ("grammar", "truncate")]


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
    if processor not in ENGINES:
        assert batch.masked_logits == counted.tolist()
    if (longest := getattr(this, "longest", None)) is not None:
        assert row.index(target(name).eos) < longest(rows_of(this, name, "C[NH3+]").templates[0])


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
    assert has(vectorized, FORCED_RUNS)
    assert has(plain, FORCED_RUNS)
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


@pytest.mark.parametrize(("name", "most"), [("qwen", 2), ("llama", 3)])
def test_operators_of_a_step_do_not_grow_with_the_batch_and_none_reads_back(name: str, most: int) -> None:
    this = made(name, "vectorized")
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
        with Operators() as operators:
            batch.mask(scores, places([*range(copies)], [4] * copies))
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


@pytest.mark.parametrize(
    ("engine", "text"), [("xgrammar", 'root ::= "yes" | "no"'), ("llguidance", 'start: "yes" | "no"')]
)
def test_any_grammar_allows_what_the_table_of_its_texts_allows(engine: str, text: str) -> None:
    pytest.importorskip(engine)
    name = "llama"
    this, pieces = ENGINES[engine](target(name), text), target(name).table
    yes_or_no = choices()(["yes", "no"], pieces)
    for written in ([], ids(name, "y"), ids(name, "no")):
        batches = (
            this.start(Rows([Prompt(1, "", "?", None)], 3)),
            TableProcessor("choices", target(name), lambda rows: [[yes_or_no]]).start(Rows([], 3)),
        )
        for end in range(len(written) + 1):
            theirs, own = (allowed(batch, answers(written[:end]), WIDTHS[name]) for batch in batches)
            # A byte may be a token of its own beside the usual one, and llguidance leaves no choice of tokens where the
            # text leaves none.
            left = {pieces.of(token) for token in theirs[0]}
            assert left
            assert left <= {pieces.of(token) for token in own[0]}
            assert engine == "llguidance" or len(left) == len(own[0])
    with pytest.raises(RunError):
        ENGINES[engine](target(name), "::")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_package_is_named_with_its_extra(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(MissingExtraError) as caught:
        make_processor(engine, target("qwen"))
    assert str(caught.value) == f"the processor '{engine}' needs the package '{engine}', which is not installed"
    assert caught.value.hint == install_command(engine, engine)


# The fused kernel


def interpreted() -> Any:
    """The module of the kernels, run by Triton's interpreter."""
    os.environ["TRITON_INTERPRET"] = "1"  # which Triton reads when it is imported
    for name in [name for name in sys.modules if name.startswith("triton") and not name.startswith("triton._C")]:
        del sys.modules[name]
    sys.modules.pop("molprof.profiler.constraints.fused", None)
    return importlib.import_module("molprof.profiler.constraints.fused")


def test_the_fused_step_is_that_of_the_six_operators() -> None:
    """Of rows with automata of their own, and of rows that share one, by Triton's interpreter, which needs no GPU."""
    pytest.importorskip("triton")
    small = replace(target("llama"), logits_width=2600, eos=0)
    long = spelled([(7, 8), (7, 9)], [(token,) for token in range(20, 590)], [(3,), (4, 5)])
    shared, first = compile_rows([[long, spelled([(token,) for token in range(6, 590)])], [long] * 2, []], 0, 2600)
    rows = [make_table(small, Constraint("regex", form)) for form in ("[ab]{1,9}", "a?(b|c[0-9])*", "[ab]{1,9}")]
    for each, begin in ((rows, None), ([shared] * 3, first), ([rows[0], shared, shared], [1, *first[:2]])):
        compared(small, each, begin)


def compared(small: ProcessorTarget, rows: list[TokenDfa], first: list[int] | None) -> None:
    plain, written, steps = TokenDfaBatch(rows, small, 3, first, by_row=False), answers([], [], []), []
    for position in range(9):
        scores = torch.randn(3, 2600, generator=torch.Generator().manual_seed(position))
        expected = plain(written, scores.clone())
        if position % 3 != 1:  # a call may find several new tokens
            steps.append((written, scores, expected))
        written = torch.cat((written, expected.argmax(-1, keepdim=True)), dim=1)
    forked(compare_fused, small, rows, first, steps)


def compare_fused(
    small: ProcessorTarget, rows: list[TokenDfa], first: list[int] | None, steps: list[tuple[torch.Tensor, ...]]
) -> None:
    """No operator of torch may need its threads here, which a copy of a process has not."""
    fused = TokenDfaBatch(rows, small, 3, first, by_row=False, fused=interpreted())
    for written, scores, expected in steps:
        assert torch.equal(fused(written, scores), expected)


POINTERS = {
    **dict.fromkeys(("ids", "which"), "*i64"), **dict.fromkeys(("kinds", "moves", "at"), "*i32"),
    "forbidden": "*i1", "scores": "*fp32",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@pytest.mark.parametrize("capability", [80, 90])
def test_the_fused_kernel_compiles_for_gpus(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from molprof.profiler.constraints import fused

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = POINTERS | {"BLOCK": "constexpr"}
    signature = {argument: types.get(argument, "i32") for argument in fused.kernel.arg_names}
    source = ASTSource(fn=fused.kernel, signature=signature, constexprs={"BLOCK": 256})
    assert triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]
