"""The analysis: reads a trace, and never runs a model."""
