"""transformers' continuous batching as an engine: prompts are requests, which join and leave the steps.

A pass is one batch, however many prompts it has. The steps run in a thread of transformers. A step has the marks of
`generate`:

- `forward` begins where transformers picks the requests of the step, builds their inputs and, for a processor, asks for
  their states. The prompts of requests that join are part of any step's forward.
- `processor` and `sampling` begin where the logits processors are called.
- `bookkeeping` waits for the device and reads the tokens.
"""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from molprof.common.errors import RunError, UsageError
from molprof.common.process import interrupts_held
from molprof.common.settings import CaptureSettings
from molprof.profiler.constraints.base import STATES, BatchProcessor, has
from molprof.profiler.engines import BatchPlan, BatchResult
from molprof.profiler.engines.backends import explained
from molprof.profiler.engines.generate import token_choice
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.recording.marks import Marks

_PAGE = 256  # tokens, transformers' default
try:
    from transformers import ContinuousBatchingConfig
    from transformers.generation.continuous_batching import cb_logits_processors as processing
    from transformers.generation.continuous_batching.continuous_api import BackgroundThreadStatus

    ContinuousBatchingConfig(page_size=_PAGE)
except (ImportError, TypeError) as problem:
    raise UsageError(
        f"transformers {transformers.__version__} has no continuous batching, or another one than 5.23",
        hint="pip install --upgrade transformers",
    ) from problem

# A step reads at most so many tokens of prompts, unless one prompt has more.
_STEP_TOKENS = 2048


