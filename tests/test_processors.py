"""The studied processors, position by position, and their count of masked logits."""

from __future__ import annotations

import pytest
import torch
from tiny import ids, loaded, table

from molprof.common.errors import UsageError
from molprof.profiler.constraints import PROCESSORS, make_processor
from molprof.profiler.constraints.base import Processor
from molprof.profiler.constraints.vectorized import suited_masks
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.molecules.template import Template, build_template

PROMPT_WIDTH = 7
WIDTHS = {"qwen": 151_936, "llama": 128_256}
# Logits that `generic` masks at a FREE position, and at the last one of a block.
BLOCKED = {"qwen": (1440, 1474), "llama": (1399, 1433)}


def make(tokenizer: str, processor: str) -> tuple[Processor, Template]:
    made = make_processor(processor, loaded(tokenizer).target)
    return made, build_template(molecule("CO"), loaded(tokenizer).tokenizer, made.placeholder)


def allowed(processor: Processor, template: Template, tokenizer: str, position: int) -> tuple[set[int], int]:
    """Ids that may follow at an answer position, and the count of masked logits that the processor states."""
    batch = processor.start([template], PROMPT_WIDTH)
    given = torch.zeros(1, PROMPT_WIDTH + position, dtype=torch.int64)
    out = batch(given, torch.zeros(1, WIDTHS[tokenizer]))
    assert out.shape == (1, WIDTHS[tokenizer])
    assert out.dtype == torch.float32
    return set(torch.isfinite(out[0]).nonzero().flatten().tolist()), batch.masked_logits[0]


@pytest.mark.parametrize("tokenizer", ["qwen", "llama"])
@pytest.mark.parametrize("processor", ["generic", "qwen"])
def test_copy_positions_force_the_template_and_the_end_forces_eos(tokenizer: str, processor: str) -> None:
    made, template = make(tokenizer, processor)
    for position, (token, free) in enumerate(zip(template.ids.tolist(), template.free, strict=True)):
        left, masked = allowed(made, template, tokenizer, position)
        assert masked == WIDTHS[tokenizer] - len(left)
        if not free:
            assert left == {token}
    for beyond in (0, 5):
        left, masked = allowed(made, template, tokenizer, len(template.ids) + beyond)
        assert left == {loaded(tokenizer).tokenizer.eos_token_id}
        assert masked == WIDTHS[tokenizer] - 1


@pytest.mark.parametrize("tokenizer", ["qwen", "llama"])
def test_generic_blocks_brackets_tags_and_controls(tokenizer: str) -> None:
    made, template = make(tokenizer, "generic")
    left, masked = allowed(made, template, tokenizer, 3)
    text = loaded(tokenizer).tokenizer
    pieces = {index: text.decode([index]) for index in range(WIDTHS[tokenizer])}
    size = len(text)
    refused = {index for index, piece in pieces.items() if index >= size or "<" in piece or ">" in piece}
    refused.update(ids(tokenizer, "[SMILES][/SMILES][CONFORMER][/CONFORMER]"))
    assert left == set(range(WIDTHS[tokenizer])) - refused
    assert masked == len(refused) == BLOCKED[tokenizer][0]
    assert set(ids(tokenizer, "abra 5,-.")) <= left


@pytest.mark.parametrize("tokenizer", ["qwen", "llama"])
def test_generic_ends_no_block_with_a_comma_or_dash(tokenizer: str) -> None:
    made, template = make(tokenizer, "generic")
    (last,) = [place for place in range(len(template.ids)) if table(tokenizer).of(template.ids[place]) == b">["]
    before, _ = allowed(made, template, tokenizer, last - 2)
    left, masked = allowed(made, template, tokenizer, last - 1)
    texts = {table(tokenizer).join([index]) for index in before - left}
    assert {",", "-", ",-", "--", ",,"} <= texts
    assert all(set(text) <= {",", "-"} for text in texts)
    assert masked == BLOCKED[tokenizer][1]
    assert set(ids(tokenizer, "-.")) <= left


def test_qwen_allows_number_tokens_only() -> None:
    made, template = make("qwen", "qwen")
    number = {*range(15, 25), 13, 11, 12, 4999, 14523}
    assert template.free_per_block.tolist() == [20, 20]
    first = 3
    assert allowed(made, template, "qwen", first) == (number - {11, 4999}, 151_936 - 13)
    for position in range(first + 1, first + 18):
        assert allowed(made, template, "qwen", position) == (number, 151_936 - 15)
    for position in (first + 18, first + 19):
        assert allowed(made, template, "qwen", position) == (number - {11, 12, 4999, 14523}, 151_936 - 11)


def test_rows_of_unequal_molecules_keep_their_own_positions() -> None:
    target = loaded("llama").target
    made = make_processor("generic", target)
    templates = [build_template(molecule(smiles), target.tokenizer) for smiles in ("C", "c1ccccc1", "CC=O")]
    batch = made.start(templates, PROMPT_WIDTH)
    torch.manual_seed(1)
    answer = torch.zeros(3, PROMPT_WIDTH, dtype=torch.int64)
    counted = [0, 0, 0]
    for _ in range(max(len(template.ids) for template in templates) + 2):
        scores = batch(answer, torch.randn(3, 128_256))
        counted = [had + int(row.isneginf().sum()) for had, row in zip(counted, scores, strict=True)]
        answer = torch.cat((answer, scores.argmax(-1, keepdim=True)), dim=1)
    assert batch.masked_logits == counted
    for row, template in zip(answer[:, PROMPT_WIDTH:].tolist(), templates, strict=True):
        written, rest = row[: len(template.ids)], row[len(template.ids) :]
        assert set(rest) == {target.eos}
        assert [token for token, free in zip(written, template.free, strict=True) if not free] == (
            template.ids[~template.free].tolist()
        )
        text = table("llama").join(written)
        assert text.count("<") == text.count(">") == len(template.free_per_block)


def test_scores_that_are_allowed_keep_their_value() -> None:
    made, template = make("qwen", "qwen")
    scores = torch.arange(151_936, dtype=torch.float32)[None]
    out = made.start([template], PROMPT_WIDTH)(torch.zeros(1, PROMPT_WIDTH + 4, dtype=torch.int64), scores)
    assert out[0, [11, 15, 24]].tolist() == [11.0, 15.0, 24.0]


def test_choice_by_tokenizer_family() -> None:
    assert suited_masks(loaded("qwen").target) == "qwen"
    assert suited_masks(loaded("llama").target) == "generic"


def test_a_user_names_a_factory() -> None:
    assert make_processor("tiny:Script", loaded("llama").target).name == "script"
    assert make_processor("tiny:Script", loaded("llama").target).needs_templates is False


@pytest.mark.parametrize(
    ("name", "message", "step"),
    [
        ("nope", "no processor 'nope'", ""),
        (
            "no.such:thing",
            "no processor 'no.such:thing': No module named 'no'",
            "; set PYTHONPATH to the folder of no.py or of the package no",
        ),
        ("tiny:Nothing", "no processor 'tiny:Nothing': module 'tiny' has no attribute 'Nothing'", ""),
    ],
    ids=["name", "module", "attribute"],
)
def test_unknown_processor(name: str, message: str, step: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_processor(name, loaded("llama").target)
    assert str(caught.value) == message
    assert caught.value.hint == f"use one of {', '.join(PROCESSORS)}, or package.module:factory{step}"
