"""Cutting prompts into batches, and what length-aware batches save: idle row-steps, counted exactly."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import loaded, plan

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints import make_processor
from molprof.profiler.engines.batches import BatchPlan, Need, check_context, cut, fitted
from molprof.profiler.engines.runner import Runner
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.smiles import molecule
from molprof.profiler.molecules.template import PLACEHOLDER

# Answers, end token included, with llama's tokens: 20, 55, 21 and 54.
SMILES = ("C", "CC=O", "O", "CCO")


def prompts(*smiles: str) -> list[Prompt]:
    return [Prompt(line, "", DEFAULT.prompt_of(text), molecule(text)) for line, text in enumerate(smiles, start=1)]


def needs(*lengths: int) -> list[Need]:
    return [Need(width, length + 1, length) for width, length in enumerate(lengths, start=5)]


def runner(processor: str | None = "generic", **settings: Any) -> Runner:
    model = loaded("llama")
    made = None if processor is None else make_processor(processor, model.target)
    return Runner(model, made, CaptureSettings("tiny", processor=processor, **settings))


def test_unsorted_batches_keep_the_order_and_their_own_bounds() -> None:
    plans = cut(prompts(*SMILES), needs(20, 50, 20, 55), 3)
    assert [plan.sequences for plan in plans] == [(0, 1, 2), (3,)]
    assert [(plan.prompt_width, plan.max_new_tokens) for plan in plans] == [(7, 51), (8, 56)]
    assert [plan.spare_rows for plan in plans] == [0, 0]


def test_sorted_batches_begin_with_the_longest_and_keep_equal_ones_in_order() -> None:
    given = prompts(*SMILES)
    plans = cut(given, needs(20, 50, 20, 55), 2, sort=True)
    assert [plan.sequences for plan in plans] == [(3, 1), (0, 2)]
    assert [plan.prompts for plan in plans] == [(given[3], given[1]), (given[0], given[2])]
    assert [(plan.prompt_width, plan.max_new_tokens) for plan in plans] == [(8, 56), (7, 21)]


def test_one_shape() -> None:
    plans = cut(prompts(*SMILES), needs(20, 50, 20, 55), 3, one_width=True, full_rows=True)
    assert [(plan.prompt_width, plan.max_new_tokens, plan.rows) for plan in plans] == [(8, 56, 3), (8, 56, 3)]
    assert [prompt.line for prompt in plans[1].row_prompts] == [4, 4, 4]
    assert [len(plan.prompts) for plan in plans] == [3, 1]
    (alone,) = cut(prompts("C"), needs(20), 3, full_rows=True)  # one batch has one shape whatever its rows
    assert alone.spare_rows == 0


def test_the_context_is_checked_row_by_row() -> None:
    check_context(prompts("C"), [Need(5, 21, 20)], 26)
    check_context(prompts("C"), [Need(5, 21, 20)], None)
    with pytest.raises(
        UsageError, match=r"line 1: \[SMILES\]C\[/SMILES\] needs 5 \+ 21 tokens \(prompt \+ answer\) of 25$"
    ):
        check_context(prompts("C"), [Need(5, 21, 20)], 25)


@pytest.mark.parametrize(
    ("text", "need", "told", "hint"),
    [
        (
            "x" * 1_200_000,
            Need(400_000, 3, 3),
            f"line 4: {'x' * 80}... (1,200,000 characters) needs 400,000 + 3 tokens (prompt + answer) of 2,048",
            "the prompt alone fills the model's context: shorten it, or leave it out",
        ),
        (
            "How many?",
            Need(48, 2001, 2001),
            "line 4: How many? needs 48 + 2,001 tokens (prompt + answer) of 2,048",
            "leave the prompt out, or bound its answer: --max-new-tokens 2000",
        ),
    ],
    ids=["prompt", "answer"],
)
def test_a_prompt_that_does_not_fit_is_told_in_short(text: str, need: Need, told: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_context([Prompt(4, "", text, None)], [need], 2048)
    assert (str(caught.value), caught.value.hint) == (told, hint)


@pytest.mark.parametrize("settings", [{"kv_cache": "static"}, {"forced_runs": True}])
def test_a_molecule_beyond_the_context_is_refused_before_any_work(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"needs 4 \+ 2,045 tokens \(prompt \+ answer\) of 2,048"):
        plan(runner(**settings), prompts("CCO", "C"), 2, 2045)


def test_what_is_sorted() -> None:
    given = prompts(*SMILES)
    plain = [Prompt(1, "", "hello", None)]
    assert [runner(sort=ask).sorts(given) for ask in (None, True, False)] == [True, True, False]
    assert [runner(None, sort=ask).sorts(given) for ask in (None, True, False)] == [True, True, False]
    assert runner().sorts(plain) is False
    with pytest.raises(UsageError, match="no expected length"):
        runner(sort=True).sorts(plain)


def test_sorting_removes_idle_row_steps_and_changes_no_text() -> None:
    given = prompts(*SMILES)
    answers: dict[bool, list[tuple[int, ...]]] = {}
    idle = {}
    for sort in (False, True):
        run = runner(sort=sort)
        plans = plan(run, given, 2)
        result = run.run(plans, None)
        assert [batch.steps for batch in result.batches] == ([55, 21] if sort else [55, 54])
        rows = [(each.sequences[row], ids) for each, batch in zip(plans, result.batches, strict=True)
                for row, ids in enumerate(batch.rows)]  # fmt: skip
        answers[sort] = [ids for _, ids in sorted(rows)]
        idle[sort] = sum(batch.steps * len(batch.rows) for batch in result.batches) - sum(map(len, answers[sort]))
    assert answers[True] == answers[False]
    assert idle == {False: 35 + 33, True: 1 + 1}


def test_the_placeholder_of_the_settings() -> None:
    given = prompts(*SMILES)
    own = runner("generic")
    assert (own.placeholder, own.templates.build([given[0].molecule])[0].free_per_block[0]) == (PLACEHOLDER, 14)
    set_ = runner("generic", placeholder="0.0,0.0,0.0")
    assert set_.placeholder == "0.0,0.0,0.0"
    assert set_.templates.build([given[0].molecule])[0].free_per_block[0] < 14
    for name, problem in (("placeholder", "chooses its placeholder itself"), ("grammar", "it has no placeholder")):
        with pytest.raises(UsageError, match=f"the processor '{name}' .*{problem}"):
            runner(name, placeholder="0.0,0.0,0.0").plan(given)


def test_runs_with_a_processor_and_without_have_one_bound() -> None:
    given = prompts(*SMILES)
    bounds = [[plan.max_new_tokens for plan in runner(name).plan(given)] for name in (None, "generic")]
    assert bounds[0] == bounds[1]


def test_padding_and_a_cache_too_short_are_refused() -> None:
    plan = BatchPlan((), (), max_new_tokens=10, prompt_width=17)
    assert [item.prompt_width for item in fitted([plan], 8, 34, 34)] == [24]
    with pytest.raises(UsageError, match=r"padded to a multiple of 8, the 24 \+ 10 tokens .* exceed the context of 33"):
        fitted([plan], 8, None, 33)
    with pytest.raises(UsageError, match="--max-cache-length 33 is less than the 24"):
        fitted([plan], 8, 33, None)
