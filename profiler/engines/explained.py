"""Failures of a pass that a setting causes, as errors that name the setting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend

from molprof.common.errors import RunError
from molprof.profiler.engines.batches import BatchPlan

# torch's kernels of scaled-dot-product attention by the names of `sdpa-NAME`.
KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# torch's message where no token of a row can be sampled.
_NO_CHOICE = "probability tensor contains"
# torch's messages, on a GPU and on a CPU, where none of the attention kernels that it may use can run.
NO_KERNEL = ("No available kernel", "No viable backend")


@contextmanager
def explained(plan: BatchPlan, attention: str) -> Iterator[None]:
    """Turns failures that a setting causes into errors that name the setting."""
    try:
        yield
    except torch.OutOfMemoryError as problem:
        raise RunError(
            f"out of GPU memory: {plan.rows} x ({plan.prompt_width} + {plan.max_new_tokens}) tokens",
            hint="a smaller --batch-size",
        ) from problem
    except RuntimeError as problem:
        if _NO_CHOICE in str(problem):
            raise RunError(
                "no token can be sampled: the scores of a row contain NaN or +inf, or are all -inf",
                hint="the cause may be the processor, a temperature near 0, or --dtype float16",
            ) from problem
        if not any(words in str(problem) for words in NO_KERNEL):
            raise
        raise RunError(
            f"the attention {attention!r} has no kernel for this model, mask, dtype and device: {problem}",
            hint="--attention sdpa lets torch choose",
        ) from problem
