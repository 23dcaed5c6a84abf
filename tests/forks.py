"""A call in a copy of this process: one of its own, without the seconds of imports."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import Any


def forked(call: Callable[..., Any], *arguments: Any) -> str:
    """What the call prints and writes. It must end well; what it changes of the process is gone with it."""
    with TemporaryFile() as out:
        if not (pid := os.fork()):
            code = 1
            try:
                for stream in (1, 2):
                    os.dup2(out.fileno(), stream)
                sys.stdout, sys.stderr = (os.fdopen(stream, "w") for stream in (1, 2))
                call(*arguments)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        ended = os.waitpid(pid, 0)[1]
        out.seek(0)
        text = out.read().decode()
    assert ended == 0, text
    return text