class Continuous:
    """The engine `continuous`."""

    def __init__(self, loaded: LoadedModel, settings: CaptureSettings) -> None:
        self._loaded, self._settings = loaded, settings

    def generate(self, number: int, plan: BatchPlan, studied: BatchProcessor | None, marks: Marks) -> BatchResult:
        """Generate a batch by continuous batching."""
        if studied is not None and not has(studied, STATES):
            raise UsageError(
                f"the processor {self._settings.processor!r} has no table of states, which continuous batching takes",
                hint="--processor vectorized, truncate, grammar or table; or one with `state` and `allow`",
            )
        with marks.setup("tokenize", number):
            prompts = self._loaded.tokenizer([prompt.text for prompt in plan.prompts])["input_ids"]
        # An interrupt ends the thread's steps first: raised inside `join`, it would leave the thread running.
        with explained(plan, self._settings.attention), _quiet(), _frozen(), interrupts_held() as noted:
            marks.begin(number)
            manager = self._manager(number, plan, studied, marks, prompts)
            steps = _RequestSteps(manager, prompts, self._settings.arrivals, marks, noted)
            try:
                manager.start()
                # Now, while no request has ended: the thread ends with the last one, and nobody waits for it to look.
                manager.background_thread_status.request_stop(BackgroundThreadStatus.FLUSH_AND_STOP, 0)
                manager._generation_thread.join()
                if (problem := manager.background_thread_status.fatal_error) is not None:
                    raise problem
            except BaseException:
                manager.stop(hard_stop=True)
                raise
            with marks.setup("text", number):
                manager.stop()
                rows = steps.answers()
                self._loaded.tokenizer.batch_decode(rows, skip_special_tokens=False)
        appended: list[list[int]] = [[] for _ in rows]
        for step, chosen in enumerate(steps.rows):
            for row, writes in chosen.items():
                appended[row] += [0] * (step - len(appended[row])) + [int(writes)]
        return BatchResult(
            rows=tuple(map(tuple, rows)),
            rows_per_step=tuple(map(len, steps.rows)),
            appended=tuple(map(tuple, appended)),
            joined=tuple(
                next((n for n, step in enumerate(steps.rows) if row in step), len(steps.rows))
                for row in range(len(rows))
            ),
            arrived=tuple(steps.arrived) if self._settings.arrivals else None,
            host_reads=len(steps.rows),
        )

    def _manager(
        self, number: int, plan: BatchPlan, studied: Any, marks: Marks, prompts: Sequence[Sequence[int]]
    ) -> Any:
        """Return transformers' manager, with room for all requests of a step, so that none is evicted."""
        settings, widths = self._settings, list(map(len, prompts))
        most = min(settings.batch_size, len(prompts))
        model: Any = self._loaded.model
        manager = model.init_continuous_batching(
            generation_config=GenerationConfig(
                max_new_tokens=plan.max_new_tokens,
                eos_token_id=sorted(self._loaded.eos),
                pad_token_id=self._loaded.target.pad,
                **token_choice(settings),
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=_PAGE,
                num_blocks=most * -(-(max(widths) + plan.max_new_tokens) // _PAGE),
                max_batch_tokens=max(most, max(widths), min(sum(widths), _STEP_TOKENS)),
                max_requests_per_batch=most,
                safety_margin=0.0,
                # A step's states are known when its tokens are, and marks are called where Python runs.
                use_async_batching=False,
                use_cuda_graph=False,
                auto_switch_to_flash=False,
                seed=settings.seed * 1_000_003 + number,
            ),
        )
        masks = [] if studied is None else [_States(studied)]
        processors = [_Mark(marks.processor), *masks, _Mark(marks.sampling), *manager.logit_processor.logits_processor]
        manager.logit_processor = processing.ContinuousBatchingLogitsProcessorList(LogitsProcessorList(processors))
        manager.logit_processor.tensors_required = len(masks)
        manager.warmup()  # makes the cache
        for prompt in prompts:
            manager.add_request(list(prompt))
        return manager


class _RequestSteps:
    """Adds requests to a manager as they arrive, calls marks in its thread, and records the rows of each step."""

    def __init__(
        self,
        manager: Any,
        prompts: Sequence[Sequence[int]],
        arrivals: float | None,
        marks: Marks,
        interrupts: Sequence[int],
    ) -> None:
        self.rows: list[dict[int, bool]] = []  # by step, whether it chooses a token of each row; not of half a prompt
        self.arrived: list[int] = []  # by row, the step before which it came
        self._manager, self._marks, self._arrivals, self._interrupts = manager, marks, arrivals, interrupts
        self._requests = [manager.input_queue.get_nowait() for _ in prompts]
        self._numbers = {request.request_id: row for row, request in enumerate(self._requests)}
        self._waiting = deque(self._requests)
        self._stopped = self._ended = False
        batches = manager.batch_processor
        self._prepare = self._wrap(batches, "prepare_next_batch", self._prepared)
        self._retrieve = self._wrap(batches.inputs_and_outputs, "retrieve_device_outputs", self._retrieved)
        self._update = self._wrap(batches, "update_batch", self._updated)

    def answers(self) -> list[list[int]]:
        """Return the tokens of each row. Raises RunError if one did not end."""
        for row, request in enumerate(self._requests):
            if not self._stopped and request.status.name != "FINISHED":
                raise RunError(f"the request of prompt {row} did not end: {request.error or request.status.name}")
        return [list(request.generated_tokens) for request in self._requests]

    @staticmethod
    def _wrap(owner: Any, name: str, by: Callable[[], Any]) -> Callable[[], Any]:
        original: Callable[[], Any] = getattr(owner, name)
        setattr(owner, name, by)
        return original

    def _pending(self) -> bool:
        return self._manager.batch_processor.has_pending_requests() or not self._manager.input_queue.empty()

    def _prepared(self) -> bool:
        """Prepare the next step: add due requests and mark its forward; return True if there is one."""
        while self._waiting and (
            self._arrivals is None
            or len(self._requests) - len(self._waiting) <= len(self.rows) * self._arrivals
            or not self._pending()  # nothing waits for a step that nobody needs
        ):
            self._manager.input_queue.put(self._waiting.popleft())
            self.arrived.append(len(self.rows))
        if self._stopped or not self._pending():
            if not self._ended:
                self._ended = True
                self._marks.end()
            return bool(self._prepare())
        self._marks.forward()
        if not self._prepare():
            raise RunError("continuous batching found no room for a request")
        chosen = self._manager.batch_processor.inputs_and_outputs.requests_in_batch
        self.rows.append({self._numbers[item.state.request_id]: item.has_new_token for item in chosen})
        return True

    def _retrieved(self) -> None:
        """Mark the bookkeeping, then retrieve the step's outputs."""
        self._marks.bookkeeping()
        self._retrieve()

    def _updated(self) -> None:
        """Update the batch, and stop the manager when enough steps are recorded."""
        self._update()
        if self._marks.enough() or self._interrupts:
            self._stopped = True
            self._manager.background_thread_status.request_stop(BackgroundThreadStatus.HARD_STOP, 0)


class _Mark(LogitsProcessor):
    supports_continuous_batching = True

    def __init__(self, mark: Callable[[], None]) -> None:
        self._mark = mark

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._mark()
        return scores


class _States(processing.ContinuousBatchingLogitsProcessor):
    """A processor that gives transformers one state per chosen token, and masks by the processor's table."""

    def __init__(self, studied: Any) -> None:
        self.supported_kwargs, self.ignored_kwargs = {}, ()
        self._studied = studied

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        int32_tensor.fill_(0)

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> Tensor:
        states = []
        for request in requests_with_new_token:
            row, tokens = int(request.state.request_id.removeprefix("req_")), request.state.generated_tokens
            states.append(self._studied.state(row, len(tokens), tokens[-1] if tokens else None))
        return torch.tensor(states, dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        allowed: Tensor = self._studied.allow(scores, tensor_arg[: len(scores)])
        return allowed


@contextmanager
def _frozen() -> Iterator[None]:
    """Freeze garbage collection, since a stopping manager collects garbage, which takes long after a large load."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log lines of transformers' thread, whose failures are raised."""
    log = logging.getLogger("ContinuousBatchingLogger")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
