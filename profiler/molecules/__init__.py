"""Molecules as text: SMILES, templates, prompts, coordinates, and the kind of each generated token."""
