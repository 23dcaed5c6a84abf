"""Figures: one loaded trace in, one `Report` out. What builds one is imported when a trace is read."""

from molprof.analysis.figures.model import Report

__all__ = ["Report"]
