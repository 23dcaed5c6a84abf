"""The state of a file by its events and times: the profiler's span, and the step of its clocks."""

from __future__ import annotations

import math

import numpy as np

from molprof.analysis.facts import GPU_CALLS, GPU_WORK
from molprof.analysis.reader import ClockTicks, Condition
from molprof.analysis.reader.survey import SurveyedTrace

_HOST = ("cpu_op", "user_annotation", *GPU_CALLS)
# Fewer times are multiples of a large number by chance.
_LEAST_TIMES = 20
# Looked at first: in most files these show that the step is 1 ns.
_FIRST = 64


def condition(survey: SurveyedTrace) -> Condition:
    """Return the state of a file that was surveyed."""
    has_span = any(label.phase == "X" and label.category == "Trace" for label in survey.labels)
    return Condition(has_span, _clock(survey, GPU_WORK), _clock(survey, _HOST))


def _clock(survey: SurveyedTrace, categories: tuple[str, ...]) -> ClockTicks | None:
    mine = survey.has_label(label.phase == "X" and label.category in categories for label in survey.labels)
    starts_ns, durations_ns = survey.starts_ns[mine], survey.durations_ns[mine]
    if not len(starts_ns):
        return None
    step = _step(starts_ns[:_FIRST], durations_ns[:_FIRST], survey.origin_ns)
    if 2 * len(starts_ns) < _LEAST_TIMES:
        step = 1, 1, False
    elif step[1] > 1:
        step = _step(starts_ns, durations_ns, survey.origin_ns)
    return ClockTicks(*step, len(starts_ns), int(durations_ns.sum()), int((durations_ns == 0).sum()))


def _step(starts_ns: np.ndarray, durations_ns: np.ndarray, origin_ns: int) -> tuple[int, int, bool]:
    start_step_ns = max(1, int(np.gcd.reduce(starts_ns - starts_ns[0])))
    step_ns = math.gcd(start_step_ns, int(np.gcd.reduce(durations_ns)))
    # Times that were float32 on their way into the file: the distance between two of these, at the latest.
    times_us = (starts_ns + origin_ns) / 1000
    short = times_us.astype(np.float32)
    if np.array_equal(np.rint(short.astype(np.float64) * 1000), np.rint(times_us * 1000)):
        float32_ns = int(np.spacing(short.max()) * 1000)
        if float32_ns > step_ns:
            return float32_ns, float32_ns, True
    return step_ns, start_step_ns, False
