"""Figures: turn one loaded trace into one `Report`. Modules that build it are imported when a trace is read."""

from molprof.analysis.figures.model import Report

__all__ = ["Report"]
