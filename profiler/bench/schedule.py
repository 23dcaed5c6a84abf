"""Run the cases of a benchmark one after the other, in random order, and keep each result at once."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from molprof.common.bench_records import NO_MEMORY, OK, UNSUPPORTED
from molprof.common.errors import MissingExtraError, RunError, UsageError
from molprof.common.memory import available_bytes
from molprof.common.typed_json import read_typed
from molprof.common.values import now
from molprof.profiler.bench.cases import Case, SdpaCase, case_id, to_json
from molprof.profiler.bench.facts import FACTS, Facts, named, unsupported
from molprof.profiler.bench.isolate import WORKER, Ended, Limits, run_isolated
from molprof.profiler.bench.results_file import ResultsFile

# Of the memory that is free when the benchmark begins.
MEMORY_SHARE = 0.8
_FACTS_S = 120.0


@dataclass(frozen=True)
class Plan:
    cases: tuple[Case, ...]  # each once
    repeats: int  # processes per case
    seed: int  # for the random order, another one for each repeat
    limits: Limits
    resume: bool = False  # leave out results that the file has of this environment
    retry: bool = False  # with `resume`: leave out only those that are ok
    bisect: bool = True  # search for the largest batch that fits if a case is out of memory
    worker: str = WORKER  # runs a case, `module:function`
    command: tuple[str, ...] = ()  # the command line, for the record


@dataclass(frozen=True)
class Step:
    """A case that has ended."""

    case: Case
    repeat: int
    number: int  # number, of: its place among the cases to run, counting repeats
    of: int
    status: str
    message: str | None
    seconds: float
    rest_s: float | None  # estimated seconds for the remaining cases; None: unknown


def read_machine(device: str, threads: int | None, cases: Sequence[Case] = (), worker: str = WORKER) -> Facts:
    """Return what the machine can run; UsageError if there is no such device, or no model or tokenizer of the cases."""
    for name in ("torch", "transformers"):
        if find_spec(name) is None:
            raise MissingExtraError(name, "presets", "molprof bench")
    ended = run_isolated(
        {"kind": FACTS, "device": device, "threads": threads, "names": named(cases)}, Limits(_FACTS_S), worker
    )
    if ended.status != OK:
        if "hint" in ended.answer:
            raise UsageError(ended.message or "no such device", hint=ended.answer["hint"])
        text = f"cannot find out what this machine can run: {ended.message}"
        raise RunError(text, hint="molprof doctor checks what works on this machine")
    return read_typed(ended.answer["figures"], Facts, "facts")


def default_memory() -> int | None:
    """Return the default memory limit of a case: a share of what is free now."""
    available = available_bytes()
    return None if available is None else int(MEMORY_SHARE * available)


def order(plan: Plan) -> Iterator[tuple[int, Case]]:
    """Yield repeat and case: every case once in random order, then again in another order."""
    for repeat in range(plan.repeats):
        shuffled = list(plan.cases)
        random.Random(f"{plan.seed}/{repeat}").shuffle(shuffled)
        yield from ((repeat, case) for case in shuffled)


def run_plan(
    plan: Plan,
    facts: Facts,
    results: ResultsFile,
    report: Callable[[Step], None],
    begin: Callable[[Case, int, int], None] = lambda case, number, of: None,
) -> None:
    """Run the cases of a plan; each result is in the file before `report` is called.

    A case that was not ok is not repeated. An interrupt ends the running case, of which nothing is kept. `begin` is
    called before each case with its number and how many there are.
    """
    environment = results.environment(facts.environment)
    results.write(
        {
            "record": "run", "started": now(), "command": list(plan.command), "environment": environment,
            "cases": len(plan.cases), "repeats": plan.repeats, "seed": plan.seed,
            "limit_s": plan.limits.seconds, "memory_limit_bytes": plan.limits.memory_bytes,
        }
    )  # fmt: skip
    names = {case: case_id(case) for case in plan.cases}
    reasons = {case: unsupported(case, facts) for case in plan.cases}
    ordered = [(0, case) for case in plan.cases if reasons[case] is not None]
    ordered += [(repeat, case) for repeat, case in order(plan) if reasons[case] is None]
    waiting = [
        (repeat, case)
        for repeat, case in ordered
        if not (plan.resume and results.has(names[case], environment, repeat, plan.retry))
    ]
    took: dict[Case, list[float]] = {}
    fits: dict[str, int] = {}
    number = 0
    while waiting:
        repeat, case = waiting.pop(0)
        number += 1
        load = os.getloadavg()[0]
        begin(case, number, number + len(waiting))
        ended, fit = _one(case, plan, reasons[case], fits)
        if ended.status != OK:
            waiting = [item for item in waiting if item[1] != case]
        elif (key := _without_batch(case)) is not None:
            fits[key] = max(fits.get(key, 0), case.rows)
        if ended.status != UNSUPPORTED:
            took.setdefault(case, []).append(ended.wall_s)
        own = ended.answer.get("environment")
        results.write(
            {
                "record": "result", "case": names[case], "label": case.label(), "settings": to_json(case),
                "environment": environment if own is None else results.environment(own), "repeat": repeat,
                "status": ended.status, "message": ended.message,
                "stack": None if ended.stack is None else list(ended.stack),
                "ended": now(), "load": round(load, 1),
                "wall_s": round(ended.wall_s, 3), "figures": ended.answer.get("figures"), **fit,
            }
        )  # fmt: skip
        message = ended.message
        if fit:
            message = f"{message}; {'the largest' if fit['fit_exact'] else 'a'} batch that fits: {fit['largest_batch']}"
        of = number + len(waiting)
        report(Step(case, repeat, number, of, ended.status, message, ended.wall_s, _rest(took, waiting)))


def _one(case: Case, plan: Plan, reason: str | None, fits: dict[str, int]) -> tuple[Ended, dict[str, Any]]:
    """What became of a case, and the largest batch that fits if it was out of memory."""
    if reason is not None:
        return Ended(UNSUPPORTED, reason, None, {}, 0.0), {}
    ended = run_isolated(to_json(case), plan.limits, plan.worker)
    if ended.status != NO_MEMORY or not plan.bisect or case.rows == 1:
        return ended, {}
    known = fits.get(_without_batch(case) or "", 0)
    return ended, _largest_fit(case, plan, known if known < case.rows else 0)


def _largest_fit(case: Case, plan: Plan, low: int) -> dict[str, Any]:
    """Bisect between a batch of `low`, which fits, and the case's own, which does not.

    A try is one untimed pass of one batch, which takes the memory that a timed one takes. `fit_exact` is false if a
    try ended in another way than ok or out of memory, so that a larger batch may fit.
    """
    tries: list[dict[str, Any]] = []
    began, high = time.monotonic(), case.rows
    while high - low > 1:
        size = (low + high) // 2
        status = run_isolated(to_json(case.of_batch(size)), plan.limits, plan.worker).status
        tries.append({"batch": size, "status": status})
        low, high = (size, high) if status == OK else (low, size)
    return {
        "largest_batch": low,
        "fit_exact": all(item["status"] in (OK, NO_MEMORY) for item in tries),
        "fit_tries": tries,
        "fit_s": round(time.monotonic() - began, 3),
    }


def _without_batch(case: Case) -> str | None:
    """Equal for cases that differ in their batch alone; None if the batch is not full."""
    full = isinstance(case, SdpaCase) or case.count >= case.batch_size
    return case_id(case.of_batch(1)) if full else None


def _rest(took: dict[Case, list[float]], waiting: Sequence[tuple[int, Case]]) -> float | None:
    """Estimated seconds: as long as the same case took before, or the median of all."""
    if not took:
        return None
    usual = statistics.median(value for values in took.values() for value in values)
    return sum(statistics.median(took[case]) if case in took else usual for _, case in waiting)
