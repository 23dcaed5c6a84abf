"""Tries something in a process of its own, with a time limit: what crashes or hangs there harms nobody here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

# What the other process says on its last line; libraries print before it as they like.
_MARK = "molprof-probe:"
_CODE = """
import json, sys, warnings
sys.path[:] = json.loads(sys.argv[1])
warnings.simplefilter("always")
try:
    with warnings.catch_warnings(record=True) as caught:
        from {module} import {function}
        answer = {{"value": {function}(*sys.argv[2:])}}
except ModuleNotFoundError as error:
    answer = {{"problem": str(error), "missing": error.name}}
except BaseException as error:
    answer = {{"problem": f"{{type(error).__name__}}: {{error}}"}}
answer["warnings"] = [str(item.message) for item in caught]
sys.stdout.write("\\n{mark}" + json.dumps(answer))
sys.stdout.flush()
"""


@dataclass(frozen=True)
class Answer:
    """What came of a probe.

    Attributes:
        value: what it returned, None where it failed.
        problem: why it failed, on one line; None where it did not.
        missing: the module that is not installed, where that is why.
        warnings: what libraries remarked.
    """

    value: dict[str, Any] | None = None
    problem: str | None = None
    missing: str | None = None
    warnings: tuple[str, ...] = ()


def ask(target: str, *arguments: str, limit_s: float) -> Answer:
    """Calls a function in another process.

    Args:
        target: `package.module:function`; it takes texts and returns what JSON can hold.
        limit_s: seconds until the other process is killed.
    """
    module, _, function = target.partition(":")
    code = _CODE.format(module=module, function=function, mark=_MARK)
    command = [sys.executable, "-c", code, json.dumps(sys.path), *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Answer(problem=f"no answer within {limit_s:g} s")
    last = done.stdout.rpartition("\n")[2]
    if not last.startswith(_MARK):
        return Answer(problem=_ending(done.returncode, done.stderr))
    answer = json.loads(last.removeprefix(_MARK))
    problem = answer.get("problem")
    return Answer(
        answer.get("value"),
        None if problem is None else " ".join(problem.split()),
        answer.get("missing"),
        tuple(answer["warnings"]),
    )


def _ending(code: int, errors: str) -> str:
    if code < 0:
        return f"crashed: {signal.Signals(-code).name}"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"ended with code {code}"
