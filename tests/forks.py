"""Forks of the test process, which need no imports: of a call, and of processes that molprof starts."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import runpy
import stat
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import molprof
from molprof.common.process import call_line


def forked(call: Callable[..., Any], *arguments: Any) -> str:
    """What the call prints and writes. It must end well; what it changes of the process is gone with it."""
    with TemporaryFile() as out:
        if not (pid := os.fork()):
            for stream in (1, 2):
                os.dup2(out.fileno(), stream)
            end_with(functools.partial(call, *arguments))
        ended = os.waitpid(pid, 0)[1]
        out.seek(0)
        text = out.read().decode()
    assert ended == 0, text
    return text


# Commands about what a process has imported.
_ALONE = ("run", "doctor")


class Copies(subprocess.Popen[Any]):
    """A process whose Python is a copy of this one, where molprof starts one to call a function, a test a command."""

    def __init__(self, line: Sequence[str], **how: Any) -> None:
        is_command = [*line[:3]] == [sys.executable, "-m", "molprof"] and "env" not in how and line[3] not in _ALONE
        if is_command or [*line[:3]] == call_line("")[:3]:
            become = functools.partial(_become, line, how.get("env"), how.get("pass_fds", ()), how.get("preexec_fn"))
            how["preexec_fn"] = functools.partial(end_with, become)
        super().__init__(line, **how)


def _become(
    line: Sequence[str],
    environment: Mapping[str, str] | None,
    kept: Collection[int],
    prepare: Callable[[], object] | None,
) -> None:
    """`python -c CODE` or `-m MODULE` with these pipes and sockets, and no others, of the process that was copied."""
    if prepare:
        prepare()
    null = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # of the list itself
            kind = os.fstat(number).st_mode
            if number not in (0, 1, 2, *kept) and (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
                os.dup2(null, number)  # not closed: another file would get a number that an object believes its own
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads are not in the copy
    warnings.simplefilter("ignore")
    _, option, code, *sys.argv[1:] = line
    sys.argv[0] = option
    if option == "-m":
        runpy.run_path(str(Path(molprof.__file__).with_name("__main__.py")), run_name="__main__")
    else:
        exec(code, {"__name__": "__main__"})


def end_with(call: Callable[[], Any]) -> None:
    """Call it, and end this process as Python would."""
    code = 1
    atexit._clear()
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(stream, mode) for stream, mode in enumerate("rww"))
    try:
        call()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        sys.stderr.write(f"{ended}\n" if isinstance(ended.code, str) else "")
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
