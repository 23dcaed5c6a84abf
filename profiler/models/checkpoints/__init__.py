"""Checkpoints of the presets, as data of the package."""
