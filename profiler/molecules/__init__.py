"""Molecules as text: SMILES, templates, prompts, coordinates, and what each generated token is."""
