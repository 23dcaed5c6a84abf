"""Runs the cases of a sweep or benchmark in random order, each in its own process, storing each result at once."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from molprof.common.bench_records import LOGS, WAITING
from molprof.common.memory import available_bytes
from molprof.common.process import NO_MEMORY, OK, UNSUPPORTED, Ending
from molprof.common.process.guarded import Limits, call
from molprof.common.values import now
from molprof.profiler.bench.cases import Case, LineCase, MasksCase, SdpaCase, case_id, from_json, to_json
from molprof.profiler.bench.facts import CaseFacts, unsupported
from molprof.profiler.bench.masks import measure_each
from molprof.profiler.jobs.results_file import ResultsFile

# Of the memory that is free when the cases begin.
_MEMORY_SHARE = 0.8
_RUN_LINE = "molprof.cli:run_case"


@dataclass(frozen=True)
class SchedulePlan:
    """The cases to run, their repeats, and their order."""

    cases: tuple[Case, ...]  # each once
    repeats: int  # processes per case
    seed: int  # for the random order, another one for each repeat
    limits: Limits
    resume: bool = False  # leave out results that the file has of this environment
    retry: bool = False  # with `resume`: leave out only those that are ok
    bisect: bool = True  # search for the largest batch that fits if a case is out of memory
    command: tuple[str, ...] = ()  # the command line, for the record
    done: Container[tuple[str, int]] = ()  # cases, and which process of each, to leave out
    measure: str = f"{__name__}:measure"  # measures a case in a process of its own, `module:function`


@dataclass(frozen=True)
class Turn:
    """One process of a case."""

    case: str  # its id
    label: str  # for people
    repeat: int = 0


@dataclass(frozen=True)
class FinishedTurn:
    """A turn that has ended."""

    turn: Turn
    ending: Ending
    number: int  # number, of: its place among the turns to run
    of: int
    rest_s: float | None  # estimated seconds for the remaining ones; None: unknown


def default_memory() -> int | None:
    """Return the default memory limit of a case: a share of what is free now."""
    available = available_bytes()
    return None if available is None else int(_MEMORY_SHARE * available)


def turns(plan: SchedulePlan) -> Iterator[Turn]:
    """Yield every case once in random order, then again in another order."""
    for repeat in range(plan.repeats):
        shuffled = list(plan.cases)
        random.Random(f"{plan.seed}/{repeat}").shuffle(shuffled)
        yield from (Turn(case_id(case), case.label(), repeat) for case in shuffled)


def run_plan(
    plan: SchedulePlan, facts: CaseFacts | None, results: ResultsFile, begin: Callable[[str, int, int], None]
) -> Iterator[FinishedTurn]:
    """Run the cases of a plan, one process at a time; each result is in the file before it is yielded.

    A case that was not ok is not repeated. An interrupt ends the running case, of which nothing is kept.

    Args:
        facts: what the machine can run; None: that is left to each case.
        begin: called before each process with the label of its case, its number and how many there are.
    """
    environment = "" if facts is None else results.environment(facts.environment)
    results.write(
        {
            "record": "run", "started": now(), "command": list(plan.command), "environment": environment,
            "cases": len(plan.cases), "repeats": plan.repeats, "seed": plan.seed,
            "limit_s": plan.limits.seconds if math.isfinite(plan.limits.seconds) else None,
            "memory_limit_bytes": plan.limits.memory_bytes,
        }
    )  # fmt: skip
    cases = {case_id(case): case for case in plan.cases}
    reasons = {name: unsupported(case, facts) for name, case in cases.items()}
    first = [Turn(name, case.label()) for name, case in cases.items() if reasons[name] is not None]
    waiting = [
        turn
        for turn in (*first, *(turn for turn in turns(plan) if reasons[turn.case] is None))
        if (turn.case, turn.repeat) not in plan.done
        and not (plan.resume and results.has(turn.case, environment, turn.repeat, plan.retry))
    ]
    for turn in waiting:
        if isinstance(case := cases[turn.case], LineCase):
            results.write(record_of(case, turn.repeat, environment, Ending(WAITING)))
    fits: dict[str, int] = {}

    def run(turn: Turn) -> Ending:
        case, reason = cases[turn.case], reasons[turn.case]
        ending = _ending(case, turn.repeat, plan) if reason is None else Ending(UNSUPPORTED, reason)
        fit: dict[str, Any] = {}
        key = _without_batch(case)
        if ending.state == OK and key is not None:
            fits[key] = max(fits.get(key, 0), case.rows)
        if ending.state == NO_MEMORY and plan.bisect and case.rows > 1:
            largest = fits.get(key or "", 0)
            fit = _largest_fit(case, plan, largest if largest < case.rows else 0)
        measured_in = (ending.value or {}).get("environment")
        where = environment if measured_in is None else results.environment(measured_in)
        results.write(record_of(case, turn.repeat, where, ending) | fit)
        if fit:
            most = f"{'the largest' if fit['fit_exact'] else 'a'} batch that fits: {fit['largest_batch']}"
            return replace(ending, message=f"{ending.message}; {most}")
        return ending

    return _each(waiting, run, begin)


def _each(
    waiting: list[Turn], run: Callable[[Turn], Ending], begin: Callable[[str, int, int], None]
) -> Iterator[FinishedTurn]:
    """Run the turns in their order, and yield each when it has ended."""
    took, number = dict[str, list[float]](), 0
    while waiting:
        turn = waiting.pop(0)
        number += 1
        begin(turn.label, number, number + len(waiting))
        ending = run(turn)
        if ending.state != OK:
            waiting = [other for other in waiting if other.case != turn.case]
        if ending.state != UNSUPPORTED:
            took.setdefault(turn.case, []).append(ending.seconds)
        usual = statistics.median([time for times in took.values() for time in times] or [0.0])
        rest = sum(statistics.median(took.get(other.case, [usual])) for other in waiting)
        yield FinishedTurn(turn, ending, number, number + len(waiting), rest if took else None)


def record_of(case: Case, repeat: int, environment: str, ending: Ending, **more: Any) -> dict[str, Any]:
    """Return the line of a case's process for the file of results."""
    if isinstance(case, LineCase):
        names: dict[str, Any] = {"output": case.output(repeat), "options": dict(case.options)}
        names["arguments"] = list(case.arguments)
    else:
        names = {"figures": (ending.value or {}).get("figures")}
    return {
        "record": "result", "case": case_id(case), "label": case.label(), "settings": to_json(case),
        "environment": environment, "repeat": repeat, "status": ending.state, "message": ending.message,
        "stack": ending.stack, "ended": now(), "wall_s": round(ending.seconds, 3), **names, **more,
    }  # fmt: skip


