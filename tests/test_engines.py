"""XGrammar and llguidance with the same grammar per molecule: same language as `grammar`, each in its own notation."""

from __future__ import annotations

import functools
import re
import sys

import pytest
import torch
from tiny import ids, loaded

from molprof.common.errors import MissingExtraError
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.engines import constraint
from molprof.profiler.molecules.kinds import check
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.molecules.template import build_template

PROMPT_WIDTH = 4
ENGINES = ("xgrammar", "llguidance")


made = functools.cache(lambda name, tokenizer: make_processor(name, loaded(tokenizer).target))


def templates(tokenizer: str, smiles: tuple[str, ...]):
    return [build_template(molecule(text), loaded(tokenizer).tokenizer) for text in smiles]


def test_the_grammar_as_text() -> None:
    (template,) = templates("qwen", (r"F/C=C\F",))
    found = constraint(template, loaded("qwen").target)
    vocabulary = loaded("qwen").tokenizer.get_vocab()
    assert (found.opening, found.closing) == (vocabulary["[CONFORMER]"], vocabulary["[/CONFORMER]"])
    assert found.texts == ("[F]<", ">/[C]<", ">=[C]<", ">\\[F]<", ">")
    sequence = r'"[F]<" c ">/[C]<" c ">=[C]<" c ">\\[F]<" c ">"'
    assert found.ebnf() == f'root ::= {sequence}\nc ::= n "," n "," n\nn ::= "-"? [0-9]{{1,3}} "." [0-9]{{1,4}}\n'
    assert found.lark() == f'start: {sequence}\nc: N "," N "," N\nN: /-?[0-9]{{1,3}}\\.[0-9]{{1,4}}/\n'


@pytest.mark.parametrize(("engine", "tokenizer"), [("xgrammar", "qwen"), ("llguidance", "llama")])
def test_a_random_model_writes_valid_conformers(engine: str, tokenizer: str) -> None:
    pytest.importorskip(engine)
    smiles = (r"F/C=C\F", "C[NH3+]")
    target = loaded(tokenizer).target
    processor = made(engine, tokenizer)
    before = processor.parameters.get("compiled", 0)
    rows = templates(tokenizer, smiles)
    batch = processor.start(rows, PROMPT_WIDTH)
    most = max(processor.longest(template) for template in rows)
    generator = torch.Generator().manual_seed(6)
    answer = torch.zeros(len(smiles), PROMPT_WIDTH, dtype=torch.int64)
    done = torch.zeros(len(smiles), dtype=torch.bool)
    while not done.all():
        assert answer.shape[1] - PROMPT_WIDTH < most
        scores = torch.randn(len(smiles), target.logits_width, generator=generator)
        out = batch(answer, scores.clone())
        kept = torch.isfinite(out)
        assert kept.any(-1).all()
        assert torch.equal(out[kept], scores[kept])
        chosen = torch.where(done, target.pad, out.softmax(-1).multinomial(1, generator=generator)[:, 0])
        done |= chosen == target.eos
        answer = torch.cat((answer, chosen[:, None]), dim=1)
    for row, text in zip(answer[:, PROMPT_WIDTH:].tolist(), smiles, strict=True):
        written = target.table.join(row[: row.index(target.eos)])
        assert check(written, molecule(text)) is None
        for block in re.findall("<([^<>]*)>", written):
            assert re.fullmatch(r"-?\d{1,3}\.\d{1,4}(,-?\d{1,3}\.\d{1,4}){2}", block)
    assert processor.parameters["compiled"] == before + len(smiles)
    assert processor.parameters["compile_ns_per_molecule"] > 0


@pytest.mark.parametrize("tokenizer", ["qwen", "llama"])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_grammar_allows_the_engines_allow(engine: str, tokenizer: str) -> None:
    """Along a text in the tokenizer's own tokens; the engines also allow other cuts of it."""
    pytest.importorskip(engine)
    target = loaded(tokenizer).target
    rows = templates(tokenizer, ("CC(=O)[O-]",))
    batches = [made(name, tokenizer).start(rows, PROMPT_WIDTH) for name in ("grammar", engine)]
    text = DEFAULT.answer_of(molecule("CC(=O)[O-]").skeleton("-1.25,0.5,-12.0625"))
    written = [*ids(tokenizer, text), target.eos]
    for length in range(len(written)):
        answer = torch.tensor([[0] * PROMPT_WIDTH + written[:length]])
        own, theirs = (
            set(torch.isfinite(batch(answer, torch.zeros(1, target.logits_width))[0]).nonzero().flatten().tolist())
            for batch in batches
        )
        assert written[length] in own <= theirs


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_package_is_named_with_its_extra(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(MissingExtraError) as caught:
        make_processor(engine, loaded("qwen").target)
    assert str(caught.value) == f"the processor '{engine}' needs the package '{engine}', which is not installed"
    assert caught.value.hint == f"pip install 'molprof[{engine}]'"
