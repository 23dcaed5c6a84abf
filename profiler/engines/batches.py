"""Batches: prompts cut in their order or by expected length, and what each batch and pass wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from molprof.common.errors import UsageError
from molprof.common.text import shortened
from molprof.profiler.constraints.base import BatchProcessor
from molprof.profiler.molecules.prompts import Prompt


@dataclass(frozen=True)
class Need:
    """What one prompt needs: its own tokens, the most tokens of its answer, and the expected steps of its answer."""

    width: int
    bound: int
    length: int


@dataclass(frozen=True)
class BatchPlan:
    prompts: tuple[Prompt, ...]
    sequences: tuple[int, ...]  # number of each prompt in the run, from 0, before sorting
    max_new_tokens: int
    prompt_width: int  # columns that its prompts are padded to
    spare_rows: int = 0  # copies of the last prompt that only keep the batch's shape

    @property
    def rows(self) -> int:
        """Rows that are computed."""
        return len(self.prompts) + self.spare_rows

    @property
    def row_prompts(self) -> tuple[Prompt, ...]:
        """One prompt per row that is computed."""
        return self.prompts + self.prompts[-1:] * self.spare_rows


@dataclass(frozen=True)
class BatchResult:
    rows: tuple[tuple[int, ...], ...]  # generated ids by prompt, with the end token, without padding
    steps: int  # forwards, the prefill included
    masked_logits: tuple[int, ...] | None  # by prompt; None without a processor
    # By prompt, the number of tokens that each step appended until the row ended; None: one in each.
    appended: tuple[tuple[int, ...], ...] | None
    rows_per_step: tuple[int, ...]  # rows that each step computed, spare ones included
    host_reads: int | None  # how often the host read chosen tokens back while the batch ran; None in `generate`

    def busy_steps(self, row: int) -> int:
        """Steps until the row ended."""
        return len(self.rows[row] if self.appended is None else self.appended[row])

    def written(self, row: int, steps: int) -> tuple[int, ...]:
        """What the row had written after so many steps."""
        return self.rows[row][: steps if self.appended is None else sum(self.appended[row][:steps])]


def masked_logits(studied: BatchProcessor | None, count: int) -> tuple[int, ...] | None:
    """Logits that the processor masked, by prompt; None without one, or if it does not count them."""
    counted = None if studied is None else studied.masked_logits
    return None if counted is None else tuple(counted[:count])


@dataclass(frozen=True)
class PassResult:
    """What one pass over all batches wrote."""

    batches: tuple[BatchResult, ...]
    wall_ns: int  # the device synchronized at both ends
    compiles: int | None  # frames that torch compiled meanwhile; None if it does not say
    compile_ns: int | None


def check_context(prompts: Sequence[Prompt], needs: Sequence[Need], context: int | None) -> None:
    """Raises UsageError where a prompt and its answer need more tokens than the model's context."""
    for prompt, need in zip(prompts, needs, strict=True):
        if context is not None and need.width + need.bound > context:
            what = "molecule" if prompt.molecule is not None else "prompt"
            remedy = "leave it out" if prompt.molecule is not None else "shorten it, or leave it out"
            needed = f"needs {need.width:,} + {need.bound:,} tokens (prompt + answer) of {context:,}"
            if need.width >= context:
                hint = f"the {what} alone fills the model's context: {remedy}"
            else:
                hint = f"leave the {what} out, or bound its answer: --max-new-tokens {context - need.width}"
            raise UsageError(f"line {prompt.line}: {shortened(prompt.text)} {needed}", hint=hint)


def cut(
    prompts: Sequence[Prompt],
    needs: Sequence[Need],
    batch_size: int,
    sort: bool = False,
    one_width: bool = False,
    full_rows: bool = False,
) -> list[BatchPlan]:
    """Batches of at most `batch_size` prompts.

    Args:
        sort: by expected length, so that few rows idle; the longest first, so that a lack of memory shows at once.
        one_width: all batches share the widest prompt and the highest bound, and so one cache shape.
        full_rows: the last batch gets spare rows, so that all have one shape.
    """
    order = list(range(len(prompts)))
    if sort:
        order.sort(key=lambda index: -needs[index].length)
    plans = []
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        sized = range(len(prompts)) if one_width else chosen
        plans.append(
            BatchPlan(
                prompts=tuple(prompts[index] for index in chosen),
                sequences=tuple(chosen),
                max_new_tokens=max(needs[index].bound for index in sized),
                prompt_width=max(needs[index].width for index in sized),
                spare_rows=batch_size - len(chosen) if full_rows and start > 0 else 0,
            )
        )
    return plans


def fitted(plans: Sequence[BatchPlan], multiple: int, cache_length: int | None, context: int | None) -> list[BatchPlan]:
    """The batches with prompts padded to a multiple of `multiple` tokens.

    Raises UsageError where one is longer than the model's context, or than a static cache of `cache_length` columns.
    """
    wide = [replace(plan, prompt_width=-(-plan.prompt_width // multiple) * multiple) for plan in plans]
    for plan in wide:
        columns = plan.prompt_width + plan.max_new_tokens
        needed = f"{plan.prompt_width:,} + {plan.max_new_tokens:,} tokens (prompt + answer) of a batch"
        if multiple > 1 and context is not None and columns > context:
            raise UsageError(
                f"padded to a multiple of {multiple:,}, the {needed} exceed the context of {context:,}",
                hint="a smaller --pad-multiple or --max-new-tokens",
            )
        if cache_length is not None and columns > cache_length:
            raise UsageError(
                f"--max-cache-length {cache_length:,} is less than the {needed}",
                hint=f"--max-cache-length {columns}, or a smaller --max-new-tokens",
            )
    return wide