def _ending(case: Case, repeat: int, plan: SchedulePlan) -> Ending:
    """Run a process of a case, with the output of a command line in `logs/`."""
    if isinstance(case, MasksCase):
        return measure_each(case, plan.limits)
    if isinstance(case, SdpaCase):
        return call(plan.measure, to_json(case), limits=plan.limits)
    output = Path(case.folder, case.output(repeat))
    log = Path(case.folder, LOGS, f"{output.name.removesuffix(case.ending)}.log")
    log.parent.mkdir(exist_ok=True)
    return call(_RUN_LINE, *case.line(output), limits=plan.limits, log=log)


def _largest_fit(case: Case, plan: SchedulePlan, low: int) -> dict[str, Any]:
    """Return the largest batch that fits, by bisection between `low`, which fits, and the case's own, which does not.

    A try is one untimed pass of one batch, which takes the memory that a timed one takes. `fit_exact` is false if a
    try ended in another way than ok or out of memory, so that a larger batch may fit.
    """
    tries: list[dict[str, Any]] = []
    began, high = time.monotonic(), case.rows
    while high - low > 1:
        size = (low + high) // 2
        with TemporaryDirectory(prefix="molprof-") as folder:
            tried = case.of_batch(size)
            tried = replace(tried, folder=folder) if isinstance(tried, LineCase) else tried
            state = _ending(tried, 0, plan).state
        tries.append({"batch": size, "status": state})
        low, high = (size, high) if state == OK else (low, size)
    return {
        "largest_batch": low,
        "fit_exact": all(item["status"] in (OK, NO_MEMORY) for item in tries),
        "fit_tries": tries,
        "fit_s": round(time.monotonic() - began, 3),
    }


def _without_batch(case: Case) -> str | None:
    """Return a key that is equal for cases that differ only in their batch; None if the batch is not full."""
    if isinstance(case, MasksCase) or (isinstance(case, LineCase) and not (case.settings and case.settings.fill)):
        return None
    return repr(to_json(case.of_batch(1)))


def measure(raw: dict[str, Any]) -> dict[str, Any]:
    """Measure the case of a JSON object, and return its figures and environment."""
    from molprof.profiler.bench.sdpa import measure_sdpa

    case = from_json(raw)
    assert isinstance(case, SdpaCase)
    return measure_sdpa(case)
