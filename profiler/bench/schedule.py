"""Runs cases one after the other, interleaved and repeated, and keeps what they gave as soon as it is there."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from molprof.common.errors import RunError, UsageError
from molprof.common.memory import available_bytes
from molprof.common.values import now
from molprof.profiler.bench.answers import FACTS, NO_MEMORY, OK, UNSUPPORTED
from molprof.profiler.bench.cases import Case, GenerateCase, case_id, to_json
from molprof.profiler.bench.facts import Facts, facts_from, named, unsupported
from molprof.profiler.bench.isolate import WORKER, Ended, Limits, run_isolated
from molprof.profiler.bench.records import Results

# Of the memory that is there when the benchmark begins.
MEMORY_SHARE = 0.8
_FACTS_S = 120.0


@dataclass(frozen=True)
class Plan:
    """What is to be run, and how.

    Attributes:
        cases: each once, in the order in which they are listed.
        repeats: processes per case.
        seed: of the order, which is drawn anew for each repeat.
        resume: leave out what the file has of this environment; retry: but run again what was not ok there.
        bisect: look for the largest batch that fits where a case is out of memory.
        worker: the module that runs a case.
        command: the command line, for the record.
    """

    cases: tuple[Case, ...]
    repeats: int
    seed: int
    limits: Limits
    resume: bool = False
    retry: bool = False
    bisect: bool = True
    worker: str = WORKER
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """A case that has ended.

    Attributes:
        number, of: of the cases to run, repeats counted.
        seconds: that it took.
        rest_s: estimated for all that is left; None where nothing tells yet.
    """

    case: Case
    repeat: int
    number: int
    of: int
    status: str
    message: str | None
    seconds: float
    rest_s: float | None


def read_machine(device: str, threads: int | None, cases: Sequence[Case] = (), worker: str = WORKER) -> Facts:
    """What the machine can run, from a process of its own, so that this one needs no torch.

    Args:
        cases: whose models and tokenizers must be there.

    Raises:
        UsageError: no such device, model or tokenizer.
        RunError: torch cannot be imported, or the like.
    """
    ended = run_isolated(
        {"kind": FACTS, "device": device, "threads": threads, "names": named(cases)}, Limits(_FACTS_S), worker
    )
    if ended.status != OK:
        if "hint" in ended.answer:
            raise UsageError(ended.message or "no such device", hint=ended.answer["hint"])
        raise RunError(f"cannot find out what this machine can run: {ended.message}", hint="molprof[capture] is needed")
    return facts_from(ended.answer["figures"])


def default_memory() -> int | None:
    """The memory that a case may take where nothing is asked for: a share of what is there now."""
    available = available_bytes()
    return None if available is None else int(MEMORY_SHARE * available)


def order(plan: Plan) -> Iterator[tuple[int, Case]]:
    """Repeat and case: every case once, in random order, before any is repeated."""
    for repeat in range(plan.repeats):
        shuffled = list(plan.cases)
        random.Random(f"{plan.seed}/{repeat}").shuffle(shuffled)
        yield from ((repeat, case) for case in shuffled)


def run_plan(
    plan: Plan,
    facts: Facts,
    results: Results,
    report: Callable[[Step], None],
    begin: Callable[[Case, int, int], None] = lambda case, number, of: None,
) -> None:
    """Runs what is to be run; a result is in the file before `report` hears of it.

    Args:
        begin: hears of every case before it runs: its number, and how many there are.

    A case that was not ok is not repeated. An interrupt ends the running case, of which nothing is kept.
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
    waiting = [
        (repeat, case)
        for repeat, case in [
            *((0, case) for case in plan.cases if reasons[case] is not None),
            *((repeat, case) for repeat, case in order(plan) if reasons[case] is None),
        ]
        if not (plan.resume and results.done.has(names[case], environment, repeat, plan.retry))
    ]
    took: dict[Case, list[float]] = {}
    fits: dict[str, int] = {}
    number = 0
    while waiting:
        repeat, case = waiting.pop(0)
        number += 1
        load = os.getloadavg()[0]
        begin(case, number, number + len(waiting))
        ended, extra = _one(case, plan, reasons[case], fits)
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
                "wall_s": round(ended.wall_s, 3), "figures": ended.answer.get("figures"), **extra,
            }
        )  # fmt: skip
        message = ended.message
        if "largest_batch" in extra:
            which = "the largest batch" if extra["fit_exact"] else "a batch"
            message = f"{message}; {which} that fits: {extra['largest_batch']}"
        report(
            Step(case, repeat, number, number + len(waiting), ended.status, message, ended.wall_s, _rest(took, waiting))
        )


def _one(case: Case, plan: Plan, reason: str | None, fits: dict[str, int]) -> tuple[Ended, dict[str, Any]]:
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
        status = run_isolated(to_json(_sized(case, size)), plan.limits, plan.worker).status
        tries.append({"batch": size, "status": status})
        low, high = (size, high) if status == OK else (low, size)
    return {
        "largest_batch": low,
        "fit_exact": all(item["status"] in (OK, NO_MEMORY) for item in tries),
        "fit_tries": tries,
        "fit_s": round(time.monotonic() - began, 3),
    }


def _sized(case: Case, size: int) -> Case:
    if isinstance(case, GenerateCase):
        return replace(case, batch_size=size, count=size, warmup=1, passes=1)
    return replace(case, batch=size)


def _without_batch(case: Case) -> str | None:
    """What cases that differ in their batch alone have in common; None where a batch is not filled."""
    if isinstance(case, GenerateCase):
        if case.count < case.batch_size:
            return None
        return case_id(replace(case, batch_size=1, count=1))
    return case_id(replace(case, batch=1))


def _rest(took: dict[Case, list[float]], waiting: Sequence[tuple[int, Case]]) -> float | None:
    """What is left takes as long as the same case took before, another one as long as the median."""
    if not took:
        return None
    usual = statistics.median(value for values in took.values() for value in values)
    return sum(statistics.median(took[case]) if case in took else usual for _, case in waiting)
