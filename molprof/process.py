"""A command line of molprof as a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

# `-m` and `-c` by themselves look into the working directory first, where a checkout has a folder `molprof` that is
# only a part of the package: the other process imports what this one would.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from molprof.cli import main; main()"


def command_line(arguments: Sequence[str]) -> list[str]:
    """What to start for `molprof ARGUMENTS` with this process's Python and packages."""
    return [sys.executable, "-c", _START, json.dumps(sys.path), *arguments]
