"""A smaller trace out of a larger one: some of its steps, phases, categories, or a stretch of time."""

from molprof.analysis.trim.plan import Wish
from molprof.analysis.trim.trim import trim

__all__ = ["Wish", "trim"]
