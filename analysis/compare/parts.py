"""Names of the parts of a difference in wall time, in the order in which they are shown.

An id is `group` or `group.part`: a contract of the JSON. docs/comparing.md says what each part means.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from molprof.analysis.figures.model import IDLE_CAUSES
from molprof.common.manifest import BETWEEN, PHASES, STEP_PHASES

# A phase of steps has these three if both runs recorded GPU work, else `HOST` alone.
BOUNDS = ("gpu", "launch", "sync")
HOST = "host"
# Parts of phases whose work is equal in both runs: see same_work.py.
MACHINE = "machine"

# Parts that are the time of one phase outside the steps.
PHASE_PARTS = {
    "setup.template": "template",
    "setup.compile": "compile",
    "setup.tokenize": "tokenize",
    "setup.generate": "setup",
    "prefill": "prefill",
    "text": "text",
    BETWEEN: BETWEEN,
}

GROUPS = {
    "setup": "set-up",
    "prefill": "prefill",
    "tokens": "tokens",
    "steps": "rows and batching",
    "forward": "forward, per step",
    "processor": "processor, per step",
    "sampling": "sampling, per step",
    "bookkeeping": "bookkeeping, per step",
    "text": "decoding text",
    BETWEEN: "between batches",
    MACHINE: "same work, different speed: the machine",
}

PART_LABELS = {
    "setup.template": "building templates",
    "setup.compile": "compiling grammars",
    "setup.tokenize": "tokenizing prompts",
    "setup.generate": "starting generate",
    "prefill": "prefill",
    "tokens.useful": "useful tokens",
    "tokens.junk": "junk tokens",
    "tokens.runaway": "runaway tokens",
    "tokens.filler": "filler tokens",
    "steps.forced": "tokens per row and step",
    "steps.idle": "steps on finished rows",
    "steps.batching": "batching (rows per step)",
    **{
        f"{phase}.{bound}": f"{phase}: {label}"
        for phase in STEP_PHASES
        for bound, label in (
            ("gpu", "GPU busy"),
            ("launch", "launch-bound (GPU idle)"),
            ("sync", "host sync (GPU idle)"),
            (HOST, "host time"),
        )
    },
    "text": "decoding text",
    BETWEEN: "the program between batches",
    **{f"{MACHINE}.{phase}": f"{MACHINE}: {phase} at another speed" for phase in PHASES},
}

# Parts of recorded time.
RECORDED_LABELS = {
    "busy": "GPU busy",
    "outside": "outside phases",
    **{f"idle.{cause}": f"idle: {words}" for cause, words in IDLE_CAUSES.items()},
}


def group_of(part: str) -> str:
    """Return the group of a part: a key of `GROUPS`."""
    return part.split(".", 1)[0]


def in_order(parts: Iterable[str]) -> list[str]:
    """Return the parts once each, in the order in which they are shown."""
    wanted = set(parts)
    return [part for part in PART_LABELS if part in wanted]


def by_group(parts: Iterable[str]) -> dict[str, list[str]]:
    """Return the parts by group, both in the order in which they are shown."""
    return {group: list(members) for group, members in groupby(in_order(parts), key=group_of)}
