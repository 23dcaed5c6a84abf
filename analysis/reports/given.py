"""What a user says of foreign traces: how many tokens and molecules they generated."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from molprof.analysis.figures import Report
from molprof.common.errors import UsageError
from molprof.common.values import counted


def with_given(reports: Sequence[Report], tokens: Sequence[int], molecules: Sequence[int]) -> list[Report]:
    """The reports, the foreign ones with what was given: one number for all of them, or one for each in their order.

    Raises UsageError for any other number of values, and where no trace is foreign.
    """
    foreign = [place for place, report in enumerate(reports) if report.run is None]
    found = list(reports)
    for name, values in (("tokens", tokens), ("molecules", molecules)):
        if not values:
            continue
        if not foreign:
            raise UsageError(f"--{name} is for foreign traces; {reports[0].trace.path} records its own")
        if len(values) not in (1, len(foreign)):
            raise UsageError(
                f"--{name} was given {len(values)} times, for {counted(len(foreign), 'foreign trace')}",
                hint="give it once for all of them, or once for each in the order of the traces",
            )
        each = list(values) * len(foreign) if len(values) == 1 else list(values)
        for place, value in zip(foreign, each, strict=True):
            found[place] = replace(found[place], given=replace(found[place].given, **{name: value}))
    return found
