"""A smaller trace out of a larger one: some of its steps, phases, categories, or a stretch of time."""

from molprof.analysis.trim.trim import Wish, trim

__all__ = ["Wish", "trim"]
