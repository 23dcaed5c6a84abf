"""What a worker and whoever starts it agree on. Standard library only."""

from __future__ import annotations

from typing import Any

from molprof.common.errors import UsageError

# `status`, `message`, `stack`, `figures` and `environment`; the last two where there are any.
Answer = dict[str, Any]

OK, FAILED, HUNG, NO_MEMORY, UNSUPPORTED = STATUSES = ("ok", "failed", "hung", "out of memory", "unsupported")
# The kind of a request that asks for the machine's facts and runs nothing.
FACTS = "facts"


class UnsupportedError(UsageError):
    """The case cannot run here, which is no failure."""
