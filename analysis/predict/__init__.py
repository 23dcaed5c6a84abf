"""Prediction of a run on another GPU: launches, times, limits, and the error of these figures."""
