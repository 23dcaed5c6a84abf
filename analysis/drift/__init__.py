"""Drift and disagreement of a captured run: its coordinate blocks, and what the model would have written."""
