"""Drafts of vLLM are counted by result: forbidden by the grammar, rejected by the model, accepted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from molprof.common.drafts import Drafts
from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.engines.vllm_drafts import DraftCounter, FillCounter, speculative_of


def core(allowed: int) -> Any:
    """VLLM's parts that are looked at; its grammar allows so many drafts of a request."""
    request = SimpleNamespace(spec_token_ids=[], is_finished=lambda: False, is_prefill_chunk=False)

    def update(found: Any) -> None:
        request.spec_token_ids = found.draft_token_ids[0][:allowed]

    runner = SimpleNamespace(propose_draft_token_ids=lambda: None)
    worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
    return SimpleNamespace(
        scheduler=SimpleNamespace(requests={"a": request}, update_draft_token_ids=update),
        model_executor=SimpleNamespace(driver_worker=worker, execute_model=lambda scheduled: None),
    )


@pytest.mark.parametrize(
    ("allowed", "computed", "tokens", "finished", "expected"),
    [
        (4, 4, 5, False, Drafts(4, 4, 0, 0, 0, 0)),  # all, and a token of the model
        (4, 4, 3, False, Drafts(4, 2, 1, 0, 1, 1)),
        (2, 2, 3, False, Drafts(4, 2, 0, 1, 1, 0)),
        (2, 2, 1, False, Drafts(4, 0, 1, 0, 3, 1)),  # the model chose otherwise before
        (0, 0, 1, False, Drafts(4, 0, 0, 1, 3, 0)),
        (4, 2, 3, False, Drafts(4, 2, 0, 0, 2, 0)),  # no room for more
        (4, 4, 3, True, Drafts(4, 2, 0, 0, 2, 0)),  # the answer ended
    ],
)
def test_what_becomes_of_a_round(allowed: int, computed: int, tokens: int, finished: bool, expected: Drafts) -> None:
    parts, counter = core(allowed), DraftCounter()
    with counter.watching(parts):
        parts.scheduler.update_draft_token_ids(SimpleNamespace(req_ids=["a"], draft_token_ids=[[1, 2, 3, 4]]))
        scheduled = SimpleNamespace(
            num_scheduled_tokens={"a": 1 + computed}, scheduled_spec_decode_tokens={"a": [0] * computed}
        )
        parts.model_executor.execute_model(scheduled)
        counter.done("a", tokens, finished)
    found = counter.of("a")
    assert found == expected
    rejected = found.rejected_by_model + found.rejected_by_grammar
    assert found.drafted == found.accepted + rejected + found.dropped
    assert counter.of("b") == Drafts(0, 0, 0, 0, 0, 0)


class Manager:
    """What of vLLM's StructuredOutputManager is looked at."""

    def __init__(self) -> None:
        self.filled: list[int] = []

    def _fill_bitmasks(self, batch: Any) -> None:
        self.filled += [index for _, index, _ in batch]

    def grammar_bitmask(self, requests: Any, names: list[str], drafts: dict[str, list[int]]) -> int:
        count = len(names) + sum(len(drafts.get(name, ())) for name in names)
        for index in range(count):
            self._fill_bitmasks(((None, index, True),))
        return count


def test_masks_of_draft_positions_are_counted_apart() -> None:
    manager, counter = Manager(), FillCounter()
    with counter.watching(manager):
        assert manager.grammar_bitmask({}, ["a", "b"], {}) == 2
        assert manager.grammar_bitmask({}, ["a", "b"], {"a": [1, 2, 3], "c": [4]}) == 5
    fills = counter.fills
    assert (fills.masks, fills.draft_masks) == (7, 3)
    assert 0 < fills.draft_ns < fills.ns
    assert manager.filled == [0, 1, 0, 1, 2, 3, 4]
    assert "grammar_bitmask" not in vars(manager)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_what_is_no_config(text: str) -> None:
    with pytest.raises(UsageError, match="--speculative is no JSON"):
        speculative_of(CaptureSettings("qwen", engine="vllm", speculative=text))
