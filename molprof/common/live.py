"""Marks for a program's own loop: steps, phases, tokens. Without a recording, each call does nothing.

Imports neither torch nor numpy, so that a program can keep these calls where molprof records nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar, cast

from molprof.common.errors import UsageError
from molprof.common.manifest import STEP_PHASES

T = TypeVar("T", bound=Callable[..., Any])


class LoopListener(Protocol):
    """A recording that receives the marks of a program's loops."""

    def step(self, prompts: Any, model: Any) -> AbstractContextManager[None]:
        """Open the block of one step."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Open the block of one phase."""

    def tokens(self, ids: Any, sequences: Any) -> None:
        """Receive the tokens of a step."""

    def watched(self, name: str) -> None:
        """Note that a processor of this class is about to be called, in its phase."""


class _Active:
    """The running recording, and the function that begins one at the first marked step."""

    loop: LoopListener | None = None
    begin: Callable[[], None] | None = None
    off: Callable[[str], None] | None = None


_active = _Active()


def begin_with(begin: Callable[[], None] | None) -> None:
    """Set the function that begins a recording at the first step."""
    _active.begin = begin


def switch_off(heard: Callable[[str], None] | None) -> None:
    """Make watched processors return their scores unchanged, and call `heard` with each one's name; None: end that."""
    _active.off = heard


def step(prompts: Any = None, model: Any = None) -> AbstractContextManager[None]:
    """Mark a step of your own decoding loop: `with molprof.step():` around all that it does.

    Its time is in the phase `forward`, of the first step `prefill`, until a `phase` begins in it.

    Args:
        prompts: token ids of the prompts, a tensor or lists of shape (rows, width), in the first step of a batch. A
            step with prompts begins a new batch.
        model: the transformers model that runs, for the report; in the first step.
    """
    if _active.loop is None and _active.begin is not None:
        begin, _active.begin = _active.begin, None
        begin()
    return nullcontext() if _active.loop is None else _active.loop.step(prompts, model)


def phase(name: str) -> AbstractContextManager[None]:
    """Mark a phase of a step, in this order: `with molprof.phase("processor"):`, then `sampling`, `bookkeeping`.

    After a phase the next one of a step begins: what follows the processor is `sampling`, and what follows that is
    `bookkeeping`, the rest of the step. Raises UsageError for another name.
    """
    if name not in STEP_PHASES:
        raise UsageError(
            f"no phase {name!r}",
            hint=f"phases of a step are {', '.join(STEP_PHASES)}; torch.profiler.record_function names other ranges",
        )
    return nullcontext() if _active.loop is None else _active.loop.phase(name)


def tokens(ids: Any, sequences: Any = None) -> None:
    """Record the tokens that the running step chose.

    Args:
        ids: token ids by row, a tensor or lists of shape (rows,), or (rows, n) where a step makes several. They are
            read when the recording ends, so that no step waits for them: leave the tensor as it is.
        sequences: numbers of the batch's sequences that the rows belong to; None: 0, 1, 2, ... Leave out those that
            have ended.
    """
    if _active.loop is not None:
        _active.loop.tokens(ids, sequences)


def watch(processor: T) -> T:
    """Return the processor, wrapped so that a loop of your own runs it in the phase `processor`.

    Reports name it by its class.

    It is called as the processor itself, and has its attributes. In `generate` all processors are known without this.
    """
    name, call = type(processor).__name__, processor.__call__  # type: ignore[operator]
    if inspect.isfunction(processor):
        name, call = processor.__name__, processor
    try:
        call_signature = inspect.signature(call)
    except (TypeError, ValueError):  # of code that is not Python
        call_signature = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])

    class Watched:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            loop = _active.loop
            if _active.off is not None and (scores := _scores(call_signature, args, kwargs)) is not None:
                _active.off(name)
                return scores
            if loop is None:
                return call(*args, **kwargs)
            loop.watched(name)
            with loop.phase("processor"):
                return call(*args, **kwargs)

        def __getattr__(self, attribute: str) -> Any:
            return getattr(processor, attribute)

    Watched.__name__ = Watched.__qualname__ = name
    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [self_parameter, *call_signature.parameters.values()]
    if all(item.kind is not inspect.Parameter.POSITIONAL_ONLY for item in parameters[1:]):
        parameters[0] = self_parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    Watched.__call__.__signature__ = call_signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return cast(T, Watched())


def _scores(signature: inspect.Signature, args: Any, kwargs: Any) -> Any:
    """Return a processor's scores: its argument of this name, else the second; None without either."""
    arguments = signature.bind(*args, **kwargs).arguments
    return arguments.get("scores", next(iter(list(arguments.values())[1:2]), None))


@contextmanager
def listening(loop: LoopListener) -> Iterator[None]:
    """Send the marks of loops inside the block to a recording."""
    _active.loop = loop
    try:
        yield
    finally:
        _active.loop = None
