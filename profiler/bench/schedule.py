"""Measure the cases of a benchmark in random order, and keep each result at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from molprof.common.memory import available_bytes
from molprof.common.process import NO_MEMORY, OK, UNSUPPORTED, Ending
from molprof.common.process.guarded import Limits, call
from molprof.common.values import now
from molprof.profiler.bench.cases import Case, GenerateCase, MasksCase, SdpaCase, case_id, from_json, to_json
from molprof.profiler.bench.facts import Facts, unsupported
from molprof.profiler.bench.masks import measure_each
from molprof.profiler.jobs.results_file import ResultsFile
from molprof.profiler.jobs.runner import Step, Turn, run_here

# Of the memory that is free when the benchmark begins.
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Plan:
    cases: tuple[Case, ...]  # each once
    repeats: int  # processes per case
    seed: int  # for the random order, another one for each repeat
    limits: Limits
    resume: bool = False  # leave out results that the file has of this environment
    retry: bool = False  # with `resume`: leave out only those that are ok
    bisect: bool = True  # search for the largest batch that fits if a case is out of memory
    command: tuple[str, ...] = ()  # the command line, for the record
    measure: str = f"{__name__}:measure"  # measures a case in a process of its own, `module:function`


def default_memory() -> int | None:
    """Return the default memory limit of a case: a share of what is free now."""
    available = available_bytes()
    return None if available is None else int(_MEMORY_SHARE * available)


def turns(plan: Plan) -> Iterator[Turn]:
    """Yield every case once in random order, then again in another order."""
    for repeat in range(plan.repeats):
        shuffled = list(plan.cases)
        random.Random(f"{plan.seed}/{repeat}").shuffle(shuffled)
        yield from (Turn(case_id(case), case.label(), repeat) for case in shuffled)


def run_plan(plan: Plan, facts: Facts, results: ResultsFile, begin: Callable[[str, int, int], None]) -> Iterator[Step]:
    """Measure the cases of a plan, as `run_here` runs turns; each result is in the file before it is yielded.

    An interrupt ends the running case, of which nothing is kept.
    """
    environment = results.environment(facts.environment)
    results.write(
        {
            "record": "run", "started": now(), "command": list(plan.command), "environment": environment,
            "cases": len(plan.cases), "repeats": plan.repeats, "seed": plan.seed,
            "limit_s": plan.limits.seconds, "memory_limit_bytes": plan.limits.memory_bytes,
        }
    )  # fmt: skip
    cases = {case_id(case): case for case in plan.cases}
    reasons = {name: unsupported(case, facts) for name, case in cases.items()}
    first = [Turn(name, case.label()) for name, case in cases.items() if reasons[name] is not None]
    waiting = [
        turn
        for turn in (*first, *(turn for turn in turns(plan) if reasons[turn.case] is None))
        if not (plan.resume and results.has(turn.case, environment, turn.repeat, plan.retry))
    ]
    fits: dict[str, int] = {}

    def measured(turn: Turn) -> Ending:
        case, reason = cases[turn.case], reasons[turn.case]
        if reason is not None:
            ending = Ending(UNSUPPORTED, reason)
        elif isinstance(case, MasksCase):
            ending = measure_each(case, plan.limits)
        else:
            ending = call(plan.measure, to_json(case), limits=plan.limits)
        fit: dict[str, Any] = {}
        if ending.state == OK and (key := _without_batch(case)) is not None:
            fits[key] = max(fits.get(key, 0), case.rows)
        if ending.state == NO_MEMORY and plan.bisect and case.rows > 1:
            known = fits.get(_without_batch(case) or "", 0)
            fit = _largest_fit(case, plan, known if known < case.rows else 0)
        value = ending.value or {}
        own = value.get("environment")
        results.write(
            {
                "record": "result", "case": turn.case, "label": turn.label, "settings": to_json(case),
                "environment": environment if own is None else results.environment(own), "repeat": turn.repeat,
                "status": ending.state, "message": ending.message, "stack": ending.stack, "ended": now(),
                "wall_s": round(ending.seconds, 3), "figures": value.get("figures"), **fit,
            }
        )  # fmt: skip
        if fit:
            most = f"{'the largest' if fit['fit_exact'] else 'a'} batch that fits: {fit['largest_batch']}"
            return replace(ending, message=f"{ending.message}; {most}")
        return ending

    return run_here(waiting, measured, begin)


def _largest_fit(case: Case, plan: Plan, low: int) -> dict[str, Any]:
    """Bisect between a batch of `low`, which fits, and the case's own, which does not.

    A try is one untimed pass of one batch, which takes the memory that a timed one takes. `fit_exact` is false if a
    try ended in another way than ok or out of memory, so that a larger batch may fit.
    """
    tries: list[dict[str, Any]] = []
    began, high = time.monotonic(), case.rows
    while high - low > 1:
        size = (low + high) // 2
        state = call(plan.measure, to_json(case.of_batch(size)), limits=plan.limits).state
        tries.append({"batch": size, "status": state})
        low, high = (size, high) if state == OK else (low, size)
    return {
        "largest_batch": low,
        "fit_exact": all(item["status"] in (OK, NO_MEMORY) for item in tries),
        "fit_tries": tries,
        "fit_s": round(time.monotonic() - began, 3),
    }


def _without_batch(case: Case) -> str | None:
    """Equal for cases that differ in their batch alone; None if the batch is not full."""
    full = case.count >= case.batch_size if isinstance(case, GenerateCase) else isinstance(case, SdpaCase)
    return case_id(case.of_batch(1)) if full else None


def measure(raw: dict[str, Any]) -> dict[str, Any]:
    """Measure the case of a JSON object, and return its figures and environment."""
    case = from_json(raw)
    if isinstance(case, SdpaCase):
        from molprof.profiler.bench.sdpa import measure_sdpa

        return measure_sdpa(case)
    from molprof.profiler.bench.generation import measure_generation

    assert isinstance(case, GenerateCase)
    return measure_generation(case)
