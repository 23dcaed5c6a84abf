"""Decoding of events: the decoded fields, which events and args go to the engine, and args as SQL reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from molprof.analysis.facts import GPU_CALLS, GPU_WORK
from molprof.analysis.facts.recording import is_own_mark, stops_profiler
from molprof.analysis.reader.categories import OPERATORS
from molprof.analysis.reader.text import MOST_CHARACTERS, bounded, exact_float, plain_lines
from molprof.queries import marks_phase

STACK_CATEGORY = "python_function"
# Phases of the Chrome trace format that the trace processor reads, apart from M (names).
SLICE_PHASES = frozenset("XBbniIR")  # each becomes a slice
FLOW_PHASES = frozenset("stf")
FED_PHASES = SLICE_PHASES | FLOW_PHASES | frozenset("EeC")
_INSTANT_PHASES = frozenset("iIR")
# GPU work and calls: what has correlation numbers, which each rank counts itself.
LINKED_CATEGORIES = (*GPU_WORK, *GPU_CALLS)
# An instant for memory that torch allocated or freed; up to a quarter of a trace's events.
MEMORY_NAME = "[memory]"

# The args that the SQL modules read, and the `name` of metadata: an event with all args takes the engine ten times
# as long. A module that reads another arg needs it here.
NUMBERS = ("correlation", "device", "stream", "bytes")
COLLECTIVE_ARGS = (
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
    "Process Group Ranks", "Seq",
)  # fmt: skip
# Of the work of a graph; the annotation is what torch's annotations of graphs name it.
GRAPH_ARGS = ("graph id", "graph node id", "annotation")
# What an operator was called with (record_shapes): kept beside what is fed, see `Arguments`.
ARGUMENTS = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
# Of the annotations around collectives, where older versions of torch record sizes; the first of SIZED_OPERATORS too.
SIZE_ARGS = ("Input Dims", "Input type")
# Products of matrices, and what chooses tokens: its input has a row for each.
SIZED_OPERATORS = frozenset({
    "aten::argmax", "aten::multinomial", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm",
})  # fmt: skip
NEEDED_ARGS = (*NUMBERS, "name", *COLLECTIVE_ARGS, *GRAPH_ARGS, *ARGUMENTS)
_NEEDED_NAMES = frozenset(NEEDED_ARGS)
# Categories whose args are kept whole: molprof's own token tracks.
WHOLE_CATEGORIES = ("molprof.sequence", "molprof.token")
OPERATOR_CATEGORY = "cpu_op"
# Categories whose args no module reads, but for those of SIZED_OPERATORS; most events have one of them.
ARGLESS_CATEGORIES = OPERATORS | {STACK_CATEGORY}
_ARGLESS_PHASES = frozenset("XiIR")
# As the phase of a counter stands in the text, or elsewhere by chance.
_COUNTER = b'"C"'
_WHOLE_MARKS = tuple(f'"{category}"'.encode() for category in WHOLE_CATEGORIES)

Id = int | str | None
ABSENT = msgspec.Raw()
# In place of args that are skipped or missing.
NO_ARGS = b"{}"

_FIELDS = {name.lower().replace(" ", "_"): name for name in NEEDED_ARGS}
NeededArgs = msgspec.defstruct(
    "NeededArgs", [(field, Any, msgspec.UNSET) for field in _FIELDS], rename=_FIELDS, omit_defaults=True, gc=False
)


ARGUMENT_FIELDS = {field: name for field, name in _FIELDS.items() if name in ARGUMENTS}


class Event(msgspec.Struct, omit_defaults=True, gc=False):
    """An event with all its args; Raw ones are copied as text."""

    ph: str | None = None
    cat: str | int | None = None
    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    args: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    id2: msgspec.Raw = ABSENT
    bp: msgspec.Raw = ABSENT
    s: msgspec.Raw = ABSENT
    bind_id: msgspec.Raw = ABSENT
    flow_in: msgspec.Raw = ABSENT
    flow_out: msgspec.Raw = ABSENT


# Members that some phases need, copied as text.
MORE_FIELDS = ("id", "id2", "bp", "s", "bind_id", "flow_in", "flow_out")


class BriefEvent(Event, omit_defaults=True, gc=False):
    """An event with the needed args only."""

    args: NeededArgs | msgspec.UnsetType | None = msgspec.UNSET  # type: ignore[valid-type,assignment]


class _MarkNames(dict[str | None, bool]):
    """Known names of Python functions that mark a phase (molprof.phase_marks or molprof's), or the recording's end."""

    def __missing__(self, name: str | None) -> bool:
        is_kept = marks_phase(name or "") or stops_profiler(name or "") or is_own_mark(name or "")
        if len(self) < _MOST_FUNCTIONS:
            self[name] = is_kept
        return is_kept


# A program has some thousands.
_MOST_FUNCTIONS = 100_000
is_mark = _MarkNames().__getitem__


class Wanted(msgspec.Struct, frozen=True):
    """The events and args of a trace that go to the engine."""

    stacks: bool = True  # Python stacks; those that mark phases or the end of the recording are always wanted
    all_args: bool = True  # all args, flow events and memory events, not only what a report needs
    arguments: bool = True  # keep what operators were called with
    most_stacks: int | None = None  # with more Python stacks than so many, none are needed

    def chosen(self, events: list[Event]) -> list[Event]:
        """Return the events that the engine gets."""
        if not self.stacks:
            events = [event for event in events if event.cat != STACK_CATEGORY or is_mark(event.name)]
        if self.all_args:
            return [event for event in events if event.ph in FED_PHASES]
        return [event for event in events if event.ph in FED_PHASES - FLOW_PHASES and not is_memory(event)]


def is_memory(event: Any) -> bool:
    """Return True if the event records an allocation or a free of memory."""
    return event.name == MEMORY_NAME and event.ph in _INSTANT_PHASES


def bound_names(events: Iterable[Any]) -> int:
    """Bound the length of names and categories; return in how many events."""
    long = [event for event in events if max(len(event.name or ""), len(event.cat or "")) > MOST_CHARACTERS]
    for event in long:
        event.name = None if event.name is None else bounded(event.name)
        event.cat = None if event.cat is None else bounded(event.cat)
    return len(long)


decode_whole = msgspec.json.Decoder(list[Event]).decode
_decode_brief = msgspec.json.Decoder(list[BriefEvent], float_hook=exact_float).decode
_encode_lines = msgspec.json.Encoder().encode_lines
_needed_args: Any = msgspec.json.Decoder(NeededArgs | None, float_hook=exact_float)


def needed_of(category: str | None) -> Collection[str] | None:
    """Return the names of the args to keep of slices and instants of a category.

    None for all.
    """
    if category in OPERATORS:
        return ARGUMENTS
    return None if category in WHOLE_CATEGORIES else () if category in ARGLESS_CATEGORIES else _NEEDED_NAMES


def decode_brief(text: bytes) -> list[Any]:
    """Return the events without args that no module reads, but for those of operators.

    Args of counters and of molprof's own tracks are copied as text.
    """
    if _COUNTER in text or (b'"molprof.' in text and any(mark in text for mark in _WHOLE_MARKS)):
        return [_shortened(event) for event in decode_whole(text)]
    return _decode_brief(text)


def drop_args(events: Iterable[Any]) -> None:
    """Take the args of operators and Python functions away, but for those that SQL reads."""
    for event in events:
        if event.cat in ARGLESS_CATEGORIES and event.ph in _ARGLESS_PHASES:
            is_sized = event.cat in OPERATORS and event.name in SIZED_OPERATORS
            event.args = _sizes(event.args) if is_sized else msgspec.UNSET


def _sizes(args: Any) -> Any:
    needed: Any = _needed_args.decode(args) if isinstance(args, msgspec.Raw) and args else args
    has_args = isinstance(needed, NeededArgs)
    return NeededArgs(input_dims=needed.input_dims) if has_args else msgspec.UNSET


def _shortened(event: Event) -> Event:
    if event.args and event.ph != "C":
        needed = _needed_args.decode(event.args)  # refuses what is no object
        if needed is None:
            event.args = ABSENT
        elif event.cat not in WHOLE_CATEGORIES:
            event.args = msgspec.Raw(msgspec.json.encode(needed))
    return event


def draft(events: list[Event]) -> bytes:
    """Return one JSON line per event, without times and indices, which the events lose."""
    for event in events:
        event.ts = event.dur = ABSENT
        event.pid = event.tid = None
    text = _encode_lines(events)
    if text.count(b"\n") != len(events):  # text that is copied may hold line ends
        for event in events:
            for field in ("args", *MORE_FIELDS):
                value: Any = getattr(event, field)
                if isinstance(value, msgspec.Raw) and value:
                    setattr(event, field, msgspec.Raw(bytes(value).replace(b"\n", b" ")))
        text = _encode_lines(events)
    return plain_lines(text)


# What the annotations around collectives begin with; gloo and mpi run on the CPU.
_BACKENDS = ("nccl:", "rccl:", "ucc:", "xccl:", "hccl:")
_decode = msgspec.json.Decoder(dict[str, Any], float_hook=exact_float).decode
_encode = msgspec.json.encode


def usable_args(category: str | None, name: str | None, text: bytes) -> bytes:
    """Return the args of one kind of event as JSON text, in the form that SQL reads.

    The engine would read `true` as 1 and an array as nothing: where SQL expects a number or a text, both become text.
    Arrays of sizes become objects (`{"0": {"0": 2048}}`): `compact` takes those. An array of more than MOST_CHARACTERS
    becomes text too: each of its numbers would take 100 bytes.
    """
    odd = b"[" in text or b"true" in text or b"false" in text or text.count(b"{") > 1
    if not odd or category in WHOLE_CATEGORIES:
        return text
    args = _decode(text)
    for key in (*NUMBERS, *COLLECTIVE_ARGS, *GRAPH_ARGS):
        if isinstance(args.get(key), (bool, list, dict)):
            args[key] = bounded(_encode(args[key]).decode())
    for key in ARGUMENTS:
        if key in args and key in SIZE_ARGS and (name in SIZED_OPERATORS or (name or "").startswith(_BACKENDS)):
            sizes = _encode(args[key])
            args[key] = _numbered(args[key]) if len(sizes) <= MOST_CHARACTERS else bounded(sizes.decode())
        else:
            args.pop(key, None)
    return _encode(args)


def _numbered(value: Any) -> Any:
    """Return the value with arrays as objects whose keys are indices."""
    return {str(index): _numbered(item) for index, item in enumerate(value)} if isinstance(value, list) else value
