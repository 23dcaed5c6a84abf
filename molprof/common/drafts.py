"""Tokens that are drafted, by result, and the masks that are filled for them."""

from __future__ import annotations

from msgspec import Struct


class Drafts(Struct, frozen=True):
    """Tokens that an assistant drafted for one prompt, by result."""

    drafted: int  # the sum of the next four
    accepted: int
    # rejected_by_model, rejected_by_grammar: the first of a round's drafts that was not accepted, at most one. By the
    # grammar: the processor forbids it; by the model: it chose another
    rejected_by_model: int
    rejected_by_grammar: int
    dropped: int  # drafts after a rejected one, or after the end of the answer
    rollbacks: int  # rounds after which the cache and the states of the processor went back


class MaskFills(Struct, frozen=True):
    """Masks of a pass: one for each constrained row of a step, and one more for each draft that the step verifies.

    The first of a row and step would be there without drafts; the others are filled for drafts alone.
    """

    masks: int = 0
    ns: int = 0  # host time of filling all of them
    draft_masks: int = 0
    draft_ns: int = 0  # of that, for drafts alone: with following the drafts through the grammar, and back

    def __add__(self, other: MaskFills) -> MaskFills:
        return MaskFills(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))
