"""Functions and lines of a logits processor, as a recording sampled them."""

from __future__ import annotations

from molprof.common.document import Section, table_of
from molprof.common.sampled import SampledFunctions
from molprof.common.values import counted, per, short_source, time_text

# Rows of a table; functions with less of the time are left out.
_MOST_SAMPLED, _LEAST_RATIO = 12, 0.005


def sampled_sections(sampled_functions: SampledFunctions) -> list[Section]:
    """Return functions and lines of the processor, as they were sampled."""
    whole, program = (
        sampled_functions.sampled_ns,
        {sampled_functions.functions[index] for index in sampled_functions.program},
    )
    inside, own_times, lines = sampled_functions.inside(), sampled_functions.by_function(), sampled_functions.by_line()
    functions = table_of(
        [(name, ns) for name, ns in inside.most_common(_MOST_SAMPLED) if ns >= _LEAST_RATIO * whole],
        ("function", "path", lambda item: _function(item[0])), ("share", "ratio", lambda item: per(item[1], whole)),
        ("time", "ns", "1"), ("own time", "ns", lambda item: own_times[item[0]]),
    )  # fmt: skip
    by_line = table_of(
        [item for item in lines.most_common() if item[0][0] in program][:_MOST_SAMPLED],
        ("line", "path", lambda item: _line(*item[0])), ("share", "ratio", lambda item: per(item[1], whole)),
        ("time", "ns", "1"),
    )  # fmt: skip
    notes = (
        f"{counted(sampled_functions.samples, 'sample')} in {counted(sampled_functions.steps, 'recorded step')}, whose "
        f"processor took {time_text(sampled_functions.phase_ns)}. {_cost(sampled_functions)}",
        f"In no function of a processor: {time_text(sampled_functions.other_ns)} (what calls processors, and marks).",
    )
    return [
        Section("Functions of the processor, sampled", notes, functions),
        Section("Lines of the processor, sampled", (), by_line),
    ]


def _cost(sampled_functions: SampledFunctions) -> str:
    if sampled_functions.other_step_ns is None:
        return f"Taking them kept Python for {time_text(sampled_functions.held_ns)} of it."
    return (
        f"Median of a step: {time_text(sampled_functions.step_ns)}, of the recorded ones without samples "
        f"{time_text(sampled_functions.other_step_ns)}."
    )


def _line(function: str, line: int) -> str:
    location, _, name = short_source(function).rpartition("): ")
    return f"{location.rpartition('(')[0]}:{line} {name}"


def _function(name: str) -> str:
    """Return a function before its file, without the outer folders, so that a cut text still shows the function."""
    location, _, function = short_source(name).rpartition("): ")
    return f"{function} {location.replace('(', ':')}"
