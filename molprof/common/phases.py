"""The phases of a run, in the order in which they occur."""

from __future__ import annotations

# Before the first step of a batch; `setup` is `generate` before it: checks, KV cache.
SETUP_PHASES = ("template", "tokenize", "setup")
# Of each decode step. The first step of a batch has `prefill` in place of `forward`.
STEP_PHASES = ("forward", "processor", "sampling", "bookkeeping")
# `text` moves the answer to the host and decodes it.
PHASES = (*SETUP_PHASES, "prefill", *STEP_PHASES, "text")
