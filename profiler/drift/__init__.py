"""Drift of tokenizers and placeholders over real coordinates: no model, no torch."""
