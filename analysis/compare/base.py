"""Choice of the run to compare with: as asked for, else the only one without a constraint, else the first."""

from __future__ import annotations

from collections.abc import Sequence

from molprof.analysis.figures.model import Report, ServedTimes


def base_of(reports: Sequence[Report]) -> int | None:
    """Return the index of the only run without a constraint.

    None where there are several or none, or where a report does not show it.
    """
    constrained = [is_constrained(report) for report in reports]
    return constrained.index(False) if constrained.count(False) == 1 and None not in constrained else None


def is_constrained(report: Report) -> bool | None:
    """Return True if a constraint limited the run's tokens, False if none did; None where that is not recorded."""
    if isinstance(report.served, ServedTimes):
        return report.served.run == "constrained"
    run = report.run
    if run is None:
        return None
    setup, masked = run.setup, run.masked
    # What a program asks of generate is among the parameters; logits are counted whoever masked them.
    is_asked = setup.processor is not None or bool(setup.processor_parameters)
    return is_asked or (masked is not None and any((masked.free, masked.copy, masked.end, masked.idle)))
