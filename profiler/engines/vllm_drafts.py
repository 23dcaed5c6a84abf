"""Drafts in vLLM: what its speculative config proposes, what becomes of it, and the masks that are filled for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from molprof.common.drafts import Drafts, MaskFills
from molprof.common.errors import UsageError
from molprof.common.settings import CaptureSettings
from molprof.profiler.recording.marks import replaced

_COUNTS = ("drafted", "accepted", "rejected_by_model", "rejected_by_grammar", "dropped", "rollbacks")


def speculative_of(settings: CaptureSettings) -> dict[str, Any] | None:
    """Return vLLM's `speculative_config`; None without drafts. Raises UsageError for text that is no JSON object."""
    if settings.speculative is None:
        return None
    try:
        config = json.loads(settings.speculative)
    except ValueError as problem:
        raise UsageError(f"--speculative is no JSON: {problem}", hint='such as {"method": "ngram"}') from None
    if not isinstance(config, dict):
        raise UsageError("--speculative is no JSON object", hint='such as {"method": "ngram"}')
    return config


@dataclass
class FillCounter:
    """Masks that vLLM fills."""

    fills: MaskFills = field(default_factory=MaskFills)

    @contextmanager
    def watching(self, manager: Any) -> Iterator[None]:
        """Count the masks that vLLM's `StructuredOutputManager` fills inside the block."""
        fill = manager.grammar_bitmask

        def filled(requests: Any, names: Any, drafts: Any) -> Any:
            first_ns = 0
            counts = [1 + len(drafts.get(name, ())) for name in names]
            firsts = set(accumulate(counts[:-1], initial=0))
            fill_rows = manager._fill_bitmasks

            def filled_rows(batch: Any) -> None:
                nonlocal first_ns
                rows, began = tuple(batch), time.perf_counter_ns()
                fill_rows(rows)
                if any(index in firsts for _, index, _ in rows):
                    first_ns += time.perf_counter_ns() - began

            more = sum(counts) - len(counts)
            with replaced(manager, "_fill_bitmasks", filled_rows) if more else nullcontext():
                began = time.perf_counter_ns()
                masks = fill(requests, names, drafts)
                ns = time.perf_counter_ns() - began
            self.fills += MaskFills(sum(counts), ns, more, ns - first_ns if more else 0)
            return masks

        with replaced(manager, "grammar_bitmask", filled):
            yield


@dataclass
class _Round:
    """The drafts of a request that its next step verifies."""

    drafted: int = 0
    allowed: int = 0  # of them, those before the first that the grammar forbids
    computed: int = 0  # of those, how many the step computes


@dataclass
class DraftCounter:
    """Drafts of the requests of a batch."""

    time_ns: int = 0  # host time of drafting
    _rounds: dict[str, _Round] = field(default_factory=dict)  # for the next step of each request
    _verified: dict[str, _Round] = field(default_factory=dict)  # by the step that runs
    _counts: dict[str, dict[str, int]] = field(default_factory=dict)

    @contextmanager
    def watching(self, core: Any) -> Iterator[None]:
        """Record drafts inside the block; call `done` after each step."""
        scheduler, executor = core.scheduler, core.model_executor
        runner = executor.driver_worker.worker.model_runner
        update, execute, propose = (
            scheduler.update_draft_token_ids,
            executor.execute_model,
            runner.propose_draft_token_ids,
        )

        def updated(draft_ids: Any) -> None:
            drafted = dict(zip(draft_ids.req_ids, map(len, draft_ids.draft_token_ids), strict=True))
            update(draft_ids)
            for name, count in drafted.items():
                request = scheduler.requests.get(name)
                if count and request is not None and not request.is_finished() and not request.is_prefill_chunk:
                    self._rounds[name] = _Round(count, len(request.spec_token_ids))

        def executed(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            for name in scheduled.num_scheduled_tokens:
                if (drafts := self._rounds.pop(name, None)) is not None:
                    drafts.computed = len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
                    self._verified[name] = drafts
            return execute(scheduled, *args, **kwargs)

        def proposed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter_ns()
            try:
                return propose(*args, **kwargs)
            finally:
                self.time_ns += time.perf_counter_ns() - began

        with (
            replaced(scheduler, "update_draft_token_ids", updated),
            replaced(executor, "execute_model", executed),
            replaced(runner, "propose_draft_token_ids", proposed),
        ):
            yield

    def done(self, name: str, tokens: int, finished: bool) -> None:
        """Record that a step gave a request so many tokens: drafts that it accepted, and one more."""
        if (drafts := self._verified.pop(name, None)) is None:
            return
        counts = self._counts.setdefault(name, dict.fromkeys(_COUNTS, 0))
        accepted = min(max(0, tokens - 1), drafts.computed)
        by_model = accepted < drafts.computed and not finished
        by_grammar = not by_model and not finished and accepted == drafts.allowed < drafts.drafted
        counts["drafted"] += drafts.drafted
        counts["accepted"] += accepted
        counts["rejected_by_model"] += by_model
        counts["rejected_by_grammar"] += by_grammar
        counts["dropped"] += drafts.drafted - accepted - by_model - by_grammar
        counts["rollbacks"] += by_model

    def of(self, name: str) -> Drafts:
        """Return the counts of a request's drafts by result."""
        return Drafts(**self._counts.get(name, dict.fromkeys(_COUNTS, 0)))
