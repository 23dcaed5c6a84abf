"""transformers' assisted decoding as an engine: a smaller model drafts tokens, which one forward of the model checks.

A step is one round. `forward` begins with the drafts and holds the forward that checks them; `processor` holds all
calls of the processor, one for each drafted token and one more. Drafts that fail take the processor back: its states
are followed on the host, which forgets those behind the last token that is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from molprof.common.drafts import Drafts, MaskFills
from molprof.common.engine_settings import AUTO
from molprof.common.errors import UsageError
from molprof.common.settings import TRAINED, CaptureSettings
from molprof.profiler.constraints.base import STATES, BatchProcessor, has
from molprof.profiler.engines import BatchPlan, BatchResult
from molprof.profiler.engines.backends import explained
from molprof.profiler.engines.generate import Generate, until_end
from molprof.profiler.models.load import LoadedModel, load
from molprof.profiler.recording.marks import Marks, before_forward, replaced


class Assisted(Generate):
    """The engine `assisted`, for batches of one sequence."""

    def __init__(self, loaded: LoadedModel, settings: CaptureSettings) -> None:
        super().__init__(loaded, settings)
        changes: dict[str, Any] = {"model": settings.assistant, "assistant": None, "engine": AUTO, "free_drafts": False}
        self._assistant = load(dataclasses.replace(settings, **changes, size=None, weights=TRAINED, tokenizer=None))
        widths = {item.target.logits_width for item in (loaded, self._assistant)}
        if self._assistant.target.vocabulary != loaded.target.vocabulary or len(widths) > 1:
            raise UsageError(
                f"the assistant {settings.assistant!r} has another vocabulary than {settings.model!r}",
                hint="an assistant of the same family",
            )

    def generate(self, number: int, plan: BatchPlan, studied: BatchProcessor | None, marks: Marks) -> BatchResult:
        """Generate a batch with an assistant."""
        if studied is not None and not has(studied, STATES):
            raise UsageError(
                f"the processor {self._settings.processor!r} has no table of states, which drafts go back in",
                hint="--processor vectorized, truncate, grammar or table",
            )
        loaded, model, assistant = self._loaded, self._loaded.model, self._assistant.model
        with marks.setup("tokenize", number):
            encoded = loaded.tokenizer([plan.prompts[0].text], return_tensors="pt").to(model.device)
        width = encoded["input_ids"].shape[1]
        rounds = _Rounds(marks, studied, width)
        drafts = functools.partial(rounds.draft, assistant.generate, self._settings.free_drafts)
        with (
            explained(plan, self._settings.attention),
            before_forward(model, rounds.begin),
            replaced(assistant, "generate", drafts),
        ):
            marks.begin(number)
            output: Any = model.generate(  # type: ignore[operator]
                **{name: encoded[name] for name in ("input_ids", "attention_mask")},
                generation_config=self._config(plan.max_new_tokens),
                logits_processor=LogitsProcessorList([rounds]),
                stopping_criteria=StoppingCriteriaList([_End(rounds)]),
                assistant_model=assistant,
            )
            marks.end()
        with marks.setup("text", number):
            answer = until_end(output[0, width:].tolist(), loaded.eos)
            loaded.tokenizer.batch_decode([list(answer)], skip_special_tokens=False)
            ends = [column - width for column in rounds.columns]
            appended = [after - before for before, after in itertools.pairwise([0, *ends])]
            outcome = rounds.found(answer, appended)
        return BatchResult(
            rows=(answer,),
            rows_per_step=(1,) * len(appended),
            appended=(tuple(appended),),
            host_reads=len(appended),
            drafts=(outcome,),
            draft_ns=rounds.draft_ns,
            mask_fills=None if studied is None else rounds.fills,
        )


class _Rounds(LogitsProcessor):
    """The processor of a batch for the model, with the drafts of each round and their results."""

    def __init__(self, marks: Marks, studied: Any, width: int) -> None:
        self.columns: list[int] = []  # after each round
        self.draft_ns = 0
        self.fills = MaskFills()
        self._marks, self._studied, self._width = marks, studied, width
        self._drafted: list[Tensor] = []  # by round, int64 (k,)
        self._scores: list[Tensor] = []  # of each drafted token, as the processor left it, (1,)
        self._begun, self._called = False, 0  # of the running round

    def begin(self, inputs: Mapping[str, Any] | None = None) -> None:
        """Begin a round, if none runs."""
        if not self._begun:
            self._begun, self._called = True, 0
            self._drafted.append(torch.empty(0, dtype=torch.int64))
            self._marks.forward()

    def draft(self, generate: Any, free: bool, **arguments: Any) -> Any:
        """Return drafts by the assistant's `generate`, which keep to the constraint unless they are `free`."""
        self.begin()
        began = time.perf_counter_ns()
        kept = [
            None if free else _Drafting(self._allow) if item is self else item for item in arguments["logits_processor"]
        ]
        arguments["logits_processor"] = LogitsProcessorList([item for item in kept if item is not None])
        output = generate(**arguments)
        self._drafted[-1] = output.sequences[0, arguments["input_ids"].shape[1] :]
        self.draft_ns += time.perf_counter_ns() - began
        return output

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._called == 0:
            self._marks.processor()
        began = time.perf_counter_ns()
        scores, drafted = self._allow(input_ids, scores), self._drafted[-1]
        ns, is_draft = time.perf_counter_ns() - began, self._called > 0
        self.fills += MaskFills(1, ns, int(is_draft), ns * is_draft)
        if self._called < len(drafted):
            self._scores.append(scores[0].index_select(0, drafted[self._called : self._called + 1].to(scores.device)))
        else:
            self._marks.sampling()
        self._called += 1
        return scores

    def end(self, columns: int) -> bool:
        """End a round, and return True to end the batch too."""
        self._marks.bookkeeping()
        self.columns.append(columns)
        self._begun = False
        return self._marks.enough()

    def found(self, answer: Sequence[int], appended: Sequence[int]) -> Drafts:
        """Return the counts of the drafts by result; `appended` is by round."""
        scores = iter(torch.cat(self._scores).tolist() if self._scores else ())
        counts = dict.fromkeys(Drafts.__struct_fields__, 0)
        position = 0
        for drafted, count in zip((ids.tolist() for ids in self._drafted), appended, strict=True):
            token_scores = list(itertools.islice(scores, len(drafted)))
            written = answer[position : position + count]
            pairs = zip(drafted, written, strict=False)
            accepted = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            refused = min(len(drafted), count) > accepted
            by_grammar = refused and token_scores[accepted] == -torch.inf
            counts["drafted"] += len(drafted)
            counts["accepted"] += accepted
            counts["rejected_by_grammar"] += by_grammar
            counts["rejected_by_model"] += refused and not by_grammar
            counts["dropped"] += len(drafted) - accepted - refused
            counts["rollbacks"] += accepted < len(drafted)
            position += count
        return Drafts(**counts)

    def _allow(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._studied is None:
            return scores
        position = input_ids.shape[1] - self._width
        state = self._studied.state(0, position, int(input_ids[0, -1]) if position else None)
        allowed: Tensor = self._studied.allow(scores, torch.tensor([state], dtype=torch.int32, device=scores.device))
        return allowed


class _Drafting(LogitsProcessor):
    """The processor for the assistant's calls, which keeps the scores of all its steps."""

    def __init__(self, allow: Any) -> None:
        self._allow = allow

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        masked: Tensor = self._allow(input_ids, scores).clone()
        return masked


class _End(StoppingCriteria):
    def __init__(self, rounds: _Rounds) -> None:
        self._rounds = rounds

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        ended = self._rounds.end(input_ids.shape[1])
        return torch.full((len(input_ids),), ended, dtype=torch.bool, device=input_ids.device)
