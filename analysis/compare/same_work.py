"""Phases in which two runs do equal work, so that another time can only be the machine's.

A logits processor changes no forward: the same model reads as many rows and tokens with the same kernels, whatever was
masked before. Longer answers are more steps of the same work.
"""

from __future__ import annotations

from fractions import Fraction

from molprof.analysis.figures.run_model import Run
from molprof.common.manifest import PHASES
from molprof.common.settings import recorded

# Of `Setup`, what decides the work of a forward of given rows: settings, and what only running tells.
_FORWARD = (*recorded("forward"), "parameters", "logits_width", "gpu", "torch", "transformers")
_TOKENS = recorded("tokens")
# Kernels of a forward may differ by so much with the length of what it reads.
_TOLERANCE = Fraction(1, 100)


def same_work(first: Run, other: Run) -> frozenset[str]:
    """The phases whose work, per step for phases of steps, is equal in both runs."""
    one, two = first.shapes, other.shapes
    if one is None or two is None or one.rows != two.rows or _differ(first, other, _FORWARD):
        return frozenset()
    if _is_same_run(first, other):
        return frozenset(PHASES)
    if first.setup.own_loop:  # the forwards feed what the processor forces, of rows that come and go
        return frozenset()
    found = {"forward"} if _operations_agree(first, other) else set()
    if one.prompt_widths == two.prompt_widths:
        found |= {"tokenize", "setup", "prefill"}
    return frozenset(found)


def _is_same_run(first: Run, other: Run) -> bool:
    """One configuration twice, which wrote the same. Only one capture tells that a processor was the same code."""
    if first.setup.processor is not None and not _one_session(first, other):
        return False
    alike = first.shapes == other.shapes and first.generated_tokens == other.generated_tokens
    return alike and first.row_steps == other.row_steps and not _differ(first, other, _TOKENS)


def _one_session(first: Run, other: Run) -> bool:
    return first.session is not None and other.session is not None and first.session.id == other.session.id


def _differ(first: Run, other: Run, names: tuple[str, ...]) -> bool:
    return any(getattr(first.setup, name) != getattr(other.setup, name) for name in names)


def _operations_agree(first: Run, other: Run) -> bool:
    """The recorded forwards have as many kernels, or leaf operators without a GPU, where both are known."""
    here, there = _operations(first), _operations(other)
    return here is None or there is None or abs(here - there) <= _TOLERANCE * max(here, there)


def _operations(run: Run) -> Fraction | None:
    window, forward = run.window, run.phases["forward"]
    count = forward.leaf_operators if forward.kernels is None else forward.kernels
    prefills = run.batches if window.full else int(window.first_step == 0)
    steps = window.steps - prefills
    return None if count is None or steps <= 0 else Fraction(count, steps)
