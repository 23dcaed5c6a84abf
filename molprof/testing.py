"""The pytest plugin: a fixture that records, and a mark that limits the figures of a test.

Each pytest run loads this module: it imports nothing heavy before a test asks for it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from molprof.analysis.figures.figure import CountedEvents
    from molprof.analysis.origin.read import CallLocation
    from molprof.analysis.trace import Trace

_LIMIT = re.compile(r"\s*(<=|>=|==|<|>)\s*(\S+)\s*")
# What a threshold says that fails where the limit does not hold.
_FAILS = {"<=": (">",), ">=": ("<",), "<": (">=",), ">": ("<=",), "==": (">", "<")}
_HOST_SYNCS = "host_syncs"
_SHOWN = 5
_MARK = (
    'molprof(FIGURE="<=300", ...): record the test with molprof, and fail where a figure is beyond its limit (<= < >= >'
    " ==); figures are those of --fail-if, and host_syncs"
)


class Measured:
    """A recorded block: its `trace`, once it has ended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def trace(self) -> Trace:
        """The trace of the block."""
        from molprof import api

        return api.load(self.path, cached=False)


class Molprof:
    """The fixture `molprof`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    @contextmanager
    def record(self, **options: Any) -> Iterator[Measured]:
        """Record the block to a file in the test's folder; `options` are those of `molprof.record`."""
        from molprof.profiler.recording.record import record

        self._count += 1
        measured = Measured(self._folder / f"molprof-{self._count}.json.gz")
        with record(measured.path, **{"modules": True, **options}):
            yield measured

    def check(self, measured: Measured, **limits: str) -> None:
        """Fail the test if a figure of the trace is beyond its limit, such as `launches_per_token="<=300"`."""
        _hold(measured, limits)


@pytest.fixture
def molprof(tmp_path: Path) -> Molprof:
    """Record blocks of a test: `with molprof.record() as measured:`, then `measured.trace.figures`."""
    return Molprof(tmp_path)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARK)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record a test with the mark, and check the limits once it has passed."""
    mark = item.get_closest_marker("molprof")
    if mark is None:
        return (yield)
    folder = Path(tempfile.mkdtemp(prefix="molprof-"))
    with Molprof(folder).record() as measured:
        result = yield
    _hold(measured, mark.kwargs)
    shutil.rmtree(folder)
    return result


def _hold(measured: Measured, limits: Mapping[str, str]) -> None:
    """Fail the test if a limit is broken, or is not a limit."""
    from molprof.common.errors import MolprofError

    try:
        lines = broken(measured.trace, limits)
    except MolprofError as error:
        lines = [str(error), *([f"  {error.hint}"] if error.hint else [])]
    if lines:
        pytest.fail("\n".join([*lines, f"the trace: molprof report {measured.path}"]), pytrace=False)


def broken(trace: Trace, limits: Mapping[str, str]) -> list[str]:
    """Return a line for each broken limit, followed by the origin of the work. Raises UsageError."""
    from molprof.analysis.compare.thresholds import parse_threshold
    from molprof.analysis.figures.figure import CountedEvents
    from molprof.common.errors import UsageError
    from molprof.common.values import by_unit

    lines: list[str] = []
    for name, limit in limits.items():
        counted: CountedEvents | None = CountedEvents("syncs")
        match = _LIMIT.fullmatch(limit)
        if match is None:
            raise UsageError(f"{limit!r} is no limit of {name}", hint='e.g. "<=300", "==0", "<2ms"')
        sign, bound = match.groups()
        if name == _HOST_SYNCS:
            label, shown = "host syncs", None
            value: Any = len(trace.syncs) if trace.report.trace.gpu_recorded else None
            fails = value is not None and not _holds(value, sign, float(bound))
        else:
            thresholds = [parse_threshold(f"{name}{operator}{bound}", relative=False) for operator in _FAILS[sign]]
            figure = thresholds[0].figure
            assert figure is not None
            label, shown, value, counted = figure.label, figure.unit, figure.value(trace.report), figure.counted
            fails = value is not None and any(_holds(value, item.operator, item.bound) for item in thresholds)
        if value is None:
            lines.append(f"{name} ({label}) is not recorded, so that {limit} cannot be judged")
        elif fails:
            lines.append(f"{name} ({label}) is {value if shown is None else by_unit(shown, value)}, not {limit}")
            lines += [f"  {line}" for line in _origin(trace, counted, by_time=shown == "ns")]
    return lines


def _holds(value: float, sign: str, bound: float) -> bool:
    signs = {"<=": value <= bound, ">=": value >= bound, "<": value < bound, ">": value > bound, "==": value == bound}
    return signs[sign]


def _origin(trace: Trace, counted: CountedEvents | None, by_time: bool) -> Iterator[str]:
    """Yield the locations that account for most of a figure's count or time."""
    from molprof.analysis.origin.counted import places_of_counted
    from molprof.common.values import counted as counted_text
    from molprof.common.values import time_text

    if counted is None:
        return
    ask = partial(places_of_counted, counted=counted, by_time=by_time, has_gpu=trace.report.trace.gpu_recorded)
    locations, noun = trace.read(lambda engine, _: ask(engine), stacks=True)

    def amount(of: Sequence[CallLocation]) -> str:
        count = f"{sum(location.count for location in of):,} {noun}"
        return f"{time_text(sum(location.time_ns for location in of))} of {count}" if by_time else count

    for location in locations[:_SHOWN]:
        yield f"{amount([location])}: {location.text}"
    if rest := locations[_SHOWN:]:
        yield f"{amount(rest)} in {counted_text(len(rest), 'other location')}"
