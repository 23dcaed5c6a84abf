"""What a user's processor tells about itself, and tells of forced runs: looked at before it is believed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from molprof.common.errors import ProcessorError, UsageError
from molprof.common.text_format import DEFAULT
from molprof.profiler.constraints.base import ForcedRuns, Places
from molprof.profiler.constraints.checked import CheckedRuns, UserProcessor, told

WIDTH, END = 8, 7
TARGET: Any = SimpleNamespace(logits_width=WIDTH, eos=END, pad=6, form=DEFAULT)
ZEROS = torch.zeros(2, 3, dtype=torch.int64)


class Started(SimpleNamespace):
    """One that starts `batch` and has whatever else a test gives it."""

    def start(self, templates: Any, prompt_width: int) -> Any:
        return self.batch


class Batch(SimpleNamespace):
    """Lets everything through."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


class Jumps(Batch):
    """Forces `run`, masks by `masks`."""

    def forced(self, row: int, position: int, chosen: int | None) -> Any:
        return self.run

    def mask(self, scores: Tensor, places: Places) -> Tensor:
        masked: Tensor = self.masks(scores)
        return masked


def user(verify: bool = False, **attributes: Any) -> UserProcessor:
    made = UserProcessor("mine:make", lambda target: Started(**attributes), TARGET)
    made.verify = verify
    return made


def jumps(run: Any = (), masks: Any = lambda scores: scores, verify: bool = False, **more: Any) -> CheckedRuns:
    batch = Jumps(run=run, masks=masks, reads_tokens=True, **more)
    started = user(verify, batch=batch).start([], 3)
    assert isinstance(started, CheckedRuns)
    return started


def places(*rows: int) -> Places:
    ids = torch.tensor(rows)
    return Places(rows, (4,) * len(rows), ids, torch.full_like(ids, 4))


def failure(call: Any, *arguments: Any) -> str:
    with pytest.raises(ProcessorError) as caught:
        call(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"bias": torch.zeros(2)}, "Object of type Tensor is not JSON serializable"),
        ({"words": {"a"}}, "Object of type set is not JSON serializable"),
        ({"share": math.nan}, "Out of range float values are not JSON compliant"),
    ],
    ids=["tensor", "set", "nan"],
)
def test_parameters_that_no_trace_can_hold_are_refused_before_anything_runs(
    parameters: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError) as caught:
        user(parameters=parameters)
    assert str(caught.value).startswith(f"the parameters of mine:make cannot be written into a trace: {problem}")


def test_parameters_are_kept_as_json_gives_them_back() -> None:
    assert user(parameters={"words": ("a", "b"), 3: None}).parameters == {"words": ["a", "b"], "3": None}


@pytest.mark.parametrize(
    ("counted", "problem"),
    [
        ([], "has masked_logits [], not one count for each of 2 rows"),
        ([3, -1], "has masked_logits [3, -1], not one count for each of 2 rows"),
        (7, "failed to give its masked logits: TypeError: 'int' object is not iterable"),
        (["x", "y"], "failed to give its masked logits: ValueError: invalid literal for int() with base 10: 'x'"),
    ],
    ids=["none", "negative", "number", "texts"],
)
def test_masked_logits_that_are_no_counts(counted: Any, problem: str) -> None:
    batch = user(batch=Batch(masked_logits=counted)).start([], 3)
    batch(ZEROS, torch.zeros(2, WIDTH))
    assert failure(lambda: batch.masked_logits) == f"the processor 'mine:make' {problem}"


def test_masked_logits_that_are_counts() -> None:
    batch = user(batch=Batch(masked_logits=torch.tensor([3, 4]))).start([], 3)
    batch(ZEROS, torch.zeros(2, WIDTH))
    assert batch.masked_logits == [3, 4]


@pytest.mark.parametrize("batch", [None, 3])
def test_a_start_that_gives_nothing_to_call(batch: Any) -> None:
    problem = f"its start returned a {type(batch).__name__}, which cannot be called with input_ids and scores"
    assert failure(user(batch=batch).start, [], 3) == f"the processor 'mine:make' failed: {problem}"


@pytest.mark.parametrize("longest", [0, -5])
def test_a_longest_answer_of_no_tokens(longest: int) -> None:
    made = user(batch=Batch(), longest=lambda template: longest)
    assert failure(made.longest, None) == f"the processor 'mine:make' says that its longest answer has {longest} tokens"


def test_a_row_that_had_ended_is_told_from_one_that_had_not() -> None:
    def masked(row: int) -> Tensor:
        scores = torch.zeros(2, WIDTH)
        scores[row] = -math.inf
        return scores

    ids = torch.tensor([[1, 2, 3, END], [1, 2, 3, 4]])
    batch = user(verify=True, batch=Batch()).start([], 3)
    assert failure(batch, ids, masked(1)) == "the processor 'mine:make' masked all 8 tokens, at step 1, row 1"
    assert failure(batch, ids, masked(0)) == (
        "the processor 'mine:make' masked all 8 tokens, at step 1, row 0, which had ended: leave it the end token"
    )


def test_a_processor_that_tells_forced_runs_can_be_asked_for_them() -> None:
    started = jumps([3, torch.tensor(4)], masked_logits=[0, 0])
    assert isinstance(started, ForcedRuns)
    assert started.reads_tokens is True
    assert started.forced(0, 0, None) == [3, 4]
    scores = torch.zeros(2, WIDTH)
    assert started.mask(scores, places(0, 1)) is scores
    assert started.masked_logits == [0, 0]
    assert not isinstance(user(batch=Batch()).start([], 3), ForcedRuns)


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        ([8], "forces 8 at position 5 of row 1, which is no token's id"),
        ([-1], "forces -1 at position 5 of row 1, which is no token's id"),
        (
            ["x"],
            "failed to give what is forced at position 5 of row 1: TypeError: 'str' object cannot be interpreted as an "
            "integer",
        ),
    ],
    ids=["beyond", "negative", "text"],
)
def test_what_is_forced_must_be_tokens(run: Any, problem: str) -> None:
    assert failure(jumps(run).forced, 1, 5, 2) == f"the processor 'mine:make' {problem}"


@pytest.mark.parametrize(
    ("masks", "problem"),
    [
        (lambda scores: scores[:, :4], "returned scores of shape (1, 4), not (1, 8), at step 1, row 1"),
        (lambda scores: None, "returned a NoneType, not a tensor of scores, at step 1, row 1"),
        (lambda scores: scores - math.inf, "masked all 8 tokens, at step 1, row 1"),
        (lambda scores: scores * math.nan, "returned NaN or +inf among the scores, at step 1, row 1"),
    ],
    ids=["shape", "nothing", "masks", "nan"],
)
def test_masks_of_rows_at_unlike_places_are_looked_at(masks: Any, problem: str) -> None:
    started = jumps(masks=lambda scores: scores if len(scores) == 2 else masks(scores), verify=True)
    started.mask(torch.zeros(2, WIDTH), places(0, 1))
    assert failure(started.mask, torch.zeros(1, WIDTH), places(1)) == f"the processor 'mine:make' {problem}"


def test_an_error_with_a_long_text_is_told_in_one_short_line() -> None:
    text = told(ValueError("not these:\n" + "tensor([1, 2])\n" * 100), "mine:make")
    assert text.startswith("ValueError: not these: tensor([1, 2]) tensor(")
    assert text.endswith("... (1,510 characters)")
