"""Drift of a run's coordinate blocks, and disagreement: what the model would have written."""
