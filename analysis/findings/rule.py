"""What a rule is: the findings that it can make, and what it asks of a trace for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from molprof.analysis.engine import Engine
from molprof.analysis.engine.package import Query
from molprof.analysis.figures.model import Finding, Report
from molprof.analysis.findings.scope import Scope


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        ids: of its findings.
        find: yields those that have evidence. The scope is None where no time is recorded.
        queries: what it asks, except where that depends on the trace.
    """

    ids: tuple[str, ...]
    find: Callable[[Engine, Report, Scope | None], Iterator[Finding]]
    queries: tuple[Query, ...] = ()
