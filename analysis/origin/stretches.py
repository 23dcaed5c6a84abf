"""What steps, calls of a module or graph launches did on a device: stretches of work, in the order of the calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from molprof.analysis.figures.sequence import functions_in
from molprof.analysis.origin.capture import grid_sql
from molprof.analysis.origin.opened import plain_name
from molprof.analysis.origin.read import Origins, StackFrame
from molprof.analysis.trace_processor import TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_rows
from molprof.common.values import counted

# How a pair by each of the keys of a stretch was found.
HOW = (
    "by names in order",
    "by its name without namespaces and template arguments, in order",
    "by its class and the function in its name, in order",
)
_WORK = Query(
    "origin",
    f"""
INCLUDE PERFETTO MODULE molprof.steps;
SELECT work.id, MIN(IFNULL(call.ts, work.ts)) OVER (PARTITION BY IFNULL(work.call_id, -work.id)) AS asked_ts, work.ts,
  work.category, work.name, work.class, work.device, work.in_graph, work.call_id, work.frame_id,
  IIF(work.operator_id IS NULL, NULL, IFNULL(work.operator, '(no name)')) AS operator, work.operator_id,
  ROW_NUMBER() OVER (PARTITION BY work.operator_id ORDER BY work.ts, work.id) - 1 AS number,
  work.layer, work.step_id, {grid_sql("slice.arg_set_id")} AS grid
FROM molprof_origin AS work
JOIN slice USING (id)
LEFT JOIN slice AS call ON call.id = work.call_id
""",
)
_STEPS = Query("steps", "SELECT id, name, kind, prompt_sequences, prompt_tokens, tokens FROM molprof_any_step")


class Item(NamedTuple):
    id: int
    asked_ts: int  # start of its call
    ts: int
    category: str
    name: str
    cls: str | None
    device: str | None
    in_graph: int
    call_id: int | None
    frame_id: int | None
    operator: str | None
    operator_id: int | None
    number: int
    layer: int | None
    step_id: int | None
    grid: str | None


class Step(NamedTuple):
    id: int
    name: str
    kind: str | None
    prompt_sequences: int | None
    prompt_tokens: int | None
    tokens: int | None

    @property
    def size(self) -> tuple[Hashable, ...] | None:
        """Equal for steps that compute equally many rows; None where the name does not tell."""
        return None if self[3:] == (None, None, None) else self[2:]

    @property
    def text(self) -> str:
        amounts = ((self.prompt_tokens, "prompt token"), (self.tokens, "new token"))
        return f"{self.kind or 'step'} of " + " and ".join(counted(amount, what) for amount, what in amounts if amount)


@dataclass(frozen=True)
class Stretch:
    """What one step, call of a module or graph launch did on one device, in the order of the calls."""

    name: str
    items: tuple[Item, ...]
    step: Step | None = None

    @property
    def size(self) -> tuple[Hashable, ...] | None:
        return None if self.step is None else self.step.size

    @cached_property
    def names(self) -> tuple[tuple[str, str], ...]:
        """What each piece of work is, copies and sets without their names."""
        return tuple((item.category, item.name if item.category == "kernel" else item.cls or "") for item in self.items)

    @cached_property
    def keys(self) -> tuple[Sequence[Hashable | None], ...]:
        """What it is paired by, level by level as in HOW."""
        functions = [functions_in(name) for _, name in self.names]
        return (
            self.names,
            [(kind, plain_name(name)) for kind, name in self.names],
            [(item.cls, found) if found else None for item, found in zip(self.items, functions, strict=True)],
        )


def read_items(engine: TraceProcessor) -> list[Item]:
    return [Item(*row) for row in query_rows(engine, _WORK)[1]]


def read_steps(engine: TraceProcessor) -> dict[int, Step]:
    return {row[0]: Step(*row) for row in query_rows(engine, _STEPS)[1]}


def order(item: Item) -> tuple[int, int, int]:
    return item.asked_ts, item.ts, item.id


def inner(chain: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """What a graph's launch has not around it already: from the outermost module on, else from the last function on."""
    modules = [place for place, frame in enumerate(chain) if frame.kind == "module"]
    functions = [place for place, frame in enumerate(chain) if frame.kind == "function"]
    return tuple(chain[(modules[:1] or functions[-1:] or [0])[0] :])


def stretches_of(
    origins: Origins, items: Iterable[Item], steps: dict[int, Step], launches: bool = False
) -> Iterator[Stretch]:
    """Items by device and step, without steps by the call of the outermost module, with `launches` else by launch."""
    outermost: dict[int, StackFrame | None] = {}

    def module(frame_id: int | None) -> StackFrame | None:
        if frame_id is None:
            return None
        if frame_id not in outermost:
            chain = origins.chain(frame_id)
            outermost[frame_id] = next((frame for frame in chain if frame.kind == "module"), None)
        return outermost[frame_id]

    found: defaultdict[Hashable, list[Item]] = defaultdict(list)
    names: dict[Hashable, str] = {}
    for item in items:
        step = None if item.step_id is None else steps.get(item.step_id)
        if step is not None:
            key, name = ("step", step.id), step.name
        elif not steps and (frame := module(item.frame_id)) is not None:
            key, name = ("module", frame.id), frame.name
        elif launches and item.in_graph:
            key, name = ("launch", item.call_id or 0), "launch"
        else:
            continue
        found[item.device, key].append(item)
        names[item.device, key] = name
    for place, inside in found.items():
        first = inside[0].step_id
        yield Stretch(names[place], tuple(inside), None if first is None else steps.get(first))
