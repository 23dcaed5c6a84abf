"""Prompts are cut into batches in the right order, shape and bounds; misfits are refused; sorting saves steps."""

from __future__ import annotations

from typing import Any

import pytest
from test_marks import prompts
from tiny import loaded

from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.constraints import make_processor
from molprof.profiler.engines.runner import Runner
from molprof.profiler.molecules.prompts import Prompt
from molprof.profiler.molecules.template import PLACEHOLDER

# Prompts of 3, 5, 3 and 4 tokens; answers, end token included, of 20, 55, 21 and 54.
SMILES = ("C", "CC=O", "O", "CCO")
STATIC = {"kv_cache": "static", "compile": "eager"}


def runner(processor: str | None = "generic", **settings: Any) -> Runner:
    model = loaded("llama")
    made = None if processor is None else make_processor(processor, model.target)
    return Runner(model, made, CaptureSettings("tiny", processor=processor, **settings))


@pytest.mark.parametrize("processor", [None, "generic"])  # which changes no shape
@pytest.mark.parametrize(
    ("settings", "sequences", "shapes"),
    [
        ({"sort": False, "batch_size": 3}, [(0, 1, 2), (3,)], [(3, 5, 72), (1, 4, 71)]),
        ({"batch_size": 2}, [(1, 3), (2, 0)], [(2, 5, 72), (2, 3, 32)]),
        ({"batch_size": 3, **STATIC}, [(1, 3, 2), (0,)], [(3, 5, 72), (3, 5, 72)]),  # one shape
        ({"batch_size": 8, **STATIC}, [(1, 3, 2, 0)], [(4, 5, 72)]),
        ({"batch_size": 4, "padding_multiple": 8, "max_new_tokens": 9}, [(1, 3, 2, 0)], [(4, 8, 9)]),
    ],
)
def test_batches(processor: str | None, settings: dict[str, Any], sequences: Any, shapes: Any) -> None:
    plans = runner(processor, **settings).plan(prompts(*SMILES))
    assert [plan.sequences for plan in plans] == sequences
    assert [(plan.rows, plan.prompt_width, plan.max_new_tokens) for plan in plans] == shapes
    assert all(plan.row_prompts[len(plan.prompts) :] == (plan.prompts[-1],) * plan.spare_rows for plan in plans)


@pytest.mark.parametrize(
    ("processor", "settings", "text", "message", "hint"),
    [
        ("generic", {"max_new_tokens": 2045}, None, r"line 1: \[SMILES\]CCO\[/SMILES\] needs 4 \+ 2,045 tokens "
         r"\(prompt \+ answer\) of 2,048$", "leave the molecule out, or bound its answer: --max-new-tokens 2044"),
        (None, {"max_new_tokens": 3}, "one " * 3000, r"needs 3,001 \+ 3 tokens .* of 2,048$",
         "the prompt alone fills the model's context: shorten it, or leave it out"),
        ("generic", {"max_new_tokens": 2040, "padding_multiple": 12}, None,
         r"padded to a multiple of 12, the 12 \+ 2,040 tokens .* exceed the context of 2,048",
         "a smaller --pad-multiple or --max-new-tokens"),
        ("generic", {"max_new_tokens": 30, "max_cache_length": 33, **STATIC}, None,
         r"--max-cache-length 33 is less than the 4 \+ 30", "--max-cache-length 34, or a smaller --max-new-tokens"),
        (None, {}, "hello", "a plain-text prompt has no template to bound its answer", "--max-new-tokens N"),
        (None, {"max_new_tokens": 3, "sort": True}, "hello", "no expected length to sort by", "leave out --sort"),
        ("generic", {"max_new_tokens": 3}, "hello", "'generic' needs molecules", "--smiles FILE; xgrammar"),
        (None, {"forced_runs": True}, None, "without a processor no token is forced", "--lp, or leave out"),
        ("placeholder", {"placeholder": "0.0,0.0,0.0"}, None, "chooses its placeholder itself", "leave out"),
        ("grammar", {"placeholder": "0.0,0.0,0.0"}, None, "it has no placeholder", "leave out --placeholder"),
        (None, {"engine": "mine"}, None, "no engine 'mine'", "use one of: generate, forced, assisted, "),
    ],
)  # fmt: skip
def test_what_does_not_fit(processor: str | None, settings: Any, text: str | None, message: str, hint: str) -> None:
    given = prompts("CCO") if text is None else [Prompt(1, "", text, None)]
    with pytest.raises(UsageError, match=f"(?m){message}") as caught:
        runner(processor, **settings).plan(given)
    assert (caught.value.hint or "").startswith(hint)


def test_sorting_removes_idle_row_steps_and_changes_no_text() -> None:
    answers, idle = {}, {}
    for sort in (False, True):
        run = runner(sort=sort, batch_size=2)
        plans = run.plan(prompts(*SMILES))
        result = run.run(plans, None)
        assert [batch.steps for batch in result.batches] == ([55, 21] if sort else [55, 54])
        rows = [(number, row) for each, batch in zip(plans, result.batches, strict=True)
                for number, row in zip(each.sequences, batch.rows, strict=True)]  # fmt: skip
        answers[sort] = sorted(rows)
        idle[sort] = sum(sum(batch.rows_per_step) for batch in result.batches) - sum(len(row) for _, row in rows)
    assert answers[True] == answers[False]
    assert idle == {False: 35 + 33, True: 1 + 1}


def test_the_placeholder_of_the_settings() -> None:
    (given,) = prompts("CCO")
    own, other = runner("generic"), runner("generic", placeholder="0.0,0.0,0.0")
    assert (own.placeholder, other.placeholder) == (PLACEHOLDER, "0.0,0.0,0.0")
    assert own.templates.build([given.molecule])[0].free_per_block[0] == 14
    assert other.templates.build([given.molecule])[0].free_per_block[0] < 14
