"""The process that runs one case: JSON on standard input, a JSON answer on standard output.

    echo '{"kind": "generate", "model": "qwen"}' | python -m molprof.profiler.bench.worker

What libraries print goes to standard error. A case that hangs or crashes gives no answer; isolate.py handles that.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from molprof.common.bench_records import FAILED, NO_MEMORY, OK, UNSUPPORTED
from molprof.common.errors import MissingExtraError, MolprofError, UsageError
from molprof.common.memory import let_threads_sleep
from molprof.common.process import COOKIE, end_members
from molprof.profiler.bench.facts import FACTS, UnsupportedError

# `status`, `message` and `stack`; `figures` and `environment` of a case that is ok.
Answer = dict[str, Any]

_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)
_MESSAGE_CHARACTERS = 300
_STACK_LINES, _LINE_CHARACTERS = 40, 400


def serve(run: Callable[[dict[str, Any]], Answer]) -> None:
    """Read a request, run it in this process and write its answer; what `run` raises becomes the answer's status."""
    parser = argparse.ArgumentParser(description="Run one benchmark case: JSON in, JSON out.")
    parser.add_argument("--lifeline", type=int, metavar="FD", help="end the case when this pipe is closed")
    parser.add_argument("--stacks", metavar="FILE", help="write all stacks to FILE on a crash or SIGUSR1")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if arguments.lifeline is not None:
        _guard(arguments.lifeline)
    if arguments.stacks is not None:
        stacks = open(arguments.stacks, "w")  # noqa: SIM115  # open as long as the process lives
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    with contextlib.suppress(OSError):
        # Without memory, the kernel should kill this process, not the one that started it.
        Path("/proc/self/oom_score_adj").write_text("1000")
    sys.stdout.flush()
    with open(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        answer = answered(run, json.loads(sys.stdin.read()))
        output.write(json.dumps(answer).encode() + b"\n")


def answered(run: Callable[[dict[str, Any]], Answer], request: dict[str, Any]) -> Answer:
    """Return the answer to a request; exceptions become a status."""
    try:
        return {"status": OK, "message": None, "stack": None, **run(request)}
    except (UnsupportedError, MissingExtraError) as problem:
        return _failed(UNSUPPORTED, str(problem), None)
    except MemoryError as problem:
        return _failed(NO_MEMORY, str(problem) or "MemoryError", problem)
    except Exception as problem:
        status = NO_MEMORY if out_of_memory(problem) else FAILED
        known = isinstance(problem, MolprofError)
        return _failed(status, str(problem) if known else f"{type(problem).__name__}: {problem}", problem)


def out_of_memory(problem: BaseException | None) -> bool:
    """Whether an exception, or one of its causes, is a failed allocation: on a GPU, of torch or of Python."""
    while problem is not None:
        if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
            return True
        if isinstance(problem, RuntimeError) and any(words in str(problem) for words in _MEMORY):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _failed(status: str, message: str, problem: BaseException | None) -> Answer:
    """An answer with a short message; the stack ends with the whole message."""
    lines = None
    if problem is not None:
        text = "".join(traceback.format_exception(problem))
        lines = [line[:_LINE_CHARACTERS] for line in text.splitlines()][-_STACK_LINES:]
    # Compilers print the error in the first paragraph, then a whole command.
    said = " ".join(message.strip().split("\n\n")[0].split())
    if len(said) > _MESSAGE_CHARACTERS:
        said = said[:_MESSAGE_CHARACTERS] + "..."
    hint = {"hint": problem.hint} if isinstance(problem, UsageError) else {}
    return {"status": status, "message": said, "stack": lines, "figures": None, **hint}


def run_case(request: dict[str, Any]) -> Answer:
    """Run one case of `cases.py`, or read the machine's facts, in this process."""
    from molprof.profiler.bench.cases import SdpaCase, from_json

    if request.get("kind") == FACTS:
        from molprof.profiler.bench.facts import read_facts

        return {"figures": read_facts(request["device"], request["threads"], request.get("names", ()))}
    case = from_json(request)
    if isinstance(case, SdpaCase):
        from molprof.profiler.bench.sdpa import measure_sdpa

        return measure_sdpa(case)
    from molprof.profiler.bench.generation import measure_generation

    return measure_generation(case)


def _guard(lifeline: int) -> None:
    """Fork, and return in the child, which runs the case. The parent does nothing that can hang: it kills all processes
    of the case when the pipe is closed, forwards SIGUSR1, and ends as the child ends."""
    child = os.fork()
    if not child:
        os.close(lifeline)
        return

    ending = threading.Event()

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(lifeline, 1):
                pass
        ending.set()
        end_members(os.getpid(), os.environ.get(COOKIE, ""), spared=os.getpid())
        os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGUSR1, lambda number, frame: os.kill(child, number))
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ending.is_set():
        watcher.join()  # it has more to kill than the child, and ends this process last
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)  # its own handlers would go on
        os.kill(os.getpid(), -code)
    os._exit(code)


def main() -> None:
    let_threads_sleep()
    serve(run_case)


if __name__ == "__main__":
    main()
