"""What a rule is declared with, and what it can ask of a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, TypeVar

from msgspec import Struct

from molprof.analysis.figures.model import Gain, Group, Report
from molprof.analysis.figures.run_model import Run
from molprof.analysis.findings.operators import Operators, read_operators
from molprof.analysis.findings.scope import Scope, read_scope
from molprof.analysis.origin.places import PLACES, Place
from molprof.analysis.origin.read import Origins, build_tree, origins_of
from molprof.analysis.origin.tree import Tree
from molprof.analysis.reader import TraceInfo
from molprof.analysis.trace_processor import Columns, TraceProcessor
from molprof.analysis.trace_processor.package import Query, query_dicts

# Less is not worth a finding.
LEAST_GAIN = 0.01
_T = TypeVar("_T")


class Known:
    """All that is known of a trace, each read when a rule asks for it, and once."""

    def __init__(
        self,
        engine: TraceProcessor | None = None,
        report: Report | None = None,
        info: TraceInfo | None = None,
        origins: Origins | None = None,
    ) -> None:
        """`origins`: of a report by module, source, operator or kernel, whose rules need them."""
        self._engine, self._report, self._info = engine, report, info
        self.by_origin = origins is not None
        if origins is not None:
            self.origins = origins
        self._answers: dict[Any, Any] = {}
        self._trees: dict[str, Tree] = {}
        self._places: dict[str, list[Place]] = {}

    @property
    def engine(self) -> TraceProcessor:
        assert self._engine is not None
        return self._engine

    @property
    def report(self) -> Report:
        assert self._report is not None
        return self._report

    @property
    def run(self) -> Run:
        """For rules that need a run."""
        assert self.report.run is not None
        return self.report.run

    @cached_property
    def any_scope(self) -> Scope | None:
        """None where no time is recorded."""
        return None if self._report is None else read_scope(self.engine, self.report)

    @property
    def scope(self) -> Scope:
        """For rules that need time, GPU work or steps."""
        assert self.any_scope is not None
        return self.any_scope

    @cached_property
    def origins(self) -> Origins:
        """Who asks for calls and GPU work: by operator, and by module and function where stacks were read."""
        assert self._info is not None
        return origins_of(self.engine, self._info)

    def places(self, asked: str) -> list[Place]:
        """Who asks for `launches`, `copies` or `syncs`, most first."""
        if asked not in self._places:
            self._places[asked] = PLACES[asked](self.origins)
        return self._places[asked]

    def tree(self, by: str) -> Tree:
        """The origins by module, source, operator or kernel, equal modules folded."""
        if by not in self._trees:
            self._trees[by] = build_tree(self.origins, by)
        return self._trees[by]

    def has(self, need: Need) -> bool:
        if need == "origins":
            return self.by_origin
        return self._report is not None and _HAS[need](self)

    def doubts_on(self, groups: tuple[Group, ...]) -> str | None:
        """Why figures of the groups are not exact; None where they are."""
        doubted = () if self._report is None else self._report.doubts_on(groups)
        return "; ".join(f"{item.title}: {item.reason}" for item in doubted) or None

    def rows(self, query: Query) -> list[dict[str, Any]]:
        """Rows by column name."""
        return self._asked(query, query_dicts)

    def row(self, query: Query) -> dict[str, Any]:
        """The only row."""
        (row,) = self.rows(query)
        return row

    def columns(self, query: Query) -> Columns:
        return self._asked(query, _columns)

    def operators(self, query: Query) -> Operators:
        """Those that `operators_named` asks for."""
        return self._asked(query, read_operators)

    def gain(self, high: float, bounded_by: str, low: float = 0.0) -> Gain:
        """Of the time of a whole run, or of what a foreign trace recorded."""
        of = "recorded span" if self.report.run is None else "unprofiled wall time"
        return Gain(min(1.0, low), min(1.0, high), of, bounded_by)

    def _asked(self, query: Query, ask: Callable[[TraceProcessor, Query], _T]) -> _T:
        """What `ask` answers, asked once."""
        key = ask, query
        if key not in self._answers:
            self._answers[key] = ask(self.engine, query)
        answer: _T = self._answers[key]
        return answer


def _columns(engine: TraceProcessor, query: Query) -> Columns:
    return engine.query(query.text)


Need = Literal["report", "time", "gpu", "launches", "run", "timed", "steps", "processor", "origins"]
_HAS: Mapping[str, Callable[[Known], bool]] = {
    "report": lambda known: True,
    "time": lambda known: known.any_scope is not None,
    "gpu": lambda known: known.any_scope is not None and known.scope.devices > 0,  # GPU work, and time
    "launches": lambda known: known.report.counts.launches > 0,
    "run": lambda known: known.report.run is not None,
    "timed": lambda known: known.report.run is not None and bool(known.run.wall_ns.median),  # unprofiled passes
    "steps": lambda known: known.any_scope is not None and bool(known.scope.steps),  # recorded steps of a run
    "processor": lambda known: known.report.run is not None and known.run.setup.processor is not None,
}


class Found(Struct, frozen=True):
    """The evidence of a finding, with figures; `fix` and `explanation` in place of those of the rule."""

    evidence: str
    figures: dict[str, int | float]
    gain: Gain | None = None
    fix: str = ""
    explanation: str = ""


class Rule(Struct, frozen=True, kw_only=True):
    """A finding, declared with what a trace must have for it; `find` returns its evidence, or None."""

    id: str
    title: str
    fix: str
    explanation: str
    query: str  # argument of `molprof query` that shows the evidence
    find: Callable[[Known], Found | None]
    needs: tuple[Need, ...] = ()
    rests_on: tuple[Group, ...] = ()  # groups of figures behind evidence and gain; none: the manifest alone
    least_gain: float = LEAST_GAIN
    of_steps: bool = False  # `least_gain` is of the time of such steps as were recorded, not of the run
    queries: tuple[Query, ...] = ()  # what it asks, except what depends on the trace
    run_queries: tuple[Query, ...] = ()  # the same of captured runs

    def applied(self, known: Known) -> Found | None:
        """What it finds in a trace that has what it needs, unless that gains too little."""
        found = self.find(known) if all(map(known.has, self.needs)) else None
        if found is None or found.gain is None:
            return found
        least = self.least_gain * (known.scope.wall_ratio if self.of_steps else 1)
        return None if found.gain.high < least else found


def rule(**declared: Any) -> Callable[[Callable[[Known], Found | None]], Rule]:
    """Make a function a `Rule` of these fields."""
    return lambda find: Rule(find=find, **declared)
