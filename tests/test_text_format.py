"""Prompts and answers with other tags work from capture to report; invalid patterns are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tiny
import torch
from captures import captured, events, of, settings
from constrained import target as constraint_target

from molprof import api
from molprof.analysis.figures.drift import text_kinds
from molprof.common.errors import UsageError
from molprof.common.manifest import from_json
from molprof.common.text_format import DEFAULT, TextFormat
from molprof.profiler.constraints import make_processor
from molprof.profiler.constraints.base import Rows
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.molecules.conformers import read_conformers
from molprof.profiler.molecules.kinds import check, classify
from molprof.profiler.molecules.placeholders import needed_text
from molprof.profiler.molecules.prompts import Prompt, Prompts, read_prompts
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.molecules.template import build_template

SEMICOLONS = TextFormat("Molecule: {smiles}\n", "<mol>{atom}<{x};{y};{z}>...</mol>")
WORDS = TextFormat("{smiles} => ", "{atom}<xyz>{x}, {y}, {z}</xyz>...\n")
SPECIAL = TextFormat("{smiles}", "[CONFORMER]{atom}<|im_start|>{x},{y},{z}<|im_end|>...[/CONFORMER]")
STUDIED = ("generic", "qwen", "vectorized", "truncate", "grammar")


def model(form: TextFormat, name: str = "llama") -> LoadedModel:
    found = tiny.loaded(name)
    return dataclasses.replace(found, target=dataclasses.replace(found.target, form=form))


def prompts(folder: Path, form: TextFormat, text: str = "CC=O\nC\n") -> Prompts:
    path = folder / "in.smi"
    path.write_text(text)
    return read_prompts(path, None, form=form)


def test_the_parts_of_a_format() -> None:
    form = TextFormat(answer="<mol>{atom}{{{x} {y} {z}}}...\n")
    assert (form.opening, form.block_open, form.separator) == ("<mol>", "{", " ")
    assert (form.block_close, form.closing, form.marks) == ("}", "\n", "{}")
    assert form.prompt_of("C") == "[SMILES]C[/SMILES]"
    assert form.tags == ("[SMILES]", "[/SMILES]", "<mol>")
    assert DEFAULT.tags == ("[SMILES]", "[/SMILES]", "[CONFORMER]", "[/CONFORMER]")


def test_what_is_checked_and_counted() -> None:
    right = "<mol>[C]<1.0;2.0;3.0>=[O]<0.0;0.0;-1.5></mol>"
    assert check(right, molecule("C=O"), SEMICOLONS) is None
    assert check(right, molecule("CO"), SEMICOLONS) == "another molecule: C=O"
    assert check(right.replace("3.0", "3.0abc"), molecule("C=O"), SEMICOLONS) == (
        "1 of 2 blocks end in junk: <1.0;2.0;3.0abc>"
    )
    assert check(right[5:], molecule("C=O"), SEMICOLONS) == "no <mol>...</mol> around the whole text"
    assert needed_text("1.50; 2.", 4, TextFormat(answer="{atom}<{x}; {y}; {z}>...")) == "1.5; 2.0; 0.0"


@pytest.mark.parametrize(("form", "text"), [
    (WORDS, "[C]<xyz>1.0, 2.0, 3.0</xyz>=[O]<xyz>0.0, 0.0, -1.5abra</xyz>\n"),
    (SPECIAL, "[CONFORMER][C]<|im_start|>1.0,2.0,3.0<|im_end|>=[O]<|im_start|>0.0,0.0,-1.5abra<|im_end|>[/CONFORMER]"),
])  # fmt: skip
def test_kinds_of_tokens(form: TextFormat, text: str) -> None:
    tokens = tiny.ids("qwen", text)
    found = classify(tokens, tiny.table("qwen"), frozenset(), form=form)
    assert found.insides == (form.numbers("1.0,2.0,3.0"), form.numbers("0.0,0.0,-1.5abra"))
    words = [tiny.table("qwen").join([token]) for token in tokens]
    for place, inside in enumerate(found.insides):
        assert "".join(word for word, at in zip(words, found.blocks, strict=True) if at == place) == inside
    assert "".join(word for word, kind in zip(words, found.kinds, strict=True) if kind == "j") == "abra"
    kinds = text_kinds(words, form)
    assert {kind for word, kind in zip(words, kinds, strict=True) if word.isdigit()} == {"digit"}
    assert {"element", "mark", "close", "other"} <= set(kinds)


@pytest.mark.parametrize(("name", "form"), [
    *((name, form) for form in (SEMICOLONS, WORDS) for name in STUDIED),
    ("xgrammar", SEMICOLONS), ("llguidance", WORDS),
])  # fmt: skip
def test_every_template_processor(name: str, form: TextFormat) -> None:
    target, read = dataclasses.replace(constraint_target("qwen"), form=form), molecule("C[NH3+]")
    if name in ("xgrammar", "llguidance"):
        pytest.importorskip(name)
    if name == "qwen" and form is WORDS:
        with pytest.raises(UsageError, match="needs single tokens for ', ', ', -'"):
            make_processor(name, target)
        return
    made = make_processor(name, target)
    placeholder: str = made.placeholder  # type: ignore[attr-defined]
    template = build_template(read, target.tokenizer, placeholder, form)
    assert template.text == form.answer_of(read.skeleton(form.numbers(placeholder.replace(form.separator, ",")), form))
    batch = made.start(Rows([Prompt(1, "", "", read)], 1, [template]))
    noise = torch.randn(target.logits_width + 400, generator=torch.Generator().manual_seed(5))
    written = [0]
    while written[-1] != target.eos:
        scores = noise[len(written) :][: target.logits_width].clone()[None]
        written.append(int(batch(torch.tensor([written]), scores).argmax()))
        assert len(written) < 400
    text = target.table.join(written[1:-1])
    problem = check(text, read, form)
    # With a template, any token may be in a coordinate.
    assert problem is None or (name in ("generic", "qwen", "vectorized") and "blocks" in problem)
    assert form.without_blocks(text) == form.without_blocks(template.text)


def test_a_capture_and_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two molecules: one with an exact and a short coordinate, one with junk."""
    loaded, found = model(SEMICOLONS), prompts(tmp_path, SEMICOLONS, "C=O\nC\n")
    texts = ("<mol>[C]<1.0000;2.0000;3.0000>=[O]<1.0;2.0;3.0></mol>", "<mol>[C]<1.25;2.0;3.0abra></mol>")
    templates = [
        build_template(item.molecule, loaded.tokenizer, SEMICOLONS.numbers(tiny.Script.placeholder), SEMICOLONS).text
        for item in found.prompts
        if item.molecule is not None
    ]
    monkeypatch.setattr(tiny.Script, "texts", dict(zip(templates, texts, strict=True)))
    monkeypatch.setattr(tiny.Script, "placeholder", SEMICOLONS.numbers(tiny.Script.placeholder))
    asked = settings(
        processor="tiny:Script", repeats=1, count=2, disagreement=True, prompt_format=SEMICOLONS.prompt,
        answer_format=SEMICOLONS.answer,
    )  # fmt: skip
    result = captured(tmp_path / "out.json", asked, found, loaded)
    assert [run.prompt for run in result.manifest.molecules] == ["Molecule: C=O\n", "Molecule: C\n"]
    assert [run.valid for run in result.manifest.molecules] == [True, False]
    assert result.manifest.molecules[1].problem == "1 of 1 blocks end in junk: <1.25;2.0;3.0abra>"
    manifest = from_json(events(tmp_path / "out.json")[0]["molprof"])
    assert manifest.settings.text_format == SEMICOLONS
    run = api.report(tmp_path / "out.json").run
    assert run is not None
    assert (run.blocks, run.junk_blocks, run.malformed_blocks, run.valid_molecules) == (3, 1, 0, 1)
    rules = {rule.rule: rule for rule in run.drift.junk_rules}
    counted = {name: rule.blocks for name, rule in rules.items() if rule.blocks}
    nonnumeric = ("strict", "letters", "latin_letters", "any_nonnumeric", "not_floats", "not_exact")
    assert counted == dict.fromkeys(nonnumeric, 1) | {"drift": 1, "surplus": 1}
    assert rules["not_two_commas"].meaning == "more or fewer separators than two"
    (example,) = run.drift.junk_examples
    assert (example.text, example.surplus) == ("<1.25;2.0;3.0|abra|>", "abra")
    assert run.drift.known_blocks == 3
    assert run.disagreement is not None
    assert {"digit", "mark", "close", "tag"} <= {group.text for group in run.disagreement.groups}


def test_the_token_track_has_the_brackets_only_where_they_differ(tmp_path: Path) -> None:
    asked = settings(repeats=1, count=2, max_new_tokens=4)
    captured(tmp_path / "a.json", asked, prompts(tmp_path, DEFAULT))
    (first, _) = of(events(tmp_path / "a.json")[1], "molprof.sequence")
    assert "block_open" not in first["args"]
    other = dataclasses.replace(asked, answer_format=WORDS.answer)
    captured(tmp_path / "b.json", other, prompts(tmp_path, WORDS), model(WORDS))
    (first, _) = of(events(tmp_path / "b.json")[1], "molprof.sequence")
    assert (first["args"]["block_open"], first["args"]["block_close"]) == ("<xyz>", "</xyz>")


def test_conformers_of_a_file_in_the_format(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("Molecule: C=O <mol>[C]<1.0;2.0;3.0>=[O]<0.0;0.0;-1.5></mol>\n[C]<1.0;2.0;x>\n")
    found = read_conformers(path, form=SEMICOLONS)
    assert [item.positions for item in found.conformers] == [((1.0, 2.0, 3.0), (0.0, 0.0, -1.5))]
    assert found.skipped[0].problem == "block 1 is not three decimal numbers: <1.0;2.0;x>"
